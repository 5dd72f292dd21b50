"""Kinds of fine-tuned checkpoints: how the files of each are read, predicted, written in the official form and scored.

ner  named entities          f1
pos  parts of speech         accuracy
nli  sentence pairs          accuracy
qa   answers to questions    f1, em
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Optional, Union

from fairseq_interference.data.prepared import find_split
from fairseq_interference.data.readers import ner, nli, pos, qa
from fairseq_interference.data.readers.layouts import LAYOUTS
from fairseq_interference.errors import UsageError
from fairseq_interference.evaluation.score_files import score_ner_files
from fairseq_interference.evaluation.score_nli import score_nli_files
from fairseq_interference.evaluation.score_pos import score_pos_files
from fairseq_interference.evaluation.score_qa import score_qa_files
from fairseq_interference.stages import write_text

PathLike = Union[str, Path]
PREPARED = "prepared"


def meta_of(path: PathLike) -> dict[str, Any]:
    """What preparation noted about a prepared split; empty if it noted nothing."""
    meta = Path(path).with_name(f"{Path(path).stem}.meta.json")
    found: dict[str, Any] = json.loads(meta.read_text(encoding="utf-8")) if meta.is_file() else {}
    return found


class Kind(ABC):
    """One kind.

    Attributes:
        name: as in ``evaluate --task``.
        main: the metric that is printed.
        stable: rules that scores must share to stand in one table.
        formats: layouts that can be read.
    """

    name: ClassVar[str]
    main: ClassVar[str]
    stable: ClassVar[tuple[str, ...]]
    formats: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, path: PathLike, format: str, lang: str, labels: Any) -> Any:
        """A file of examples. ``labels``: of the checkpoint, where it has any."""

    @abstractmethod
    def predict(self, loaded: Any, file: Any, lang: str, **limits: Any) -> list[Any]:
        """One prediction for each example; ``limits`` as in evaluation/predict.py."""

    @abstractmethod
    def write(
        self, output: PathLike, source: PathLike, file: Any, found: list[Any], lang: str, format: Optional[str]
    ) -> None:
        """Write predictions as the official file has them."""

    @abstractmethod
    def score(self, gold: PathLike, predictions: PathLike, lang: str, rules: Optional[str]) -> dict[str, Any]:
        """What ``evaluate --json`` prints."""

    def unit(self, found: list[Any]) -> str:
        """How much was predicted."""
        return f"{len(found)} examples"

    def predict_split(
        self, loaded: Any, data: Path, lang: str, split: str, output: Path, rules: Optional[str] = None
    ) -> Optional[dict[str, Any]]:
        """Predict a prepared split, write it, and score it against its gold file; None for one without labels."""
        source = find_split(data, lang, split)
        file = self.read(source, PREPARED, lang, loaded.task.labels)
        found = self.predict(loaded, file, lang)
        output.parent.mkdir(parents=True, exist_ok=True)
        self.write(output, source, file, found, lang, None)
        gold = source.with_suffix(".gold")
        return self.score(gold if gold.is_file() else source, output, lang, rules) if file.labelled else None

    def no_rules(self, rules: Optional[str]) -> None:
        if rules is not None:
            raise UsageError(f"Scores of {self.name} have no such rules.", where="--rules", value=rules)


class _Words(Kind):
    """Labels for words."""

    reader: ClassVar[Any]

    def read(self, path: PathLike, format: str, lang: str, labels: Any) -> Any:
        return self.reader.read(path, format)

    def predict(self, loaded: Any, file: Any, lang: str, **limits: Any) -> list[Any]:
        from fairseq_interference.evaluation.predict import predict_labels

        return predict_labels(loaded.model, loaded.task, file.words, lang, **limits)

    def unit(self, found: list[Any]) -> str:
        return f"{len(found)} sentences, {sum(map(len, found))} words"

    def write(
        self, output: PathLike, source: PathLike, file: Any, found: list[Any], lang: str, format: Optional[str]
    ) -> None:
        """A prepared split becomes its official file, which differs in nothing but the labels, if that was kept."""
        meta = meta_of(source) if file.format == PREPARED else {}
        gold = Path(source).with_name(str(meta.get("gold", f"{Path(source).stem}.gold")))
        if meta and gold.is_file():
            official = self.reader.read(gold, meta["format"])
            file = official if official.words == file.words else file
        layout = format or (meta.get("format") if file.format == PREPARED else None)
        known = layout is None or layout in LAYOUTS or format is not None
        self.reader.write(output, file, found, format=layout if known else None, lang=lang)


class _Ner(_Words):
    name, main = "ner", "f1"
    reader: ClassVar[Any] = ner
    stable = ("scheme", "average", "label_map")
    formats = ner.FORMATS

    def score(self, gold: PathLike, predictions: PathLike, lang: str, rules: Optional[str]) -> dict[str, Any]:
        return score_ner_files(gold, predictions, scheme=rules or "iob2", lang=lang)


class _Pos(_Words):
    name, main = "pos", "accuracy"
    reader: ClassVar[Any] = pos
    stable = ("tags", "average", "pos_f1_xtreme", "tag_map")
    formats = pos.FORMATS

    def score(self, gold: PathLike, predictions: PathLike, lang: str, rules: Optional[str]) -> dict[str, Any]:
        self.no_rules(rules)
        return score_pos_files(gold, predictions, lang=lang)


class _Nli(Kind):
    name, main = "nli", "accuracy"
    stable = ("labels", "average", "no_majority")
    formats = nli.FORMATS

    def read(self, path: PathLike, format: str, lang: str, labels: Any) -> Any:
        layout, wanted = ("jsonl", None) if format == PREPARED else (format, lang)
        return nli.read(path, layout, lang=wanted, labels=labels)

    def predict(self, loaded: Any, file: Any, lang: str, **limits: Any) -> list[Any]:
        from fairseq_interference.evaluation.predict import predict_pairs

        return predict_pairs(loaded.model, loaded.task, [(p.premise, p.hypothesis) for p in file], lang, **limits)

    def write(
        self, output: PathLike, source: PathLike, file: Any, found: list[Any], lang: str, format: Optional[str]
    ) -> None:
        meta, gold = meta_of(source), Path(source).with_suffix(".gold")
        if meta and gold.is_file():
            official = nli.read(gold, meta["format"], labels=file.label_set)
            same = [(p.premise, p.hypothesis) for p in official] == [(p.premise, p.hypothesis) for p in file]
            file = official if same else file
        nli.write(output, file, found)

    def score(self, gold: PathLike, predictions: PathLike, lang: str, rules: Optional[str]) -> dict[str, Any]:
        self.no_rules(rules)
        return score_nli_files(gold, predictions, lang=lang)


class _Qa(Kind):
    name, main = "qa", "f1"
    stable = ("rules", "rules_lang", "extension", "normal_form", "average", "missing", "both_empty")
    formats = qa.FORMATS

    def read(self, path: PathLike, format: str, lang: str, labels: Any) -> Any:
        return qa.read(path, format, lang=lang)

    def predict(self, loaded: Any, file: Any, lang: str, **limits: Any) -> list[Any]:
        from fairseq_interference.evaluation.predict import predict_answers

        return predict_answers(
            loaded.model, loaded.task, file.questions, lang, question_lang=file.question_lang, **limits
        )

    def write(
        self, output: PathLike, source: PathLike, file: Any, found: list[Any], lang: str, format: Optional[str]
    ) -> None:
        """``{"id": "answer"}`` as the official scorers read it; JSON Lines in the file's order where ids repeat."""
        texts = [answers[0].text if answers else "" for answers in found]
        ids = [question.id for question in file]
        if max(Counter(ids).values()) > 1:
            pairs = ({"id": id, "prediction_text": text} for id, text in zip(ids, texts))
            write_text(output, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
        else:
            write_text(output, json.dumps(dict(zip(ids, texts)), ensure_ascii=False, indent=1) + "\n")

    def score(self, gold: PathLike, predictions: PathLike, lang: str, rules: Optional[str]) -> dict[str, Any]:
        return score_qa_files(gold, predictions, rules=rules or "squad", lang=lang)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (_Ner(), _Pos(), _Nli(), _Qa())}
