"""Named entities: read the official file of a corpus, write predictions in its own layout.

Formats: ``panx conll-tab conll-blank indexed uner mahaner newsfane masakhanerx prepared words``, corpora by name
(``il-ner``, ``masakhaner`` …), ``conll`` (TAB or blank, whichever the file has) and ``auto`` (told by content).
docs/ner.md lists what each looks like and what is done about its oddities.
"""

from __future__ import annotations

from typing import Optional

from fairseq_interference.data.readers.columns import read_columns
from fairseq_interference.data.readers.json_lines import read_json_lines
from fairseq_interference.data.readers.labels import LabelMap, LabelReader
from fairseq_interference.data.readers.layouts import FORMATS, resolve
from fairseq_interference.data.readers.lines import PathLike, read_lines
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.data.readers.writing import format_sentences, write

__all__ = ["FORMATS", "LabelMap", "NerFile", "Sentence", "format_sentences", "read", "write"]

NerFile = LabelFile  # labels in IOB2 style


def read(path: PathLike, format: str = "auto", *, repair: bool = True, label_map: Optional[LabelMap] = None) -> NerFile:
    """Read a label file.

    Args:
        format: one of ``FORMATS``.
        repair: repair odd labels by the rules of readers/labels.py and count it; False refuses them.
        label_map: names of this corpus -> names of a shared set.

    Returns:
        The sentences; words and labels in IOB2 style, everything that :func:`write` needs.

    Raises:
        UsageError: unknown format.
        DataError: not data at all, unknown layout, a line or label that no rule reads; names file:line.
    """
    lines = read_lines(path)
    layout = resolve(format, lines, path)
    joined = not isinstance(layout, str) and layout.joined
    labels = LabelReader(path, joined=joined, repair=repair, label_map=label_map)
    return read_json_lines(lines, layout, labels) if isinstance(layout, str) else read_columns(lines, layout, labels)
