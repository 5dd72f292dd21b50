"""Readers of label formats: official files to sentences and back. No host and no tensors here."""
