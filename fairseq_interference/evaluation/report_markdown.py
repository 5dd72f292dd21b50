"""Tables -> Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from fairseq_interference.evaluation.finetuned import EXPERIMENT, PLACES
from fairseq_interference.evaluation.records import Record
from fairseq_interference.evaluation.report_cells import METRICS, Difference, Metric, Repeat, Table
from fairseq_interference.evaluation.report_words import cell_text, examples_text, listing, number, title

CSV_FIELDS = [
    *("kind", "benchmark", "split", "metric", "rules", "train_langs", "language", "model", "pretrain_langs"),
    *("mean", "sd", "n", "seeds", "missing"),
]


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def seeds_text(repeats: Iterable[Repeat]) -> str:
    """``1, 2, 3``, and the seeds of pre-training where they are recorded."""
    repeats = set(repeats)
    text = ", ".join(str(seed) for seed in sorted({seed for seed, _ in repeats}))
    pretrain = sorted({seed for _, seed in repeats if seed is not None})
    return text + (f" (pre-training: {', '.join(map(str, pretrain))})" if pretrain else "")


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``3 min 10 s`` or ``4.2 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _distinct(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values})


def _code(record: Record) -> str:
    code = record["code"]
    commit = f" at {code['commit'][:12]}" if code["commit"] else ""
    return f"{code['version']}{commit}{' with uncommitted changes' if code['dirty'] else ''}"


def setting(table: Table) -> str:
    """Where the numbers of ``table`` come from: languages, seeds, sizes, hardware, time, code, rules."""
    records = table.records
    repeats = {repeat for cell in table.cells.values() for repeat in cell.repeats}
    pretrained = sorted({tuple(r["run"]["languages"]) for r in records}, key=lambda x: (-len(x), x))
    seconds = {r["run"]["id"]: r["cost"]["seconds"] for r in records if r["cost"]["seconds"] is not None}
    environments = _distinct(
        f"Python {e['python']}, torch {e['torch'] or '?'}, {e['host'] or 'no host'}"
        for e in (r["environment"] for r in records)
    )
    items = [
        "cells: mean ± sample sd over seeds (number of seeds)",
        f"pre-trained on {' / '.join(','.join(langs) for langs in pretrained)}",
        f"examples: {examples_text(table.examples)}",
        f"seeds {seeds_text(repeats)}",
        f"rules: {table.rules or 'not recorded'}",
        f"hardware: {'; '.join(_distinct(r['environment']['device'] for r in records))}",
        f"time: {duration(sum(seconds.values()))} in {len(seconds)} runs" if seconds else "time: not recorded",
        f"software: {'; '.join(environments)}",
        f"code: {'; '.join(_distinct(_code(r) for r in records))}",
    ]
    pretrain_seeds = {seed for _, seed in repeats}
    if table.kind != "pretrain" and len(repeats) > 1 and len(pretrain_seeds) == 1 and None not in pretrain_seeds:
        items.append("the seeds vary fine-tuning only; each model was pre-trained once")
    items += _foreign_parts(table)
    mixed = mixed_settings(table.records)
    if mixed:
        items.append(f"CAUTION: seeds of one cell were run with different settings: {', '.join(mixed)}")
    return "Setting: " + " · ".join(items) + "."


def mixed_settings(records: Iterable[Record]) -> list[str]:
    """Settings, such as ``optimizer.lr``, that differ among runs which only their seed should tell apart."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for record in records:
        run = record["run"]
        key = (record["evaluation"]["language"], run["arch"], *run["languages"], "|", *run["train_langs"])
        groups[key].append(
            {
                f"{section}.{name}": json.dumps(value, sort_keys=True)
                for section in EXPERIMENT
                for name, value in (run["config"].get(section) or {}).items()
                if name not in PLACES
            }
        )
    names = {name for group in groups.values() for found in group for name in found}
    return sorted(
        name for name in names if any(len({found.get(name) for found in group}) > 1 for group in groups.values())
    )


def _foreign_parts(table: Table) -> list[str]:
    """Cells that another language's parts served, or that the model was not pre-trained on."""
    notes = set()
    for record in table.records:
        rules, lang = record["evaluation"]["rules"], record["evaluation"]["language"]
        parts = rules.get("parts", "own") if isinstance(rules, dict) else "own"
        if parts == "none":
            notes.add(f"{lang} was not among the pre-training languages of {record['run']['arch']}")
        elif parts != "own":
            notes.add(f"{record['run']['arch']} read {lang} with the parts of {parts}")
    return sorted(notes)


def _rows(table: Table) -> list[list[str]]:
    rows = []
    for language in table.languages:
        name = f"{language} (source)" if language in table.source else language
        rows.append([name, *(cell_text(table.cell(language, column), table.shown) for column in table.columns)])
    gaps = table.transfer_gap()
    if gaps:
        rows.append(["transfer gap", *(cell_text(gaps[column], table.shown) for column in table.columns)])
    return rows


