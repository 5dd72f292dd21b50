"""Score parts of speech against the official file, word by word, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from fairseq_interference.data.prepared import NO_LABEL
from fairseq_interference.data.readers import pos
from fairseq_interference.data.readers.lines import PathLike
from fairseq_interference.data.readers.sentence import LabelFile
from fairseq_interference.errors import ScoringError
from fairseq_interference.evaluation.metrics import pos_scores
from fairseq_interference.evaluation.score_files import check_words

METRICS = ("accuracy", "macro_f1", "pos_f1_xtreme", "per_tag")


def read_pos_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    format: str = "auto",
    predictions_format: Optional[str] = None,
    tag_map: Optional[Mapping[str, str]] = None,
    repair: bool = True,
) -> tuple[LabelFile, LabelFile]:
    """Both files, with the same words and a tag for each; arguments and errors as in :func:`score_pos_files`."""
    wanted = pos.read(gold, format, repair=repair, tag_map=tag_map)
    given = pos.read(predictions, predictions_format or format, repair=repair, tag_map=tag_map)
    check_words(wanted, given)
    _check_tags(wanted, given)
    return wanted, given


def score_pos_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    format: str = "auto",
    predictions_format: Optional[str] = None,
    lang: Optional[str] = None,
    tag_map: Optional[Mapping[str, str]] = None,
    repair: bool = True,
) -> dict[str, Any]:
    """Score universal parts of speech of a pair of files.

    Args:
        gold: official file, any format of readers/pos.py.
        predictions: the same words in the same sentences, one tag each; its layout may differ.
        format: of the gold file.
        predictions_format: of the predictions; None is ``format``.
        lang: language, for the result alone.
        tag_map: tag of a file -> one of the 17, or ``_`` for words that are not scored; applied to both.
        repair: take odd lines and count them.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~fairseq_interference.evaluation.metrics.pos_scores`.

    Raises:
        DataError: a file that cannot be read, or a tag outside the 17.
        ScoringError: different words, a word without a predicted tag, no gold tags; names both lines.
    """
    how: dict[str, Any] = {"format": format, "predictions_format": predictions_format}
    wanted, given = read_pos_files(gold, predictions, **how, tag_map=tag_map, repair=repair)
    scores = pos_scores(wanted.labels, given.labels)
    return {
        "task": "pos",
        "lang": lang,
        "n": scores["n"],
        "rules": {
            "tags": "UPOS of UD v2",
            "average": "over words; macro_f1 over the tags of the gold file",
            "pos_f1_xtreme": "spans of seqeval 1.x, default mode, micro",
            "formats": {"gold": wanted.format, "predictions": given.format},
            "repairs": {"gold": wanted.repairs, "predictions": given.repairs},
            "tag_map": dict(tag_map) if tag_map else None,
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": scores["counts"],
    }


def _check_tags(gold: LabelFile, predictions: LabelFile) -> None:
    for number, (wanted, given) in enumerate(zip(gold, predictions), 1):
        for word, (golden, tag) in enumerate(zip(wanted.labels, given.labels)):
            if tag == NO_LABEL != golden:
                raise ScoringError(
                    f"There is no predicted tag for sentence {number}, word {word + 1}.",
                    where=f"{predictions.path}:{given.lines[word]}",
                    value=tag,
                    allowed=" ".join(pos.TAGS),
                )
