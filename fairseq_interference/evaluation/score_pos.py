"""Score parts of speech in CoNLL-U against the official file, word by word, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines, shown
from fairseq_interference.errors import DataError, ScoringError
from fairseq_interference.evaluation.metrics import UNTAGGED, UPOS, pos_scores
from fairseq_interference.evaluation.score_reading import Item, check_items

METRICS = ("accuracy", "macro_f1", "pos_f1_xtreme", "per_tag")
_COLUMNS = 10
_WORD = re.compile(r"[1-9][0-9]*")
_NO_WORD = re.compile(r"[0-9]+(?:-|\.)[0-9]+")


class PosFile(NamedTuple):
    """Words of each sentence with tag and line, and how many ranges and empty nodes were passed over."""

    sentences: list[list[Item]]
    not_words: int


def read_conllu(path: PathLike, tag_map: Optional[Mapping[str, str]] = None) -> PosFile:
    """Words and universal tags of a CoNLL-U file.

    Ranges (``1-2``) and empty nodes (``8.1``) are no words; forms may hold blanks; only LF ends a line.

    Args:
        path: ten columns between TABs, sentences between blank lines.
        tag_map: tag as it stands in the file -> one of the 17, or ``_`` for words that are not scored.

    Raises:
        DataError: other columns, an id that is none, a tag outside the 17 (names file:line), no words.
    """
    sentences: list[list[Item]] = [[]]
    not_words = 0
    for number, line in enumerate(read_lines(path), 1):
        text = bare(line, number)
        if is_blank(text):
            sentences.append([])
            continue
        if text.startswith("#"):  # a form may begin with it, a row begins with an id
            continue
        columns, where = text.split("\t"), f"{path}:{number}"
        if len(columns) != _COLUMNS:
            allowed = f"{_COLUMNS} columns between TABs (CoNLL-U)"
            raise DataError("This is no row of CoNLL-U.", where=where, value=shown(text), allowed=allowed)
        if _NO_WORD.fullmatch(columns[0]):
            not_words += 1
        elif _WORD.fullmatch(columns[0]):
            tag = _checked((tag_map or {}).get(columns[3], columns[3]), where)
            sentences[-1].append(Item(tag, number, (columns[1],)))
        else:
            raise DataError("This is no word id.", where=where, value=columns[0], allowed="1, 1-2 or 1.1")
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise DataError("The file has no words.", where=path)
    return PosFile(found, not_words)


def _checked(tag: str, where: str) -> str:
    if tag in UPOS or tag == UNTAGGED:
        return tag
    raise DataError(
        "This tag is no universal part of speech (UD v2).",
        where=where,
        value=tag,
        allowed=" ".join((*UPOS, UNTAGGED)),
        next_step=f"map it, for example --tag-map {'CONJ=CCONJ' if tag == 'CONJ' else f'{tag}=X'}",
    )


def score_pos_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    lang: Optional[str] = None,
    tag_map: Optional[Mapping[str, str]] = None,
) -> dict[str, Any]:
    """Score universal parts of speech of a pair of CoNLL-U files.

    Args:
        gold: official file.
        predictions: the same words in the same sentences, one tag each.
        lang: language, for the result alone.
        tag_map: applied to both files, see :func:`read_conllu`.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~fairseq_interference.evaluation.metrics.pos_scores`.

    Raises:
        DataError: a file that cannot be read, or a tag outside the 17.
        ScoringError: different words, a word without a predicted tag, no gold tags; names both lines.
    """
    wanted, given = read_conllu(gold, tag_map), read_conllu(predictions, tag_map)
    check_words(wanted, given, (str(gold), str(predictions)))
    scores = pos_scores(_tags(wanted), _tags(given))
    return {
        "task": "pos",
        "lang": lang,
        "n": scores["n"],
        "rules": {
            "tags": "UPOS of UD v2",
            "average": "over words; macro_f1 over the tags of the gold file",
            "pos_f1_xtreme": "spans of seqeval 1.x, default mode, micro",
            "not_words": {"gold": wanted.not_words, "predictions": given.not_words},
            "tag_map": dict(tag_map) if tag_map else None,
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": scores["counts"],
    }


def _tags(file: PosFile) -> list[list[str]]:
    return [[word.value for word in sentence] for sentence in file.sentences]


def check_words(gold: PosFile, predictions: PosFile, files: tuple[str, str]) -> None:
    """Raise unless both files hold the same words in the same sentences, each word with a tag where gold has one.

    Raises:
        ScoringError: names sentence, word, both lines and both words.
    """
    for number, (wanted, given) in enumerate(zip(gold.sentences, predictions.sentences), 1):
        unit = f"sentence {number}, word"
        check_items(wanted, given, files, unit)
        for word, (golden, item) in enumerate(zip(wanted, given), 1):
            if item.value == UNTAGGED != golden.value:
                what = f"There is no predicted tag for {unit} {word}."
                raise ScoringError(what, where=f"{files[1]}:{item.line}", value=UNTAGGED, allowed=" ".join(UPOS))
    firsts = [[sentence[0]._replace(key=None) for sentence in file.sentences] for file in (gold, predictions)]
    check_items(firsts[0], firsts[1], files, "sentence")
