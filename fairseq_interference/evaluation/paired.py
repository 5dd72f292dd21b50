"""Arms of a study side by side: mean and sd of every measurement, and differences paired by seed.

An arm is a folder of records. Two of its numbers are paired when they were measured alike (benchmark, split, languages)
with the same seeds of pre-training and of fine-tuning: what a seed does to both arms then cancels.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from scipy import stats

from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.evaluation.records import Record, read_records
from fairseq_interference.evaluation.report_cells import TASK_METRICS, Cell, Metric, Repeat
from fairseq_interference.evaluation.report_data import check_vocabulary, repeat_of, rules_of
from fairseq_interference.evaluation.report_markdown import grid

CONFIDENCE = 0.95
FIELDS = [
    *("measure", "split", "rules", "trained on", "language", "baseline", "arm", "n"),
    *("mean", "sd", "difference", "low", "high"),
]


class Measure(NamedTuple):
    """What was measured: the key that two arms have in common."""

    name: str  # loss (nats per token), F1 …
    benchmark: str
    split: str
    source: str  # languages fine-tuned on; empty for a pre-trained model
    language: str
    rules: str  # how it was scored: what was scored otherwise is another measure

    def __str__(self) -> str:
        where = f"{self.source} to {self.language}" if self.source not in ("", self.language) else self.language
        return f"{self.name}, {where}"


Values = dict[Repeat, float]
Arms = Mapping[str, Mapping[Measure, Values]]


@dataclass(frozen=True)
class PairedDifference:
    """Mean over seeds of (arm - baseline), with a t interval; no interval from one pair."""

    mean: float
    low: Optional[float]
    high: Optional[float]
    n: int


def paired_difference(arm: Values, baseline: Values) -> Optional[PairedDifference]:
    """Difference over the seeds that both have; None without a common seed.

    The interval is ``mean ± t(0.975, n - 1) sd / sqrt(n)`` of the n differences.
    """
    differences = [arm[repeat] - baseline[repeat] for repeat in sorted(arm.keys() & baseline.keys(), key=str)]
    if not differences:
        return None
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return PairedDifference(mean, None, None, n)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return PairedDifference(mean, mean - half, mean + half, n)


METRICS = {"loss_per_token": Metric("loss", math.log(2)), **TASK_METRICS}  # recorded in bits, shown in nats


def measured(record: Record) -> Optional[tuple[Measure, float]]:
    """A record's number: loss in nats per token of a pre-trained model, or its task's metric in points."""
    run, evaluation = record["run"], record["evaluation"]
    metrics, pretrain = evaluation["metrics"], run["setting"] == "pretrain"
    name = next((name for name in METRICS if metrics.get(name) is not None), None)
    if name is None:
        return None
    source = "" if pretrain else ",".join(run["train_langs"])
    place = evaluation["benchmark"], evaluation["split"], source, evaluation["language"]
    return Measure(METRICS[name].label, *place, rules_of(record, ("parts",))), metrics[name] * METRICS[name].scale


def read_arms(results: Path) -> dict[str, dict[Measure, Values]]:
    """Arm (folder below ``results``) -> measure -> seeds -> value.

    Raises:
        DataError: no arm, two runs of an arm with the same seeds, or runs with different dictionaries.
    """
    arms: dict[str, dict[Measure, Values]] = {}
    everything: list[Record] = []
    for folder in sorted(path for path in results.glob("*") if any(path.glob("*.json"))):
        arm, records = arms.setdefault(folder.name, {}), read_records(folder)
        everything += records
        for record in records:
            found = measured(record) if record["status"] == "done" else None
            if found is None:
                continue
            values, repeat = arm.setdefault(found[0], {}), repeat_of(record)
            if repeat in values:
                advice = "move one of them to another folder"
                what = "Two runs of an arm with the same seed."
                raise DataError(what, where=folder, value=record["run"]["id"], next_step=advice)
            values[repeat] = found[1]
    if not arms:
        advice = "give --results the folder that holds a folder of records for each arm"
        raise DataError("Every arm is a folder of records; there is none here.", where=results, next_step=advice)
    check_vocabulary(everything)
    return arms


def check_baselines(arms: Arms, baselines: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a baseline that is no arm."""
    for name in baselines:
        if name not in arms:
            raise UsageError("There is no such arm.", where="--baseline", value=name, allowed=", ".join(arms))


def _measures(arms: Arms) -> list[Measure]:
    return sorted({measure for arm in arms.values() for measure in arm}, key=lambda m: (m.source != "", *m))


def _cell(values: Values) -> Cell:
    return Cell(tuple(values.values()), tuple(values))


def _summary(values: Values) -> str:
    cell = _cell(values)
    if cell.mean is None:
        return "–"
    return f"{cell.mean:.3f}" if cell.sd is None else f"{cell.mean:.3f} ± {cell.sd:.3f}"


def _shown(found: Optional[PairedDifference]) -> str:
    if found is None:
        return "–"
    interval = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    text = f"{found.mean:+.3f}{interval}"
    return f"**{text}**" if found.low is not None and found.high is not None and found.low * found.high > 0 else text


def to_markdown(arms: Arms, baselines: Sequence[str]) -> str:
    """A table of means, and a table of differences to every baseline."""
    measures = _measures(arms)
    head = ["", *map(str, measures)]
    counts = {len(values) for arm in arms.values() for values in arm.values()}
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(*counts)
    rows = [[name, *(_summary(arm.get(measure, {})) for measure in measures)] for name, arm in arms.items()]
    text = [f"Mean ± sd over seeds (n = {seeds}). loss: nats per token.", grid(head, rows)]
    for baseline in baselines:
        own = arms[baseline]
        rows = [
            [name, *(_shown(paired_difference(arm.get(m, {}), own.get(m, {}))) for m in measures)]
            for name, arm in arms.items()
            if name != baseline
        ]
        text += [
            f"Minus `{baseline}`, paired by seed [95 % interval]; bold: the interval leaves out 0 "
            "(no correction for the number of comparisons).",
            grid(head, rows),
        ]
    return "\n\n".join(text) + "\n"


def to_csv(arms: Arms, baselines: Sequence[str]) -> str:
    """One row for each measure, arm and baseline."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for measure in _measures(arms):
        for baseline in baselines:
            for name, arm in arms.items():
                values = arm.get(measure, {})
                if values:
                    found = paired_difference(values, arms[baseline].get(measure, {}))
                    cell, place = _cell(values), (measure.split, measure.rules, measure.source, measure.language)
                    row = [measure.name, *place, baseline, name, cell.n, cell.mean, cell.sd]
                    writer.writerow(row + ([None] * 3 if found is None else [found.mean, found.low, found.high]))
    return out.getvalue()
