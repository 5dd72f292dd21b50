"""Two files of predictions against one official file: both scores, and the difference by paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_interference.data.readers.lines import PathLike
from fairseq_interference.errors import ScoringError
from fairseq_interference.evaluation import metrics_paired as paired
from fairseq_interference.evaluation.score_files import read_ner_files, score_ner_files
from fairseq_interference.evaluation.score_nli import read_nli_files, score_nli_files
from fairseq_interference.evaluation.score_pos import read_pos_files, score_pos_files
from fairseq_interference.evaluation.score_qa import read_qa_files, score_qa_files

#: metric -> what each example adds to its arguments (N, K), and the metric of the sums
Examples = dict[str, tuple[paired.Numbers, paired.Metric]]


def _ner(
    gold: PathLike, predictions: PathLike, *, scheme: str = "iob2", lang: Optional[str] = None, **how: Any
) -> Examples:
    wanted, given = read_ner_files(gold, predictions, **how)
    return {"f1": (paired.ner_counts(wanted.labels, given.labels, scheme), paired.micro_f1)}


def _pos(gold: PathLike, predictions: PathLike, *, lang: Optional[str] = None, **how: Any) -> Examples:
    wanted, given = read_pos_files(gold, predictions, **how)
    return {"accuracy": (paired.pos_counts(wanted.labels, given.labels), paired.ratio)}


def _nli(gold: PathLike, predictions: PathLike, **how: Any) -> Examples:
    pairs = read_nli_files(gold, predictions, **how).scored
    counts = np.array([(wanted == given, 1) for wanted, given in pairs], dtype=np.float64)
    return {"accuracy": (counts, paired.ratio)}


def _qa(
    gold: PathLike,
    predictions: PathLike,
    *,
    rules: str = "squad",
    lang: Optional[str] = None,
    normal_form: str = "NFC",
) -> Examples:
    read = read_qa_files(gold, predictions)
    golds = [question.answers for question in read.questions]
    em, f1 = paired.qa_counts(golds, read.given, rules, lang, normal_form)
    return {"f1": (f1, paired.ratio), "em": (em, paired.ratio)}


class Task(NamedTuple):
    """How files of a task are scored, what their examples add up to, and what an example is."""

    score: Callable[..., dict[str, Any]]
    examples: Callable[..., Examples]
    unit: str


TASKS = {
    "ner": Task(score_ner_files, _ner, "sentences"),
    "pos": Task(score_pos_files, _pos, "sentences"),
    "nli": Task(score_nli_files, _nli, "pairs"),
    "qa": Task(score_qa_files, _qa, "questions"),
}


def compare_files(
    task: str,
    gold: PathLike,
    predictions: PathLike,
    against: PathLike,
    *,
    resamples: int = 10_000,
    seed: int = 1,
    **how: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score two files of predictions and compare them.

    Args:
        task: ner, pos, nli or qa.
        gold: official file.
        predictions, against: two files of predictions for it.
        resamples, seed: of the bootstrap, see :func:`~.metrics_paired.paired_bootstrap`.
        how: as in ``score_TASK_files``; the same for both files.

    Returns:
        The result of ``predictions``, as ``score_TASK_files`` gives it, with ``paired`` (metric -> see
        :func:`~.metrics_paired.paired_bootstrap`; the main metric first) and ``rules.paired``; and that of ``against``.

    Raises:
        As ``score_TASK_files`` and :func:`~.metrics_paired.paired_bootstrap`; an error in the files names the file.
    """
    paired.check_draws(resamples, seed)
    kind = TASKS[task]
    result, other = (kind.score(gold, file, **how) for file in (predictions, against))
    first, second = (kind.examples(gold, file, **how) for file in (predictions, against))
    try:
        result["paired"] = {
            metric: paired.paired_bootstrap(counts, second[metric][0], value, resamples=resamples, seed=seed)
            for metric, (counts, value) in first.items()
        }
    except ScoringError as error:
        error.where = gold
        raise
    result["rules"]["paired"] = paired.rules_of_draws(resamples, seed, kind.unit)
    return result, other
