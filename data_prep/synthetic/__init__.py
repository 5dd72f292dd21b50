"""Artificial languages with known structure."""
