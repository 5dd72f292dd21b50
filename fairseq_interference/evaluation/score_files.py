"""Score a file of predictions against the official file, word by word, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from fairseq_interference.data.readers.labels import LabelMap, to_iob2
from fairseq_interference.data.readers.lines import PathLike
from fairseq_interference.data.readers.ner import NerFile, Sentence, read
from fairseq_interference.errors import ScoringError
from fairseq_interference.evaluation.metrics import check_scheme, ner_scores

METRICS = ("f1", "precision", "recall", "accuracy", "per_type")


def read_ner_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    format: str = "auto",
    predictions_format: Optional[str] = None,
    label_map: Optional[LabelMap] = None,
    repair: bool = True,
) -> tuple[NerFile, NerFile]:
    """Both files, with the same words; arguments and errors as in :func:`score_ner_files`."""
    wanted = read(gold, format, repair=repair, label_map=label_map)
    given = read(predictions, predictions_format or format, repair=repair, label_map=label_map)
    check_words(wanted, given)
    return wanted, given


def score_ner_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    scheme: str = "iob2",
    format: str = "auto",
    predictions_format: Optional[str] = None,
    lang: Optional[str] = None,
    label_map: Optional[LabelMap] = None,
    repair: bool = True,
) -> dict[str, Any]:
    """Score named entities of a pair of files.

    Args:
        gold: official file, any format of readers/ner.py.
        predictions: a file with the same words in the same sentences; its layout may differ.
        scheme: how entities are read from labels, see evaluation/metrics.py.
        format: of the gold file.
        predictions_format: of the predictions; None is ``format``.
        lang: language; None takes what the gold file says.
        label_map: applied to both files.
        repair: repair odd labels and count it.

    Returns:
        ``task lang n rules metrics counts``: ``metrics`` between 0 and 1, ``rules`` all that the score depends on.

    Raises:
        DataError: a file that cannot be read.
        ScoringError: no labels, or different words; names the sentence and both words.
    """
    check_scheme(scheme)
    how: dict[str, Any] = {"format": format, "predictions_format": predictions_format}
    wanted, given = read_ner_files(gold, predictions, **how, label_map=label_map, repair=repair)
    scores = ner_scores(wanted.labels, given.labels, scheme)
    return {
        "task": "ner",
        "lang": lang or wanted[0].lang,
        "n": scores["n"],
        "rules": {
            "scheme": scheme,
            "average": "micro over entities",
            "formats": {"gold": wanted.format, "predictions": given.format},
            "repairs": {"gold": wanted.repairs, "predictions": given.repairs},
            "i_without_b": {"gold": _orphans(wanted), "predictions": _orphans(given)},
            "label_map": None if label_map is None else label_map.as_settings(),
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": scores["counts"],
    }


def _orphans(file: NerFile) -> int:
    return sum(to_iob2(labels)[1] for labels in file.labels)


def check_words(gold: NerFile, predictions: NerFile) -> None:
    """Raise unless both files are labelled and hold the same words in the same sentences.

    Raises:
        ScoringError: names the sentence (from 1), both words and both lines.
    """
    for file, role in ((gold, "gold"), (predictions, "predictions")):
        if not file.labelled:
            raise ScoringError(f"The {role} file has no labels.", where=file.path, value=f"layout {file.format}")
    for number, (wanted, given) in enumerate(zip(gold, predictions), 1):
        if wanted.words != given.words:
            raise _mismatch(gold.path, predictions.path, number, wanted, given)
    if len(gold) != len(predictions):
        longer = max(gold, predictions, key=len)
        number = min(len(gold), len(predictions)) + 1
        extra = longer[number - 1]
        raise ScoringError(
            f"{'The predictions end' if longer is gold else 'The gold file ends'} before sentence {number}.",
            where=f"{longer.path}:{extra.line}, sentence {number}: {' '.join(extra.words[:8])}",
            value=f"{len(gold)} gold sentences, {len(predictions)} predicted",
            allowed="one prediction for every sentence of the gold file",
        )


def _mismatch(gold: str, predictions: str, number: int, wanted: Sentence, given: Sentence) -> ScoringError:
    shorter = min(len(wanted.words), len(given.words))
    pairs = zip(wanted.words, given.words)
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)
    return ScoringError(
        f"The words of sentence {number} differ at word {place + 1}.",
        where=f"gold {_place(gold, wanted, place)}, predictions {_place(predictions, given, place)}",
        value=f"gold {_word(wanted, place)}, predicted {_word(given, place)} "
        f"({len(wanted.words)} and {len(given.words)} words in the sentence)",
        allowed="exactly the words of the gold file, in its sentences",
    )


def _place(path: str, sentence: Sentence, place: int) -> str:
    return f"{Path(path).name}:{sentence.lines[place] if place < len(sentence.lines) else sentence.lines[-1] + 1}"


def _word(sentence: Sentence, place: int) -> str:
    return repr(sentence.words[place]) if place < len(sentence.words) else "nothing (end of the sentence)"
