"""The four weight sets of slow-and-fast fine-tuning, from the probes of layers (Guo et al. 2023, sections 3.1, 3.2).

The paper's rule, and what it leaves open (decided here):

S_I   layers whose re-initialisation "obviously" lowers the score: by at least a threshold in points
S_II  those of S_I whose freezing raises it, and of their weights the part that does most (paper: feed-forward)
V_I   all other layers: re-initialisation "improves the performance or drops the performance slightly"
V_II  of V_I the part that gains most at ten times the rate (paper: attention)

The score is the mean over all languages, the source's included, as in the paper's Fig. 3 and Tables 1, 6 (its Table 4
shows that: (84.8 + 14 * 74.0) / 15 = 74.7). The paper wants a drop on each of three tasks; a study has one task.
Where a probe was not run, the paper's own sets stand in, as fractions of the depth: 10/12, 4/12, 2/12.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import yaml

from fairseq_interference.analysis.layers import PARTS
from fairseq_interference.analysis.study import Row
from fairseq_interference.stages import write_text

FILE = "sets.yaml"
MEASURE = "average"
PAPER, PAPER_PART, PROBED = "paper's fractions", "paper's choice", "probes"
Patterns = Callable[[Sequence[int], str], list[str]]


class Evidence:
    """Differences of the mean over languages, by probe, part and layers."""

    def __init__(self, differences: Sequence[Row], factor: float) -> None:
        self._rows = {
            (row["probe"], row["part"], row["layers"]): row
            for row in differences
            if row["measure"] == MEASURE and row["factor"] in (None, factor)
        }

    def layer(self, probe: str, part: str, layer: int) -> Optional[Row]:
        return self._rows.get((probe, part, str(layer)))

    def layers(self, probe: str, layers: Sequence[int], part: str = "all") -> Optional[list[Row]]:
        """Rows of single layers; None unless all are there."""
        rows = [self.layer(probe, part, layer) for layer in layers]
        return [row for row in rows if row is not None] if all(rows) else None

    def part(self, probe: str, layers: Sequence[int]) -> dict[str, float]:
        """Part -> difference: of the group of these layers, or the mean of its layers if not every part has one."""
        scope = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
        group = {part: self._rows.get((probe, part, scope)) for part in PARTS}
        whole = list(layers) == list(range(layers[0], layers[-1] + 1))
        if whole and group["attention"] and group["ffn"]:
            return {part: float(row["difference"]) for part, row in group.items() if row}
        single = {part: self.layers(probe, layers, part) for part in PARTS}
        if not (single["attention"] and single["ffn"]):
            return {}
        return {part: statistics.fmean(row["difference"] for row in rows) for part, rows in single.items() if rows}


def fractions(depth: int) -> dict[str, list[int]]:
    """The paper's sets of twelve layers at another depth: bottom 10/12, bottom 4/12, top 2/12; each at least one."""
    top, slow = max(1, round(depth * 2 / 12)), max(1, round(depth * 4 / 12))
    below = list(range(1, depth - top + 1))
    return {"S_I": below, "S_II": below[:slow], "V_I": list(range(depth - top + 1, depth + 1))}


def suggest(
    differences: Sequence[Row], depth: int, patterns: Patterns, threshold: float, factor: float
) -> dict[str, Any]:
    """The four sets, each with where it comes from.

    Args:
        differences: the study's table.
        depth: number of layers.
        patterns: ``patterns(layers, part)`` -> name patterns of weights.
        threshold: an obvious drop, in points.
        factor: of the ``enlarge`` runs to look at.
    """
    evidence, paper = Evidence(differences, factor), fractions(depth)
    drawn = evidence.layers("reinit", range(1, depth + 1))
    if drawn is None:
        slow, fast, source = paper["S_I"], paper["V_I"], PAPER
    else:
        slow = [int(row["layers"]) for row in drawn if row["difference"] <= -threshold]
        fast, source = [layer for layer in range(1, depth + 1) if layer not in slow], PROBED
    frozen = evidence.layers("freeze", slow)
    if frozen is None:
        kept, kept_source = [layer for layer in paper["S_II"] if layer in slow], PAPER
    else:
        kept, kept_source = [int(row["layers"]) for row in frozen if row["difference"] > 0], PROBED
    sets = {
        "S_I": _set(slow, "all", source, "all weights", drawn, patterns),
        "S_II": _set(kept, *_best(evidence, "freeze", kept, "ffn"), frozen, patterns, kept_source),
        "V_I": _set(fast, "all", source, "all weights", drawn, patterns),
        "V_II": _set(fast, *_best(evidence, "enlarge", fast, "attention"), drawn, patterns, source),
    }
    return {"score": "mean of all languages, points", "obvious_drop": threshold, "enlarged_by": factor, "sets": sets}


def _best(evidence: Evidence, probe: str, layers: Sequence[int], default: str) -> tuple[str, str, Any]:
    """Part of some layers with the highest difference; where that comes from; all parts' differences."""
    found = evidence.part(probe, layers) if layers else {}
    if not found:
        return default, PAPER_PART, None
    return max(found, key=lambda part: found[part]), PROBED, found


def _set(
    layers: Sequence[int],
    part: str,
    part_from: str,
    parts: Any,
    rows: Optional[Sequence[Row]],
    patterns: Patterns,
    layers_from: Optional[str] = None,
) -> dict[str, Any]:
    whole = layers_from is None
    shown = ("probe", "layers", "difference", "low", "high", "runs")
    found: dict[str, Any] = {"layers": list(layers), "part": part, "patterns": patterns(layers, part)}
    found["layers_from"] = part_from if whole else layers_from
    found["layers_evidence"] = None if rows is None else [{name: row[name] for name in shown} for row in rows]
    if not whole:
        found["part_from"], found["part_evidence"] = part_from, parts
    if not layers:
        found["note"] = "no layer qualifies"
    return found


_HEADER = """\
# Weight sets of slow-and-fast fine-tuning (Guo et al. 2023), suggested by probes of layers. Layers: 1 = bottom.
# S_I: re-initialising the layer lowers the score by obvious_drop points or more; V_I: all other layers.
# S_II: layers of S_I whose freezing raises the score, and the part of them whose freezing raises it most.
# V_II: the part of V_I that gains most at enlarged_by times the rate.
# "{paper}", "{part}": that probe was not run; bottom 10/12, bottom 4/12 feed-forward, top 2/12, its attention.
# A difference whose interval (low, high) holds 0 may be chance; the rule looks at the mean.
"""


def write_sets(path: Path, found: dict[str, Any], about: dict[str, Any]) -> Path:
    """Write ``sets.yaml``; ``about`` says what was probed."""
    text = yaml.safe_dump({"schema": 1, **about, **found}, sort_keys=False, allow_unicode=True, width=110)
    write_text(path, _HEADER.format(paper=PAPER, part=PAPER_PART) + text)
    return path
