"""``report.json`` and the tables that prepare.sh prints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.apply_bpe import COUNTS, read_counts
from data_prep.common import SPLITS
from data_prep.dictionary import read_dictionary

REPORT = "report.json"


def read_json(path: Path) -> Any:
    """Content of a JSON file, or {} if it is not there."""
    if not path.is_file():
        return {}
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def unknown(folder: Path, known: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Pieces that the dictionary lacks, per split: count and rate."""
    found: dict[str, dict[str, Any]] = {}
    for name in SPLITS:
        counts = read_counts(folder / f"{name}.counts")
        total = sum(counts.values())
        lost = sum(count for piece, count in counts.items() if piece not in known)
        found[name] = {"pieces": total, "unknown": lost, "rate": round(lost / total, 8) if total else 0.0}
    return found


def language_report(lang: str, work: Path, known: frozenset[str]) -> dict[str, Any]:
    """Everything that is known of one language: sources, rules, splits, tokens, unknown rate."""
    clean = read_json(work / "clean" / lang / COUNTS)
    split = read_json(work / "split" / lang / COUNTS)
    pieces = read_json(work / "pieces" / lang / COUNTS)
    rules = dict(clean["rules"])
    for name in ("duplicate", "over_max_lines"):
        rules[name] = split.pop(name)
    changed = {end: sum(part[f"changed_{end}"] for part in pieces.values()) for end in ("lines", "chars")}
    rules["tokenizer_normalization"] = changed
    tokens = unknown(work / "pieces" / lang, known)
    for name in SPLITS:  # the host ends every line with </s>
        tokens[name]["tokens"] = tokens[name]["pieces"] + split[name]["lines"]
    return {
        "sources": clean["sources"],
        "read": clean["read"],
        "clean": clean["clean"],
        "rules": rules,
        "splits": split,
        "tokens": tokens,
        "missing_splits": [name for name in SPLITS if not split[name]["lines"]],
    }


def build(langs: Sequence[str], work: Path, out: Path, old: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """The whole report; languages of ``old`` that are not among ``langs`` are kept if the dictionary is the same."""
    content = (out / "dict.txt").read_bytes()
    pieces = read_dictionary(out / "dict.txt")
    dictionary = {"pieces": len(pieces), "sha256": hashlib.sha256(content).hexdigest()}
    kept = old.get("languages", {}) if old.get("dictionary") == dictionary else {}
    known = frozenset(pieces)
    languages = {**kept, **{lang: language_report(lang, work, known) for lang in langs}}
    return {"format": 1, "dictionary": dictionary, "languages": languages, **extra}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    )


def summary(report: dict[str, Any]) -> str:
    """Two tables: what each rule touched (lines/characters), and what came out, per language."""
    languages: dict[str, Any] = report["languages"]
    rules = [rule for rule in next(iter(languages.values()))["rules"] if _touched(languages, rule)]
    rows = [["lines / characters", *languages]]
    for rule in rules:
        cells = [languages[lang]["rules"].get(rule, {"lines": 0, "chars": 0}) for lang in languages]
        rows.append([rule, *(f"{cell['lines']}/{cell['chars']}" for cell in cells)])
    text = f"What each rule touched\n{table(rows)}\n\n" if rules else ""
    rows = [["language", "read", "train", "valid", "test", "train tokens", "unknown %"]]
    for lang, found in languages.items():
        tokens = found["tokens"]["train"]
        numbers = [found["read"]["lines"], *(found["splits"][name]["lines"] for name in SPLITS), tokens["tokens"]]
        rows.append([lang, *map(str, numbers), f"{100 * found['tokens']['valid']['rate']:.3f}"])
    return text + table(rows) + "\n(unknown %: of the pieces of the valid split)"


def _touched(languages: dict[str, Any], rule: str) -> bool:
    return any(found["rules"].get(rule, {}).get("lines") for found in languages.values())
