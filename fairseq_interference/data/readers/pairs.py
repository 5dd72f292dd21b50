"""Sentence pairs that remember the lines they came from, their labels, and writing them with other labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol

from fairseq_interference.data.readers.lines import PathLike, shown
from fairseq_interference.errors import DataError, ScoringError, UsageError
from fairseq_interference.stages import write_text

NO_MAJORITY = "-"  # the annotators did not agree: SNLI, MultiNLI and OCNLI leave such pairs out
# Label sets by name; the place in the set is the id, whatever a file holds
LABEL_SETS = {"nli": ("contradiction", "entailment", "neutral"), "pawsx": ("0", "1")}
SPELLINGS = {"contradictory": "contradiction"}  # of the translated MultiNLI that comes with XNLI


class PairSource(Protocol):
    """The text of a file that a pair came from."""

    def render(self, label: Optional[str]) -> str:
        """This text with another label; with None, or the label that it has, exactly as it was."""


@dataclass
class Pair:
    """Two sentences.

    Args:
        premise: first sentence, exactly as in the file.
        hypothesis: second sentence.
        label: one of the label set; None without a label, or where the annotators did not agree.
        line: line of the file that the pair starts in, from 1.
        id: the pair's own name, where the file has one; not always unique.
        raw: the label exactly as it stands in the file; None if there is no place for it.
        source: writes the pair's own text again.
    """

    premise: str
    hypothesis: str
    label: Optional[str]
    line: int = 0
    id: Optional[str] = None
    raw: Optional[str] = field(default=None, repr=False)
    source: Optional[PairSource] = field(default=None, repr=False, compare=False)


class PairFile(list[Pair]):
    """The pairs of one file, in order.

    Attributes:
        path: the file.
        format: name of its layout.
        label_set: labels in the order of their ids; empty if unlabelled and not named.
        labelled: whether any pair has a label.
        repairs: repair -> how often: ``contradictory``, ``empty-sentence``.
        dropped: raw label -> how often a label map turned it into none.
        header: lines before the first pair, verbatim.
        tail: lines after the last pair, verbatim.
    """

    def __init__(self, pairs: Iterable[Pair], path: str, format: str) -> None:
        super().__init__(pairs)
        self.path = path
        self.format = format
        self.label_set: tuple[str, ...] = ()
        self.labelled = False
        self.repairs: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.header: list[str] = []
        self.tail: list[str] = []

    @property
    def labels(self) -> list[Optional[str]]:
        return [pair.label for pair in self]


def set_labels(file: PairFile, label_set: Sequence[str] = (), label_map: Optional[Mapping[str, str]] = None) -> None:
    """Give every pair of a file its label from the raw one.

    Args:
        label_set: the labels in the order of their ids; empty takes the one of ``LABEL_SETS`` that the file uses.
        label_map: raw label -> label or ``-``; comes before ``SPELLINGS``.

    Raises:
        DataError: a label outside the set, a pair without a label among others; names file:line.
    """
    raws = [pair.raw for pair in file]
    mapped = [_mapped(raw, label_map or {}) for raw in raws]
    file.labelled = any(label not in (None, NO_MAJORITY) for label in mapped)
    file.label_set = tuple(label_set) or (_guess(file, mapped) if file.labelled else ())
    repairs: Counter[str] = Counter(file.repairs)
    dropped: Counter[str] = Counter()
    for pair, label in zip(file, mapped):
        where = f"{file.path}:{pair.line}"
        if label is None and file.labelled:
            raise DataError("Some pairs have labels, this one has none.", where=where)
        if label not in (None, NO_MAJORITY, *file.label_set):
            raise DataError(
                "This label is not in the label set.",
                where=where,
                value=label,
                allowed=f"{' '.join(file.label_set)}, or {NO_MAJORITY} for none",
                next_step="name another set with --labels, or map it where the data is prepared (--label-map)",
            )
        pair.label = None if label == NO_MAJORITY else label
        if pair.raw is not None and pair.label is None and pair.raw != NO_MAJORITY:
            dropped[pair.raw] += 1
        if pair.raw in SPELLINGS and pair.label == SPELLINGS[pair.raw]:
            repairs[pair.raw] += 1
    file.repairs, file.dropped = dict(repairs), dict(dropped)


def _mapped(raw: Optional[str], label_map: Mapping[str, str]) -> Optional[str]:
    return None if raw is None else label_map.get(raw, SPELLINGS.get(raw, raw))


def _guess(file: PairFile, labels: Sequence[Optional[str]]) -> tuple[str, ...]:
    for known in LABEL_SETS.values():
        if any(label in known for label in labels):
            return known
    place = next(i for i, label in enumerate(labels) if label not in (None, NO_MAJORITY))
    seen = sorted({label for label in labels if label is not None})
    raise DataError(
        "These labels are of no set that is known here.",
        where=f"{file.path}:{file[place].line}",
        value=shown(" ".join(seen)),
        allowed="; ".join(f"{name}: {' '.join(known)}" for name, known in LABEL_SETS.items()),
        next_step="write the labels to a file, one a line, and name it with --labels",
    )


def write(path: PathLike, pairs: Sequence[Pair], labels: Optional[Sequence[Optional[str]]] = None) -> None:
    """Write pairs in their official layout with other labels, every other byte as it was.

    Args:
        pairs: what a reader gave, or some of it.
        labels: one per pair; None keeps what the file has, and so does a label None. A file without labels gets a
            last column or key for them.

    Raises:
        ScoringError: pairs and labels differ in number.
        UsageError: pairs that come from no file.
    """
    write_text(path, format_pairs(pairs, labels))


def format_pairs(
    pairs: Sequence[Pair], labels: Optional[Sequence[Optional[str]]] = None, header: Sequence[str] = ()
) -> str:
    """The text that :func:`write` writes; ``header``: first lines, where ``pairs`` is not a whole file."""
    if labels is not None and len(labels) != len(pairs):
        counts = f"{len(pairs)} pairs, {len(labels)} predictions"
        raise ScoringError("Pairs and predictions differ in number.", value=counts)
    lines = list(pairs.header if isinstance(pairs, PairFile) else header)
    for number, pair in enumerate(pairs):
        if pair.source is None:
            raise UsageError("This pair comes from no file.", where=f"pair {number + 1}", value=pair.premise[:60])
        lines.append(pair.source.render(None if labels is None else labels[number]))
    lines += pairs.tail if isinstance(pairs, PairFile) else [""]
    return "\n".join(lines)
