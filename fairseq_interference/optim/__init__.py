"""Optimizers: how parameters move."""
