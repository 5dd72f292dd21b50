"""A checkpoint's labels for words: exactly one per word, whatever the word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import torch
from fairseq.utils import move_to_cuda

from fairseq_interference.data.examples import batches_of
from fairseq_interference.data.readers.layouts import LAYOUTS
from fairseq_interference.data.readers.ner import NerFile, read
from fairseq_interference.data.tagging import collate, make_examples
from fairseq_interference.errors import CheckpointError

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

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
        sample = collate([examples[index] for index in batch], pad=task.dictionary.pad())
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


def load_tagger(checkpoint: Union[str, Path], *, fallback_lang: Optional[str] = None, cpu: bool = False) -> Loaded:
    """Load a fine-tuned checkpoint, on the GPU if there is one.

    Raises:
        CheckpointError: it has no head ``tagging``.
    """
    from fairseq_interference import load

    loaded = load(str(checkpoint), **({"fallback_lang": fallback_lang} if fallback_lang else {}))
    if not hasattr(loaded.task, "labels"):
        raise CheckpointError(
            "This checkpoint was not fine-tuned to label words.",
            where=checkpoint,
            value=type(loaded.task).__name__,
            next_step="bash run/finetune_ner.sh --help",
        )
    if torch.cuda.is_available() and not cpu:
        loaded.model.cuda()
    return loaded


def _meta(path: Path) -> dict[str, Any]:
    """What preparation noted about a prepared split; empty if it noted nothing."""
    meta = path.with_name(f"{path.stem}.meta.json")
    found: dict[str, Any] = json.loads(meta.read_text(encoding="utf-8")) if meta.is_file() else {}
    return found


def written_format(path: Union[str, Path], sentences: NerFile) -> Optional[str]:
    """Layout of predictions for ``path``: None (as it was read), or for a prepared split the official file's layout."""
    found: Optional[str] = _meta(Path(path)).get("format") if sentences.format == "prepared" else None
    return found if found in LAYOUTS else None


def official(path: Union[str, Path], sentences: NerFile) -> NerFile:
    """The official file that a prepared split came from, if it was kept beside it; else ``sentences`` as they are.

    Written with other labels it differs from the official file in nothing but these.
    """
    path = Path(path)
    meta = _meta(path) if sentences.format == "prepared" else {}
    gold = path.with_name(str(meta.get("gold", f"{path.stem}.gold")))
    if meta and gold.is_file():
        found = read(gold, meta["format"])
        if found.words == sentences.words:
            return found
    return sentences
