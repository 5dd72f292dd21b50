"""Does the size of a corpus explain interference? Models with all and with a part of one language's text."""

from __future__ import annotations

from fairseq_interference.analysis import designs, plots
from fairseq_interference.analysis.study import Study

TITLE = "Corpus size"


def figures(study: Study) -> list[plots.Figure]:
    """Perplexity over updates, and differences between models."""
    found = (designs.curve_figure(study), designs.difference_figure(study))
    return [figure for figure in found if figure is not None]
