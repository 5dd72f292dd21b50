"""Which layers fine-tuning needs, and which it should not touch (Guo et al. 2023, Figs. 3, 4; Tables 1, 6).

A model is fine-tuned without change and once for each probe: weights of a layer or of a group frozen, drawn anew or
trained faster, or the last k layers alone trained. Layers count from 1 = bottom, as in the paper. Scores are points
(per cent); a difference is a probed run minus the baseline of the same seed.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Optional

from fairseq_interference.analysis import plots
from fairseq_interference.analysis.study import Row, Study
from fairseq_interference.errors import CheckpointError, UsageError
from fairseq_interference.evaluation.paired import Values, paired_difference

TITLE = "Layers"
BASELINE, LAST = "baseline", "last-k"
PROBES = ("freeze", "reinit", LAST, "enlarge")
PARTS = ("all", "attention", "ffn")
MEASURES = ("source", "targets", "average", "gap")
#: what a probe's rows are told apart by
KEY = ("probe", "part", "layers", "factor")

# -- weights ------------------------------------------------------------------------------------------------------

_LAYER = re.compile(r"(.*\blayers)\.(\d+)\.([^.]+)\..+")
#: first word of a name inside its layer -> part. Norms and adapters belong to the whole layer alone.
_PART = {"self_attn": "attention", "attn": "attention", "fc1": "ffn", "fc2": "ffn", "ffn": "ffn"}
_HEADS = ("token_heads.", "classification_heads.")
_BUFFERS = ("language_codes", "version", "_float_tensor")


def _split(name: str) -> Optional[tuple[str, int, str]]:
    """``…layers``, number from 1, first word inside the layer; None outside the layers."""
    found = _LAYER.fullmatch(name)
    return None if found is None else (found[1], int(found[2]) + 1, found[3])


def depth_of(names: Iterable[str]) -> int:
    """Number of layers.

    Raises:
        CheckpointError: names of no layer.
    """
    depth = max((found[1] for found in map(_split, names) if found), default=0)
    if not depth:
        what = "There are no layers in this checkpoint."
        raise CheckpointError(what, where="--checkpoint", next_step="fairseq-interference convert --help")
    return depth


def patterns_of(names: Sequence[str], layers: Iterable[int], part: str) -> list[str]:
    """Patterns, as ``--freeze`` takes them, of a part of some layers.

    Attention is the projections (every language's, where they have copies), ffn the two matrices likewise; all is
    every weight of the layer: norms and adapters too.

    Args:
        names: of the model's parameters.
        layers: numbers from 1.
        part: one of :data:`PARTS`.
    """
    wanted = set(layers)
    found = [split for split in map(_split, names) if split and split[1] in wanted]
    if part == "all":
        return list(dict.fromkeys(f"{stem}.{number - 1}.*" for stem, number, _ in found))
    mine = [f"{stem}.{number - 1}.{word}.*" for stem, number, word in found if _PART.get(word) == part]
    return list(dict.fromkeys(mine))


def patterns_below(names: Sequence[str], k: int) -> list[str]:
    """Patterns of everything but the last k layers and the heads of fine-tuning."""
    outside = [n for n in names if not _split(n) and not n.startswith(_HEADS) and n.split(".")[-1] not in _BUFFERS]
    # encoder.sentence_encoder.embed_tokens.*, encoder.lm_head.*
    stems = (name.split(".")[: 3 if ".sentence_encoder." in name else 2] for name in outside)
    return [
        *dict.fromkeys(".".join(stem) + ".*" for stem in stems),
        *patterns_of(names, range(1, depth_of(names) - k + 1), "all"),
    ]


def fitting(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Names that fit one of the patterns."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


# -- plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One run. ``layers``: numbers from 1, of ``last-k`` those that are trained; ``factor``: of ``enlarge``."""

    probe: str
    part: str
    layers: tuple[int, ...]
    seed: int
    factor: Optional[float] = None

    @property
    def scope(self) -> str:
        """``3``, ``1-4``, or nothing for the baseline."""
        return "-".join(map(str, dict.fromkeys((self.layers[0], self.layers[-1])))) if self.layers else ""

    @property
    def name(self) -> str:
        """Of the folder that its seeds lie in."""
        factor = "" if self.factor is None else f"x{self.factor:g}"
        return "-".join(filter(None, (self.probe, self.part, self.scope, factor)))

    @property
    def key(self) -> str:
        return f"{self.name} seed{self.seed}"


def parse_layers(text: str, depth: int) -> list[tuple[int, ...]]:
    """``1,2,1-4`` to layers and groups of layers.

    Raises:
        UsageError: not of this form, or no such layer.
    """
    found = []
    for entry in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", entry)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= depth:
            allowed = f"such as 1,2 or 1-{depth}; 1 is the bottom, {depth} the top"
            raise UsageError("These are no layers.", where="--layers", value=entry, allowed=allowed)
        found.append(tuple(range(first, last + 1)))
    return list(dict.fromkeys(found))


def plan(
    probes: Sequence[str],
    parts: Sequence[str],
    groups: Sequence[tuple[int, ...]],
    ks: Sequence[int],
    seeds: Sequence[int],
    depth: int,
    factor: float,
) -> list[Cell]:
    """Every run: a seed's baseline first; seeds one after the other, so that each is complete as early as can be.

    ``last-k`` knows ``ks`` only, the other probes ``parts`` and ``groups``; ``factor`` is that of ``enlarge``.
    """
    cells = []
    for seed in seeds:
        cells.append(Cell(BASELINE, "", (), seed))
        for probe in probes:
            if probe == LAST:
                cells += [Cell(LAST, "all", tuple(range(depth - k + 1, depth + 1)), seed) for k in ks]
                continue
            times = factor if probe == "enlarge" else None
            cells += [Cell(probe, part, group, seed, times) for part in parts for group in groups]
    return cells


# -- tables -------------------------------------------------------------------------------------------------------


def score_rows(cell: Cell, scores: Mapping[str, tuple[int, float]], sources: Sequence[str], seconds: Any) -> list[Row]:
    """A row a language.

    Args:
        scores: language -> number of examples, score in points.
        sources: languages that were trained on.
        seconds: that the training took; None if unknown.
    """
    own = {"probe": cell.probe, "part": cell.part, "layers": cell.scope, "factor": cell.factor, "seed": cell.seed}
    return [
        {**own, "lang": lang, "role": "source" if lang in sources else "target", "n": n, "score": score}
        | {"seconds": seconds}
        for lang, (n, score) in scores.items()
    ]


def _order(row: Row) -> tuple[Any, ...]:
    first, _, last = str(row["layers"]).partition("-")
    ends = (int(last or first), int(first)) if first else (0, 0)
    probe = -1 if row["probe"] == BASELINE else PROBES.index(row["probe"])
    part = PARTS.index(row["part"]) if row["part"] else -1
    return probe, part, row["factor"] or 0.0, bool(last), ends[0] - ends[1], ends[1], row["seed"]


def run_rows(scores: Iterable[Row]) -> list[Row]:
    """A row a run: source, mean of the targets, mean of all languages (the paper's y axis), source minus targets."""
    runs: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(scores, key=_order):
        runs.setdefault(tuple(row[name] for name in (*KEY, "seed")), []).append(row)
    found = []
    for key, rows in runs.items():
        by_role = {role: [row["score"] for row in rows if row["role"] == role] for role in ("source", "target")}
        source, targets = (statistics.fmean(by_role[role]) for role in ("source", "target"))
        average = statistics.fmean(row["score"] for row in rows)
        values = {"source": source, "targets": targets, "average": average, "gap": source - targets}
        found.append({**dict(zip((*KEY, "seed"), key)), **values, "seconds": rows[0]["seconds"]})
    return found


def difference_rows(runs: Sequence[Row]) -> list[Row]:
    """A row a probe and measure: means over the seeds that the baseline has too, their difference, its 95 % interval.

    ``mean ± t(0.975, n - 1) sd / sqrt(n)`` of the n differences paired by seed; no interval from one pair.
    """
    base = {row["seed"]: row for row in runs if row["probe"] == BASELINE}
    probed: dict[tuple[Any, ...], list[Row]] = {}
    for row in runs:
        if row["probe"] != BASELINE and row["seed"] in base:
            probed.setdefault(tuple(row[name] for name in KEY), []).append(row)
    found = []
    for key, rows in probed.items():
        for measure in MEASURES:
            mine: Values = {(row["seed"], None): row[measure] for row in rows}
            theirs: Values = {(row["seed"], None): base[row["seed"]][measure] for row in rows}
            paired = paired_difference(mine, theirs)
            assert paired is not None
            means = {"baseline": statistics.fmean(theirs.values()), "score": statistics.fmean(mine.values())}
            interval = {"difference": paired.mean, "low": paired.low, "high": paired.high}
            found.append({**dict(zip(KEY, key)), "measure": measure, "runs": paired.n, **means, **interval})
    return found


def tables(scores: Iterable[Row]) -> dict[str, list[Row]]:
    """The tables of the study, from rows of languages."""
    rows = sorted(scores, key=_order)
    runs = run_rows(rows)
    return {"differences": difference_rows(runs), "runs": runs, "scores": rows}


# -- figures ------------------------------------------------------------------------------------------------------

BANDS_FROM = 3  # seeds: two give an interval of 12.7 standard errors, which would hide the curves
_CURVES = {"source": "source", "targets": "targets (mean)", "gap": "gap"}
_WHAT = {"freeze": "frozen", "reinit": "drawn anew", LAST: "only these trained", "enlarge": "rate x{factor}"}
_PARTS = {"all": "all weights", "attention": "attention", "ffn": "feed-forward"}


def _is_group(row: Row) -> bool:
    return "-" in row["layers"] and row["probe"] != LAST


def _place(row: Row) -> int:
    """Number of the layer; of ``last-k`` its k."""
    first, _, last = row["layers"].partition("-")
    return int(last or first) - int(first) + 1 if row["probe"] == LAST else int(first)


def _curve(rows: Sequence[Row], measure: str) -> plots.Curve:
    mine = sorted((row for row in rows if row["measure"] == measure), key=_place)
    ends = [[row[end] if row["runs"] >= BANDS_FROM else None for row in mine] for end in ("low", "high")]
    return plots.Curve([_place(row) for row in mine], [row["difference"] for row in mine], *ends)


def _what(probe: str, factor: Optional[float]) -> str:
    return _WHAT[probe].format(factor=f"{factor or 0:g}")


def _panel(title: str, probe: str, curves: Mapping[str, plots.Curve]) -> plots.Lines:
    xlabel = "last k layers" if probe == LAST else "layer (1 = bottom)"
    return plots.Lines(title, curves, xlabel, "points above baseline", zero=True, integers=True)


def figures(study: Study) -> list[plots.Figure]:
    """Curves over layers for source, targets and gap; for the parts; and groups of layers as a table."""
    rows = [row for row in study.tables["differences"] if not _is_group(row)]
    kinds = list(dict.fromkeys((row["probe"], row["factor"], row["part"]) for row in rows))

    def chosen(*kind: Any) -> list[Row]:
        return [row for row in rows if (row["probe"], row["factor"], row["part"])[: len(kind)] == kind]

    curves = [
        _panel(f"{_what(probe, factor)}: {_PARTS[part]}", probe, {_CURVES[m]: _curve(own, m) for m in _CURVES})
        for probe, factor, part in kinds
        for own in [chosen(probe, factor, part)]
    ]
    parts = [
        _panel(_what(*kind), kind[0], {_PARTS[p]: _curve(chosen(*kind, p), "average") for p in several})
        for kind in dict.fromkeys(kind[:2] for kind in kinds)
        for several in [[part for *own, part in kinds if tuple(own) == kind]]
        if len(several) > 1
    ]
    reading = "The line at 0 is fine-tuning without change; bands are 95 % intervals over seeds (from 3 seeds on). "
    below = "Below it, those weights held what the languages need; above it, they are better left alone or moved more."
    found = [
        plots.Figure("layers-curves", _title(study, rows), reading + "A gap below 0 is a smaller gap.", curves),
        plots.Figure("layers-parts", _title(study, rows) + "\nmean of all languages", reading + below, parts),
    ]
    return [figure for figure in found if figure.panels] + _groups(study)


def _title(study: Study, rows: Sequence[Row]) -> str:
    seeds = sorted({row["runs"] for row in rows}) or [0]
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    many += " seed a point" if seeds == [1] else " seeds a point"
    about = study.settings
    langs = f"{'+'.join(about['train_langs'])} to {', '.join(about['targets'])}"
    return f"Layers of {about['data']}, {langs} ({about['split']})\ndifference to the baseline, {many}"


def _groups(study: Study) -> list[plots.Figure]:
    rows = [row for row in study.tables["differences"] if _is_group(row)]
    values = {(*(row[name] for name in KEY), row["measure"]): row["difference"] for row in rows}
    kinds: dict[tuple[str, Optional[float]], list[tuple[Any, ...]]] = {}
    for key in dict.fromkeys(key[:-1] for key in values):
        kinds.setdefault((key[0], key[3]), []).append(key)
    panels = [
        plots.Heat(
            _what(*kind),
            [f"{_PARTS[part]}, {layers}" for _, part, layers, _ in keys],
            MEASURES,
            [[values[(*key, measure)] for measure in MEASURES] for key in keys],
            "points above baseline",
        )
        for kind, keys in kinds.items()
    ]
    reading = "Each row is a group of layers; cells are mean differences to fine-tuning without change."
    return [plots.Figure("layers-groups", _title(study, rows), reading, panels)] if panels else []