def _difference_text(item: Difference, metric: Metric) -> str:
    if item.value is None:
        return "missing"
    sd = "" if item.sd is None else f" ± {number(item.sd, metric)}"
    return f"{number(item.value, metric, signed=True)}{sd} ({item.n[0]}/{item.n[1]}) {item.verdict}"


def _difference_grid(table: Table) -> Optional[str]:
    found = table.interference()
    if not found:
        return None
    rows = [
        [language, *(_difference_text(differences[row], table.shown) for differences in found.values())]
        for row, language in enumerate(table.languages)
    ]
    return grid(["language", *(f"{column} − {table.reference}" for column in found)], rows)


def section(table: Table, figures: Sequence[str] = ()) -> str:
    """One table with its setting, differences and figures; its words stand at the top of the report."""
    better = "higher" if table.shown.higher_is_better else "lower"
    parts = [
        f"## {title(table)}",
        grid([f"language ({better} is better)", *table.columns], _rows(table)),
        setting(table),
    ]
    differences = _difference_grid(table)
    if differences:
        parts += [
            f"Difference to {table.reference} ± pooled sd (seeds of the model / of {table.reference}); gain or loss "
            "means beyond 2 pooled sd:",
            differences,
        ]
    parts += [f"![{title(table)}]({path})" for path in figures]
    return "\n\n".join(parts)


def _mean(records: Sequence[Record], *keys: str) -> Optional[float]:
    values = []
    for record in records:
        value: Any = record["cost"]
        for key in keys:
            value = value[key]
        if value is not None:
            values.append(value)
    return statistics.fmean(values) if values else None


def cost_section(records: Sequence[Record], order: Sequence[str]) -> str:
    """Parameters, updates, tokens, time and memory per model: means over runs."""
    rows = []
    for kind in ("pretrain", "fine-tuning"):
        for arch in order:
            chosen = {
                r["run"]["id"]: r
                for r in records
                if r["run"]["arch"] == arch and (r["run"]["setting"] == "pretrain") == (kind == "pretrain")
            }
            if chosen:
                rows.append([kind, arch, str(len(chosen)), *_costs(list(chosen.values()))])
    head = "stage, model, runs, shared, per language, total, updates, tokens, seconds, peak memory (MB)"
    return "## Cost\n\nMeans over runs; parameters are counts.\n\n" + grid(head.split(", "), rows)


def _costs(records: Sequence[Record]) -> list[str]:
    values = [_mean(records, "parameters", key) for key in ("shared", "per_language", "total")]
    values += [_mean(records, key) for key in ("updates", "tokens", "seconds")]
    memory = _mean(records, "peak_memory_bytes")
    values.append(None if memory is None else memory / 1e6)
    return ["missing" if value is None else f"{value:,.0f}" for value in values]


def to_csv(tables: Iterable[Table]) -> str:
    """One line per cell, missing ones too; numbers as recorded, unrounded."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for language in table.languages:
            for column in table.columns:
                writer.writerow(_csv_row(table, language, column))
    return stream.getvalue()


def _csv_row(table: Table, language: str, column: str) -> dict[str, Any]:
    cell = table.cell(language, column)
    trained = [language] if table.kind == "within-language" else table.source
    return {
        "kind": table.kind,
        "benchmark": table.benchmark,
        "split": table.split,
        "metric": table.metric,
        "rules": table.rules,
        "train_langs": ",".join(trained),
        "language": language,
        "model": column,
        "pretrain_langs": table.pretrained.get((language, column), ""),
        "mean": "" if cell.mean is None else repr(cell.mean),
        "sd": "" if cell.sd is None else repr(cell.sd),
        "n": cell.n,
        "seeds": " ".join(dict.fromkeys(str(seed) for seed, _ in cell.repeats)),
        "missing": int(cell.n == 0),
    }


def in_no_table(records: Iterable[Record]) -> str:
    """Names the finished records that hold no metric that a table shows."""
    names = [
        f"{r['run']['id']} on {r['evaluation']['language']}"
        for r in records
        if r["status"] == "done" and all(r["evaluation"]["metrics"].get(name) is None for name in METRICS)
    ]
    return f"In no table, because they hold none of {', '.join(METRICS)}: {listing(sorted(names))}." if names else ""


def unfinished(records: Iterable[Record]) -> str:
    """Names the records that are not counted because their runs did not finish."""
    names = [
        f"{r['run']['id']} on {r['evaluation']['language']} ({r['status']})" for r in records if r["status"] != "done"
    ]
    return f"Not counted, because not finished: {listing(sorted(names))}." if names else ""
