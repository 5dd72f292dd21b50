"""Evaluation: predictions to scores to records."""
