"""Data: tensors from files, routing datasets, samplers, readers, alignment."""
