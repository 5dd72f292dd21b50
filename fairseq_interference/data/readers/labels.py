"""Labels of named entities as corpora write them to IOB2, with every repair counted; maps between label sets.

| repair | in the file | becomes |
| --- | --- | --- |
| bare-type | `-NEL` | `I-NEL` after a token of type NEL, else `B-NEL` (as conlleval would read it) |
| no-label | `-`, `-''`, `-doubt`: no upper-case type | `O` |
| invisible | zero-width or control characters in a label | dropped |
| lone-O | a line with the single column `O` | a word `O` with label `O` |
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from fairseq_interference.errors import DataError, UsageError

OUTSIDE = "O"
ALLOWED = "O, B-TYPE, I-TYPE"
_LABEL = re.compile(r"([BI])-(\S+)")
_JOINED = re.compile(r"([BI])([A-Z][A-Z0-9_]*)")
_BARE = re.compile(r"-([A-Z][A-Z0-9_-]*)")
_MAP_KINDS = ("refuse", "keep", "O")


def parse_pairs(text: str, flag: str, allowed: str) -> dict[str, str]:
    """``FROM=TO,FROM=TO`` to a map.

    Raises:
        UsageError: malformed; names the flag and what it allows.
    """
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        source, _, target = (part.strip() for part in pair.partition("="))
        if not (source and target) or source in found:
            raise UsageError("This is not FROM=TO, each name once.", where=flag, value=pair, allowed=allowed)
        found[source] = target
    return found


class Reading(NamedTuple):
    """A raw label, read: prefix ``O B I`` or ``-`` (decided by the token before), type, names of repairs."""

    prefix: str
    type: str
    repairs: tuple[str, ...]


@dataclass(frozen=True)
class LabelMap:
    """From the labels of one corpus to a shared set.

    Args:
        types: entity type -> entity type, or ``O`` to drop it.
        labels: a raw label exactly as in the file -> ``O``, ``B-X`` or ``I-X``; comes before every repair.
        unmapped: what happens to a type that ``types`` lacks: ``refuse``, ``keep`` or ``O``.
        name: what errors call the map.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    unmapped: str = "keep"
    name: str = "--label-map"

    def __post_init__(self) -> None:
        for source, target in self.labels.items():
            if target != OUTSIDE and not _LABEL.fullmatch(target):
                pair = f"{source}={target}"
                raise UsageError("A label must become a label.", where=self.name, value=pair, allowed=ALLOWED)
        for source, target in self.types.items():
            if not re.fullmatch(r"[^\s,=]+", target) or _LABEL.fullmatch(target):
                raise UsageError(
                    "A type must become a type or O.", where=self.name, value=f"{source}={target}", allowed="TYPE or O"
                )
        if self.unmapped not in _MAP_KINDS:
            raise UsageError(
                "Unknown rule for unmapped types.", where=self.name, value=self.unmapped, allowed=", ".join(_MAP_KINDS)
            )

    @classmethod
    def parse(cls, text: str) -> LabelMap:
        """A map from ``from=to,from=to`` or from a YAML file with ``types``, ``labels``, ``unmapped``."""
        return cls._from_pairs(text) if "=" in text and not Path(text).is_file() else cls.read(text)

    @classmethod
    def _from_pairs(cls, text: str) -> LabelMap:
        types: dict[str, str] = {}
        labels: dict[str, str] = {}
        for source, target in parse_pairs(text, "--label-map", "NEP=PER,NEN=O").items():
            (labels if source[:2] in ("B-", "I-") or source[0] == "-" else types)[source] = target
        return cls(types, labels, name=text)

    @classmethod
    def read(cls, path: Union[str, Path]) -> LabelMap:
        """Read a YAML file; types that it does not name are refused unless it says ``unmapped: keep`` or ``O``."""
        import yaml

        if not Path(path).is_file():
            raise UsageError("There is no such label map.", where="--label-map", value=str(path), allowed="FILE or A=B")
        try:
            # text alone: a type NO is no truth value
            content: Any = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError("The label map is not YAML.", where=path, value=str(error)) from None
        keys = ("description", "types", "labels", "unmapped")
        if not isinstance(content, dict) or not set(content) <= set(keys):
            seen = str(content)[:60]
            raise UsageError("A label map has other keys.", where=path, value=seen, allowed=", ".join(keys))
        if not all(isinstance(content.get(key) or {}, dict) for key in ("types", "labels")):
            raise UsageError("Types and labels are tables.", where=path, value=str(content)[:60], allowed="FROM: TO")
        tables = [content.get(key) or {} for key in ("types", "labels")]
        if not all(isinstance(value, str) for table in tables for pair in table.items() for value in pair):
            raise UsageError("A type or label is a text.", where=path, value=str(tables)[:60], allowed="FROM: TO")
        return cls(tables[0], tables[1], str(content.get("unmapped", "refuse")), name=str(path))

    def type(self, name: str, where: str) -> str:
        """The type that ``name`` becomes, or ``O``.

        Raises:
            DataError: unmapped, and the map refuses that.
        """
        target = self.types.get(name)
        if target is None and self.unmapped == "refuse":
            raise DataError(
                "The label map does not say what becomes of this type.",
                where=where,
                value=name,
                allowed=", ".join(sorted(self.types)),
                next_step=f"add it to {self.name}, or set `unmapped: keep` or `unmapped: O` there",
            )
        if target is None:
            return name if self.unmapped == "keep" else OUTSIDE
        return target

    def as_settings(self) -> dict[str, Any]:
        """What a stage's result depends on."""
        return {"types": dict(self.types), "labels": dict(self.labels), "unmapped": self.unmapped}


