"""What a fine-tuned checkpoint says: a label for every word, one for every pair, answers to every question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import torch
from fairseq.utils import move_to_cuda

from fairseq_interference.criterions import xlm_nli, xlm_qa, xlm_tagging
from fairseq_interference.data.answers import ScoredAnswer
from fairseq_interference.data.examples import batches_of
from fairseq_interference.data.readers.questions import Question
from fairseq_interference.data.sentence_pairs import PairExample
from fairseq_interference.data.tagging import IGNORE, make_examples
from fairseq_interference.errors import CheckpointError

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

MAX_TOKENS = 8192


def _samples(
    model: Any, task: Any, examples: Sequence[Any], max_tokens: Optional[int], batch_size: Optional[int]
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Numbers of examples and their sample, by length, on the model's device, which is in eval mode."""
    device = next(model.parameters()).device
    model.eval()
    order = sorted(range(len(examples)), key=lambda index: examples[index].length)
    for batch in batches_of(order, examples, max_tokens, batch_size):
        sample = task.collate([examples[index] for index in batch], batch)
        yield batch, move_to_cuda(sample, device) if device.type == "cuda" else sample


@torch.no_grad()
def predict_labels(
    model: Any,
    task: Any,
    sentences: Sequence[Sequence[str]],
    lang: str,
    *,
    batch_size: Optional[int] = None,
    max_tokens: Optional[int] = MAX_TOKENS,
) -> list[list[str]]:
    """Labels of each sentence's words.

    Args:
        model: model with a token head ``tagging``, on the device to use.
        task: its ``xlm_tagging`` task.
        sentences: words of each sentence; a sentence may be empty.
        lang: language of all of them.
        batch_size: most sentences in a batch; None for no limit.
        max_tokens: most tokens in a batch, padding counted; a longer sentence is a batch of its own.

    Returns:
        one list per sentence, as long as its words.

    Raises:
        LanguageError: a language that the model cannot route.
    """
    lang_id, encoder = task.lang_id(lang), task.encoder
    examples = []
    numbers = []
    for number, words in enumerate(sentences):
        made = make_examples(encoder.rows(words, lang), None, lang_id, 0, separate=False)
        examples.extend(made)
        numbers.extend([number] * len(made))
    labels: list[list[str]] = [[] for _ in sentences]
    for batch, sample in _samples(model, task, examples, max_tokens, batch_size):
        logits, _ = model(**sample["net_input"], token_head_name=xlm_tagging.HEAD)  # B x T x labels
        words_of = sample["words"]
        found = logits[words_of["row"], words_of["column"]].argmax(dim=-1).tolist()
        first = 0
        for index, count in zip(batch, words_of["count"].tolist()):
            labels[numbers[index]] = [task.labels[label] for label in found[first : first + count]]
            first += count
    return labels


@torch.no_grad()
def predict_pairs(
    model: Any,
    task: Any,
    pairs: Sequence[tuple[str, str]],
    lang: str,
    *,
    batch_size: Optional[int] = None,
    max_tokens: Optional[int] = MAX_TOKENS,
) -> list[str]:
    """The label of each pair.

    Args:
        model: model with a classification head ``nli``. task: its ``xlm_nli`` task.
        pairs: premise and hypothesis.
        lang, batch_size, max_tokens: as in :func:`predict_labels`.
    """
    lang_id, encoder = task.lang_id(lang), task.encoder
    examples = [PairExample([encoder.row(*pair, lang)], IGNORE, lang_id, 0) for pair in pairs]
    labels = [""] * len(pairs)
    for batch, sample in _samples(model, task, examples, max_tokens, batch_size):
        scores, _ = model(**sample["net_input"], classification_head_name=xlm_nli.HEAD)  # B x labels
        for index, label in zip(batch, scores.argmax(dim=-1).tolist()):
            labels[index] = task.labels[label]
    return labels


@torch.no_grad()
def predict_answers(
    model: Any,
    task: Any,
    questions: Sequence[Question],
    lang: str,
    *,
    question_lang: Optional[str] = None,
    n_best: int = 1,
    batch_size: Optional[int] = None,
    max_tokens: Optional[int] = MAX_TOKENS,
) -> list[list[ScoredAnswer]]:
    """The best answers to each question, best first; each is a part of the original context.

    Args:
        model: model with a token head ``qa``. task: its ``xlm_qa`` task.
        lang: language of the contexts. question_lang: of the questions, if it differs.
        n_best: at most so many.
        batch_size, max_tokens: as in :func:`predict_labels`.
    """
    lang_id, encoder = task.lang_id(lang), task.encoder
    examples = [one for q in questions for one in encoder.examples(q, question_lang, lang, lang_id, 0, training=False)]
    answers: list[list[ScoredAnswer]] = [[] for _ in questions]
    for batch, sample in _samples(model, task, examples, max_tokens, batch_size):
        scores = xlm_qa.answer_scores(model, sample["net_input"], task.dictionary.pad()).cpu().numpy()
        first = 0
        for index in batch:
            rows = scores[first : first + len(examples[index].rows)]
            both = rows[..., xlm_qa.START], rows[..., xlm_qa.END]
            answers[index] = examples[index].answers(*both, n_best, task.cfg.max_answer_length)
            first += len(rows)
    return answers


def load_finetuned(checkpoint: Union[str, Path], *, fallback_lang: Optional[str] = None, cpu: bool = False) -> Loaded:
    """Load a fine-tuned checkpoint, on the GPU if there is one.

    Raises:
        CheckpointError: it was not fine-tuned.
    """
    from fairseq_interference import load

    loaded = load(str(checkpoint), **({"fallback_lang": fallback_lang} if fallback_lang else {}))
    if not hasattr(loaded.task, "kind"):
        raise CheckpointError(
            "This checkpoint was not fine-tuned.",
            where=checkpoint,
            value=type(loaded.task).__name__,
            next_step="bash run/finetune_ner.sh --help",
        )
    if torch.cuda.is_available() and not cpu:
        loaded.model.cuda()
    return loaded
