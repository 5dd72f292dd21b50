"""What a study found, as files: JSON with the setting, one CSV a table, and rows that survive an interruption.

A study's folder is ``OUT/NAME``: ``NAME.json`` (``schema``, ``study``, ``version``, ``settings``, ``tables``: name ->
rows), ``TABLE.csv`` with the same rows, and ``rows.jsonl`` while it is computed. Figures are made from ``NAME.json``.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference import __version__
from fairseq_interference.errors import DataError, StageError
from fairseq_interference.stages import write_json, write_text

SCHEMA = 1
ROWS_FILE = "rows.jsonl"
Row = dict[str, Any]  # text, numbers, None where there is nothing to tell; never nan
PathLike = Union[str, Path]


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: gradients, masks, cka, layers, gaps, …
        settings: what the numbers depend on: checkpoint, data, sizes, seeds.
        tables: name -> rows, all rows of a table with the same keys.
    """

    name: str
    settings: Mapping[str, Any]
    tables: Mapping[str, Sequence[Row]]


def number(value: Optional[float]) -> Optional[float]:
    """A number for a row: None for what is none (nan, infinite)."""
    return None if value is None or not math.isfinite(value) else float(value)


def write_study(study: Study, out: PathLike) -> list[Path]:
    """Write a study's files; returns their paths, JSON first.

    Raises:
        DataError: rows of one table with different keys, or a number that is none.
    """
    folder = Path(out) / study.name
    for table, rows in study.tables.items():
        _check_rows(rows, f"{study.name}, table {table}")
    content = {"schema": SCHEMA, "study": study.name, "version": __version__, "settings": dict(study.settings)}
    paths = [folder / f"{study.name}.json"]
    for table, rows in study.tables.items():
        paths.append(folder / f"{table}.csv")
        write_text(paths[-1], to_csv(rows))
    write_json(paths[0], {**content, "tables": {table: list(rows) for table, rows in study.tables.items()}})
    return paths


def _check_rows(rows: Sequence[Row], where: str) -> None:
    for row in rows:
        if list(row) != list(rows[0]):
            raise DataError("Rows of one table have different columns.", where=where, value=list(row))
        wrong = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise DataError("This is no number; a missing one is None.", where=where, value=", ".join(wrong))


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_study(path: PathLike) -> Study:
    """Read ``NAME.json``.

    Raises:
        DataError: it is missing, no study, or of a newer schema.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema, name = content["schema"], content["study"]
        settings, tables = content["settings"], content["tables"]
    except FileNotFoundError:
        raise DataError("There is no such study.", where=path) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("This is no study's file.", where=path, value=str(error)) from None
    if schema != SCHEMA:
        raise DataError("This study was written by another version.", where=path, value=schema, allowed=SCHEMA)
    return Study(name, settings, tables)


class Ledger:
    """Parts of a study that have been computed: a run that was interrupted goes on behind them.

    Args:
        path: ``rows.jsonl``; its first line holds the settings, every other one a key and its rows.
        settings: what the rows depend on (JSON-able).
        force: begin anew where the settings differ.

    Raises:
        StageError: the file was begun with other settings.
    """

    def __init__(self, path: PathLike, settings: Mapping[str, Any], force: bool = False) -> None:
        self.path = Path(path)
        self.parts: dict[str, list[Row]] = {}
        wanted = json.loads(json.dumps(dict(settings)))
        lines = self._read()
        if lines and lines[0] == {"settings": wanted}:
            self.parts = {line["key"]: line["rows"] for line in lines[1:]}
        elif lines and not force:
            old = lines[0].get("settings", {})
            changed = [name for name in sorted({*old, *wanted}) if old.get(name) != wanted.get(name)]
            raise StageError(
                "This study was begun with other settings.",
                where=self.path.parent,
                value=", ".join(f"{name}: {old.get(name)!r}, now {wanted.get(name)!r}" for name in changed),
                next_step="give --force to begin anew, or another --out",
            )
        if not self.parts:
            write_text(self.path, json.dumps({"settings": wanted}, ensure_ascii=False) + "\n")

    def _read(self) -> list[dict[str, Any]]:
        """Whole lines; a last one that was cut off is dropped, also from the file."""
        if not self.path.is_file():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with open(self.path, "r+b") as stream:
                stream.truncate(len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise StageError("This file is broken.", where=self.path, value=str(error)) from None

    def get(self, key: str) -> Optional[list[Row]]:
        """Rows of a part, None if it has not been computed."""
        return self.parts.get(key)

    def add(self, key: str, rows: Iterable[Row]) -> list[Row]:
        """Keep the rows of a part; they are on disk when this returns."""
        self.parts[key] = list(rows)
        with open(self.path, "a", encoding="utf-8", newline="\n") as stream:
            stream.write(json.dumps({"key": key, "rows": self.parts[key]}, ensure_ascii=False, allow_nan=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        return self.parts[key]
