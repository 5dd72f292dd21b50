"""Criterions: losses and what they log."""
