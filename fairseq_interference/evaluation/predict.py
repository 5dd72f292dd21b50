"""A checkpoint's labels for words: exactly one per word, whatever the word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from fairseq.utils import move_to_cuda

from fairseq_interference.data.tagging import batches_of, collate, make_examples

HEAD = "tagging"
MAX_TOKENS = 8192


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
    device = next(model.parameters()).device
    model.eval()
    order = sorted(range(len(examples)), key=lambda index: examples[index].length)
    for batch in batches_of(order, examples, max_tokens, batch_size):
        sample = collate([examples[index] for index in batch], task.dictionary.pad())
        if device.type == "cuda":
            sample = move_to_cuda(sample, device)
        logits, _ = model(**sample["net_input"], token_head_name=HEAD)  # B x T x labels
        words_of = sample["words"]
        found = logits[words_of["row"], words_of["column"]].argmax(dim=-1).tolist()
        first = 0
        for index, count in zip(batch, words_of["count"].tolist()):
            labels[numbers[index]] = [task.labels[label] for label in found[first : first + count]]
            first += count
    return labels