class LabelReader:
    """Reads the raw labels of one file; see ``columns.ReadsLabels``.

    Args:
        path: what errors name.
        joined: labels are written without a hyphen (``BNEP``).
        repair: repair odd labels and count it; False refuses them.
        label_map: applied after the repairs.
        repairs: counter that the repairs are added to.
    """

    alone: Optional[str] = OUTSIDE

    def __init__(
        self,
        path: Union[str, Path],
        *,
        joined: bool = False,
        repair: bool = True,
        label_map: Optional[LabelMap] = None,
        repairs: Optional[Counter[str]] = None,
    ) -> None:
        self.path = str(path)
        self.joined = joined
        self.repair = repair
        self.map = label_map
        self.repairs: Counter[str] = Counter() if repairs is None else repairs
        self.dropped: Counter[str] = Counter()  # type -> entities that the map turns into O
        self._readings: dict[str, Reading] = {}
        self._mapped: dict[str, str] = {}

    def sentence(self, raws: Sequence[str], lines: Sequence[int]) -> list[str]:
        """Labels of one sentence from the raw ones and the lines that they stand in.

        Raises:
            DataError: a label that no rule reads; names file:line.
        """
        labels = []
        previous = ""
        for raw, line in zip(raws, lines):
            reading = self._readings.get(raw)
            if reading is None:
                reading = self._readings[raw] = self._read(raw, line)
            prefix = reading.prefix
            if reading.repairs:
                self.repairs.update(reading.repairs)
            if prefix == "-":
                prefix = "I" if previous == reading.type else "B"
            previous = reading.type
            labels.append(OUTSIDE if prefix == OUTSIDE else self._map(f"{prefix}-{reading.type}", line))
        return labels

    def _map(self, label: str, line: int) -> str:
        if self.map is None:
            return label
        if label not in self._mapped:
            target = self.map.type(label[2:], f"{self.path}:{line}")
            self._mapped[label] = OUTSIDE if target == OUTSIDE else f"{label[:2]}{target}"
        if self._mapped[label] == OUTSIDE and label[0] == "B":
            self.dropped[label[2:]] += 1
        return self._mapped[label]

    def _read(self, raw: str, line: int) -> Reading:
        if self.map is not None and raw in self.map.labels:
            return _split(self.map.labels[raw], ())
        clean = "".join(c for c in raw if unicodedata.category(c) not in ("Cf", "Cc"))
        notes = ("invisible",) if clean != raw else ()
        if self.joined and _JOINED.fullmatch(clean):
            clean = f"{clean[0]}-{clean[1:]}"
        if clean == OUTSIDE or _LABEL.fullmatch(clean):
            reading = _split(clean, notes)
        elif clean.startswith("-"):
            found = _BARE.fullmatch(clean)
            bare = Reading("-", found[1], (*notes, "bare-type")) if found else None
            reading = bare or Reading(OUTSIDE, "", (*notes, "no-label"))
        else:
            raise self._refusal(raw, line, "This is not a label of named entities.")
        if reading.repairs and not self.repair:
            raise self._refusal(raw, line, "This label would need a repair, and repairs are off.")
        return reading

    def _refusal(self, raw: str, line: int, what: str) -> DataError:
        return DataError(
            what,
            where=f"{self.path}:{line}",
            value=raw,
            allowed="O, BTYPE, ITYPE" if self.joined else ALLOWED,
            next_step="name the layout with --format, or mend the file",
        )


def _split(label: str, notes: tuple[str, ...]) -> Reading:
    return Reading(OUTSIDE, "", notes) if label == OUTSIDE else Reading(label[0], label[2:], notes)


def to_iob2(labels: Sequence[str]) -> tuple[list[str], int]:
    """Labels in which every entity starts with B-, and how many I- were changed for it."""
    out: list[str] = []
    changed = 0
    previous = ""
    for label in labels:
        kind = "" if label == OUTSIDE else label[2:]
        if label.startswith("I-") and kind != previous:
            label = f"B-{kind}"
            changed += 1
        previous = kind
        out.append(label)
    return out, changed
