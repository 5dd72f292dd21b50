"""Answers to questions, as parts of their contexts, in many languages (SQuAD 1.1 style)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq.tasks import register_task

from fairseq_interference.criterions.xlm_qa import HEAD, QaCriterion
from fairseq_interference.data.qa_examples import QaEncoder, QaExample, collate_questions
from fairseq_interference.data.qa_windows import QaLimits
from fairseq_interference.data.readers import qa
from fairseq_interference.data.readers.questions import Question
from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.metrics_qa import answer_scores
from fairseq_interference.tasks._finetuning import FinetuningTask
from fairseq_interference.tasks._finetuning_config import FinetuningConfig

DEFAULTS = QaLimits()


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class QaConfig(FinetuningConfig):
    max_length: int = field(
        default=DEFAULTS.max_length, metadata={"help": "most tokens of a window, question and special symbols included"}
    )
    stride: int = field(
        default=DEFAULTS.stride,
        metadata={"help": "tokens from the beginning of one window to that of the next (not their overlap)"},
    )
    max_query_length: int = field(
        default=DEFAULTS.max_query_length, metadata={"help": "a question of more tokens loses its end"}
    )
    max_answer_length: int = field(
        default=DEFAULTS.max_answer_length, metadata={"help": "most tokens of an answer that is decoded"}
    )


@register_task("xlm_qa", dataclass=QaConfig)
class QaTask(FinetuningTask):
    """Fine-tune a pretrained encoder to find answers; score other languages with it.

    Dev splits are scored by the rules of SQuAD 1.1 in every language: they choose a checkpoint.
    """

    cfg: QaConfig
    criterion = QaCriterion
    kind = "qa"
    benchmark = "data_prep.benchmarks.qa"
    units = "questions"
    head = f"token_heads.{HEAD}"
    _encoder: Optional[QaEncoder] = None
    has_labels = False
    is_scored = True

    def add_head(self, model: Any) -> None:
        model.register_token_head(HEAD, 2)

    @property
    def limits(self) -> QaLimits:
        """Sizes of windows, for the model that was built."""
        cfg = self.cfg
        length = min(cfg.max_length, self.limit)
        return QaLimits(length, cfg.stride, cfg.max_query_length, cfg.max_answer_length)

    @property
    def encoder(self) -> QaEncoder:
        """Questions to windows, for the model that was built."""
        if self._encoder is None or self._encoder.limits != self.limits:
            self._encoder = QaEncoder(self.pieces, self.limits)
        return self._encoder

    def read_records(self, path: Path) -> list[tuple[Question, Optional[str]]]:
        """Questions, each with its language where that is not the context's."""
        file = qa.read(path, "prepared")
        if not file.labelled:
            raise DataError(
                "This split has no answers: it can be predicted, not trained on or scored.",
                where=path,
                next_step="leave its language out of --eval-langs, or prepare a labelled split",
            )
        return [(question, file.question_lang) for question in file]

    def group_of(self, record: tuple[Question, Optional[str]]) -> str:
        return record[0].context

    def texts(
        self, records: Sequence[tuple[Question, Optional[str]]], lang: str
    ) -> Iterator[tuple[list[str], str, bool]]:
        yield [question.context for question, _ in records], lang, True
        yield [question.question for question, _ in records], records[0][1] or lang, False

    def encode(
        self, record: tuple[Question, Optional[str]], lang: str, lang_id: int, group: int, training: bool
    ) -> list[QaExample]:
        """A question in windows, one example each in training."""
        return self.encoder.examples(*record, lang, lang_id, group, training)

    def collate(self, examples: Sequence[QaExample], ids: Sequence[int]) -> dict[str, Any]:
        return collate_questions(examples, ids, pad=self.dictionary.pad())

    def score(self, example: QaExample, starts: Sequence[Any], ends: Sequence[Any]) -> tuple[float, float]:
        """EM and F1, 0 to 1, of the best answer to a question; scores as in :meth:`QaExample.answers`."""
        assert example.question is not None
        found = example.answers(starts, ends, 1, self.cfg.max_answer_length)
        golds = [answer.text for answer in example.question.answers or ()]
        return answer_scores(found[0].text if found else "", golds, "squad")
