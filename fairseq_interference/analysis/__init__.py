"""The studies: they compute to CSV and JSON; figures are drawn in :mod:`fairseq_interference.analysis.plots` only."""
