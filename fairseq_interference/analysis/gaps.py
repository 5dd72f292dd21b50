"""The transfer gap along fine-tuning: source score less the mean of the others (Guo et al. 2023, Figures 1, 2, 5)."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from scipy import stats

from fairseq_interference import validation_log
from fairseq_interference.analysis.plots import Curve, Figure, Lines
from fairseq_interference.analysis.study import Row, Study
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.evaluation.report_cells import TASK_METRICS

TITLE = "The transfer gap along fine-tuning"
CONFIDENCE = 0.95
LOSS = "loss_bits"
ADVICE = "fine-tune with --eval-langs and --set gap-every=N"
Interval = tuple[float, Optional[float], Optional[float]]


@dataclass(frozen=True)
class Run:
    """Validations of one run.

    Attributes:
        folder: its ``--save-dir``.
        score: name of the score that counts, source: language that it is compared with.
        values: update -> language -> measure -> number.
        epochs: update -> epoch.
        header: first line of its file.
    """

    folder: Path
    score: str
    source: str
    values: dict[int, dict[str, dict[str, Optional[float]]]]
    epochs: dict[int, int]
    header: dict[str, Any]

    @property
    def languages(self) -> list[str]:
        """Those with a score in every validation: the source first, the others in the order of the run."""
        scored = [
            lang for lang in self.header["languages"] if all(self.value(u, lang) is not None for u in self.values)
        ]
        return [self.source, *(lang for lang in scored if lang != self.source)] if self.source in scored else scored

    def value(self, update: int, lang: str, measure: str = "") -> Optional[float]:
        """A number of a validation; None if it is not there."""
        return self.values[update].get(lang, {}).get(measure or self.score)


def read_run(folder: Path, source: Optional[str]) -> Run:
    """A run's validations.

    Raises:
        DataError: no run of fine-tuning, no validation yet, or no score of another language.
        UsageError: several languages were trained on and none is named as the source, or an unknown one is.
    """
    header, lines = validation_log.read(folder)
    where = folder / validation_log.FILE
    if "train_langs" not in header:
        raise DataError("This run is no fine-tuning: it has no source language.", where=where, value=header["task"])
    trained = header["train_langs"]
    if source is None and len(trained) != 1:
        allowed = ",".join(trained)
        raise UsageError("Which of the languages trained on is the source?", where="--source", allowed=allowed)
    source = source or trained[0]
    if source not in header["languages"]:
        allowed = ",".join(header["languages"])
        raise UsageError("The run has no such language.", where="--source", value=source, allowed=allowed)
    score = next(name for name in TASK_METRICS if name in header["measures"])
    values = {int(line["update"]): line["metrics"] for line in lines}
    epochs = {int(line["update"]): int(line["epoch"]) for line in lines}
    run = Run(folder, score, str(source), values, epochs, header)
    if not lines:
        raise DataError("This run has not been validated yet.", where=where)
    if run.languages[:1] != [source] or len(run.languages) < 2:
        there = ",".join(run.languages) or "none"
        what = "Without a score of the source and of another language there is no gap."
        raise DataError(what, where=where, value=f"scored: {there}", next_step=ADVICE)
    return run


def groups_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs in one folder are seeds of one setting, which the folder names.

    Raises:
        UsageError: a folder twice. DataError: runs that cannot be compared.
    """
    parents = {run.folder: run.folder.resolve().parent for run in runs}
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UsageError("A run is named twice.", where="--run", value=", ".join(str(run.folder) for run in runs))
    names = {parent: parent.name for parent in parents.values()}
    if len(set(names.values())) < len(names):
        names = {parent: str(parent) for parent in names}
    for run in runs[1:]:
        if (run.score, run.source, run.header["kind"]) != (runs[0].score, runs[0].source, runs[0].header["kind"]):
            what = "These runs differ in task or source language."
            raise DataError(what, where=run.folder, value=f"{run.header['kind']}, {run.source}")
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(names[parents[run.folder]], []).append(run)
    for seeds in found.values():
        for run in seeds:
            if run.languages != seeds[0].languages:
                what = "Runs of one setting have scored different languages."
                raise DataError(what, where=run.folder, value=",".join(run.languages))
    return found


