"""Tasks: where batches come from and how a step is taken."""
