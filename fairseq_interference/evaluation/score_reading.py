"""What the scorers of score_pos.py, score_nli.py and score_qa.py share: JSON with the line of a fault, comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fairseq_interference.data.readers.lines import BOM, PathLike, bare, is_blank, read_lines, shown
from fairseq_interference.errors import DataError, ScoringError


class Item(NamedTuple):
    """One unit of a file that is compared with its counterpart: what it says, its line, and its key."""

    value: str
    line: int
    key: Optional[tuple[str, ...]]


def load_json(path: PathLike) -> Any:
    """The JSON document of a file.

    Raises:
        DataError: as :func:`read_lines`; not JSON, or a key that an object holds twice.
    """
    text = "\n".join(read_lines(path))
    return _parse(text[1:] if text.startswith(BOM) else text, str(path))


def json_objects(path: PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line that is not blank.

    Raises:
        DataError: as :func:`load_json`; names file:line.
    """
    for number, line in enumerate(read_lines(path), 1):
        text = bare(line, number)
        if is_blank(text):
            continue
        record = _parse(text, f"{path}:{number}")
        if not isinstance(record, dict):
            raise DataError("This line is not a JSON object.", where=f"{path}:{number}", value=shown(text))
        yield number, record


def is_json(path: PathLike) -> bool:
    """Whether the first line with anything on it begins as JSON does."""
    lines = (bare(line, number) for number, line in enumerate(read_lines(path), 1))
    return next((line.lstrip()[:1] in ("{", "[") for line in lines if not is_blank(line)), False)


def _parse(text: str, where: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                "An object holds this key twice, and one value would be lost.",
                where=where,
                value=twice,
                next_step="write JSON Lines, one object per example in the order of the gold file",
            )
        return found

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise DataError("This is not JSON.", where=where, value=str(error)) from None


def text_of(record: Mapping[str, Any], names: Sequence[str], where: str, numbers: bool = False) -> str:
    """The one value among ``names`` that ``record`` has.

    Raises:
        DataError: none or several of them, or a value that is no text (nor, with ``numbers``, a whole number).
    """
    there = [name for name in names if name in record]
    if len(there) != 1:
        what = "This record has several of these keys." if there else "This record has none of these keys."
        raise DataError(what, where=where, value=", ".join(there or map(str, record)), allowed=" or ".join(names))
    value = record[there[0]]
    if isinstance(value, str) or (numbers and isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    allowed = "a text or a whole number" if numbers else "a text"
    raise DataError(f"The value of {there[0]} is no text.", where=where, value=json.dumps(value), allowed=allowed)


def check_items(gold: Sequence[Item], predicted: Sequence[Item], files: tuple[str, str], unit: str) -> None:
    """Raise unless there is one prediction for each gold item, of the same key where both have one.

    Raises:
        ScoringError: names both lines, and both keys.
    """
    for number, (wanted, given) in enumerate(zip(gold, predicted), 1):
        if wanted.key and given.key and wanted.key != given.key:
            place = next(place for place, (a, b) in enumerate(zip(wanted.key, given.key)) if a != b)
            raise ScoringError(
                f"The texts of {unit} {number} differ.",
                where=f"gold {files[0]}:{wanted.line}, predictions {files[1]}:{given.line}",
                value=f"gold {shown(wanted.key[place])!r}, predicted {shown(given.key[place])!r}",
                allowed=f"every {unit} of the gold file, in its order",
            )
    if len(gold) != len(predicted):
        longer, path = (gold, files[0]) if len(gold) > len(predicted) else (predicted, files[1])
        number = min(len(gold), len(predicted)) + 1
        raise ScoringError(
            f"{'The predictions end' if longer is gold else 'The gold file ends'} before {unit} {number}.",
            where=f"{path}:{longer[number - 1].line}",
            value=f"{len(gold)} gold, {len(predicted)} predicted",
            allowed=f"one prediction for every {unit} of the gold file",
        )