def interval(values: Sequence[float]) -> Interval:
    """Mean and ends of its 95 % t interval over seeds; no ends for one seed."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return mean, None, None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return mean, mean - half, mean + half


def _columns(name: str, values: Sequence[Optional[float]]) -> Row:
    known = [value for value in values if value is not None]
    mean, low, high = interval(known) if len(known) == len(values) else (None, None, None)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def common_updates(seeds: Sequence[Run]) -> list[int]:
    """Updates that all seeds have validated, so that every point is a mean over the same runs.

    Raises:
        DataError: there is none.
    """
    found = sorted(set.intersection(*({*run.values} for run in seeds)))
    if not found:
        folders = ", ".join(str(run.folder) for run in seeds)
        raise DataError("These runs have no validation at the same update.", where=folders, next_step=ADVICE)
    return found


def tables(groups: dict[str, list[Run]]) -> dict[str, list[Row]]:
    """``gaps``: a row an update; ``languages``: one an update and language; ``runs``: what was read."""
    gaps, languages, read = [], [], []
    for group, seeds in groups.items():
        source, *targets = seeds[0].languages
        updates = common_updates(seeds)
        for run in seeds:
            left_out = len(run.values) - len(updates)
            read.append({"group": group, "run": str(run.folder), "seed": run.header["seed"], "left_out": left_out})
        for update in updates:
            key = {"group": group, "update": update, "epoch": seeds[0].epochs[update]}
            own = {lang: [float(run.value(update, lang) or 0.0) for run in seeds] for lang in (source, *targets)}
            others = [statistics.fmean(column) for column in zip(*(own[lang] for lang in targets))]
            row = {**key, "n": len(seeds), **_columns("source", own[source]), **_columns("targets", others)}
            row.update(_columns("gap", [a - b for a, b in zip(own[source], others)]))
            row.update(_columns("source_loss_bits", [run.value(update, source, LOSS) for run in seeds]))
            losses = [_mean([run.value(update, lang, LOSS) for lang in targets]) for run in seeds]
            gaps.append({**row, **_columns("targets_loss_bits", losses)})
            for lang in (source, *targets):
                behind = [a - b for a, b in zip(own[source], own[lang])] if lang != source else [None]
                row = {**key, "lang": lang, "role": "source" if lang == source else "target", "n": len(seeds)}
                languages.append({**row, **_columns("score", own[lang]), **_columns("gap", behind)})
    return {"gaps": gaps, "languages": languages, "runs": read}


def study(folders: Sequence[Path], source: Optional[str] = None) -> Study:
    """Gap curves of runs of fine-tuning, from their ``validation.jsonl``."""
    runs = [read_run(folder, source) for folder in folders]
    groups = groups_of(runs)
    first = runs[0]
    settings = {
        "runs": [str(run.folder) for run in runs],
        "task": first.header["kind"],
        "score": first.score,
        "source": first.source,
        "targets": first.languages[1:],
        "split": "dev",
        "examples": first.header.get("examples"),
        "unit": first.header["measures"][first.score],
    }
    return Study("gaps", settings, tables(groups))


# -- figures ------------------------------------------------------------------------------------------------------


def _curve(rows: Sequence[Row], name: str) -> Curve:
    low, high = ([row[f"{name}_{end}"] for row in rows] for end in ("low", "high"))
    return Curve([row["update"] for row in rows], [row[name] for row in rows], low, high)


def _panel(title: str, curves: dict[str, Curve], ylabel: str, zero: bool = False) -> Lines:
    return Lines(title, curves, "update of fine-tuning", ylabel, zero=zero, integers=True)


def _note(rows: Sequence[Row], settings: Any) -> str:
    n = rows[0]["n"]
    seeds = f"n = {n} seeds, bands: 95 % interval of the mean" if n > 1 else "n = 1 run"
    examples = settings.get("examples") or {}
    sizes = sorted({*examples.values()})
    of = f", {sizes[0]}{f' to {sizes[-1]}' if len(sizes) > 1 else ''} examples a language" if sizes else ""
    return f"dev split{of}; {seeds}"


def figures(study: Study) -> list[Figure]:
    """A figure of curves a setting, one of losses, and one that compares the settings if there are several."""
    gaps, rows, settings = study.tables["gaps"], study.tables["languages"], study.settings
    groups = list(dict.fromkeys(row["group"] for row in gaps))
    label, source = TASK_METRICS[settings["score"]].label, settings["source"]
    found = []
    for group in groups:
        own, each = [r for r in gaps if r["group"] == group], [r for r in rows if r["group"] == group]
        suffix = f"-{re.sub(r'[^A-Za-z0-9.+_]+', '-', group).strip('-')}" if len(groups) > 1 else ""
        title = f"{settings['task']} fine-tuned on {source}{f', {group}' if suffix else ''}\n{_note(own, settings)}"
        langs = {lang: [r for r in each if r["lang"] == lang] for lang in dict.fromkeys(r["lang"] for r in each)}
        targets = {lang: part for lang, part in langs.items() if lang != source}
        pair = {f"{source} (source)": "source", "mean of targets": "targets"}
        panels = [
            _panel("source and targets", {name: _curve(own, column) for name, column in pair.items()}, f"{label} (%)"),
            _panel("gap", {"gap": _curve(own, "gap")}, "points", zero=True),
            _panel(
                "each language", {_of(lang, source): _curve(r, "score") for lang, r in langs.items()}, f"{label} (%)"
            ),
            _panel("gap of each target", {lang: _curve(r, "gap") for lang, r in targets.items()}, "points", zero=True),
        ]
        reading = (
            "The gap is the source's score less the mean of the targets' (Guo et al. 2023, Figures 1, 2, 5): where it "
            "still widens while the source rises, what is learnt no longer carries over to the targets."
        )
        found.append(Figure(f"gaps-curve{suffix}", f"Transfer gap, {title}", reading, panels))
        losses = {name: _curve(own, f"{column}_loss_bits") for name, column in pair.items()}
        reading = "Where the source's loss still falls and the targets' rises, the model forgets what they shared."
        panel = _panel("", losses, "bits per labelled unit")
        found.append(Figure(f"gaps-loss{suffix}", f"Dev loss, {title}", reading, [panel]))
    if len(groups) > 1:
        found.append(_comparison(groups, gaps, settings, label))
    return found


def _of(lang: str, source: str) -> str:
    return f"{lang} (source)" if lang == source else lang


def _comparison(groups: Sequence[str], gaps: Sequence[Row], settings: Any, label: str) -> Figure:
    by_group = {group: [row for row in gaps if row["group"] == group] for group in groups}
    titles = {"source": f"{settings['source']} (source)", "targets": "mean of targets", "gap": "gap"}
    panels = [
        _panel(
            titles[column],
            {group: _curve(rows, column) for group, rows in by_group.items()},
            "points" if column == "gap" else f"{label} (%)",
            zero=column == "gap",
        )
        for column in ("gap", "targets")
    ]
    counts = ", ".join(f"{group} {rows[0]['n']}" for group, rows in by_group.items())
    title = (
        f"Transfer gap of {settings['task']} from {settings['source']}, settings compared\ndev split; runs: {counts}"
    )
    reading = "A setting is better where its gap is smaller and its targets are not lower for it."
    return Figure("gaps-compare", title, reading, panels)
