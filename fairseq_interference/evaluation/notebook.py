"""What ``load(path)`` gives can be asked: vectors, guesses, labels, answers. One input or a list; batches are inside.

A language is always named: nothing here has a default language.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, Union, cast, overload

from fairseq_interference.errors import CheckpointError, UsageError
from fairseq_interference.languages import check_code

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_interference.data.answers import ScoredAnswer
    from fairseq_interference.evaluation.fill_mask import Fill
    from fairseq_interference.loading import Loaded

One = TypeVar("One")
PRETRAINED = "mlm"
#: kind of a checkpoint -> what it is called, and the command that makes one
KINDS = {
    PRETRAINED: ("a pre-trained masked language model", "bash run/pretrain.sh --help"),
    "ner": ("fine-tuned for named entities", "bash run/finetune_ner.sh --help"),
    "pos": ("fine-tuned for parts of speech", "bash run/finetune_pos.sh --help"),
    "nli": ("fine-tuned for sentence pairs", "bash run/finetune_xnli.sh --help"),
    "qa": ("fine-tuned for questions", "bash run/finetune_qa.sh --help"),
}


class Methods:
    """Methods of :class:`~fairseq_interference.loading.Loaded`. The model is used where it is: on its device, in its
    precision, in eval mode, without gradients."""

    model: Any
    task: Any
    cfg: Any
    path: Optional[Path]

    @overload
    def encode(self, texts: str, lang: str, layer: int = -1, pool: Optional[str] = None) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def encode(self, texts: Sequence[str], lang: str, layer: int = -1, pool: None = None) -> list[Tensor]: ...
    @overload
    def encode(self, texts: Sequence[str], lang: str, layer: int = -1, *, pool: Literal["mean"]) -> Tensor: ...
    def encode(
        self, texts: Union[str, Sequence[str]], lang: str, layer: int = -1, pool: Optional[str] = None
    ) -> Union[Tensor, list[Tensor]]:
        """Hidden states of every sub-word piece; ``<s>`` and ``</s>`` are read, but left out.

        Args:
            texts: a raw text, or a list of them; one that is longer than the model is read in equal parts.
            lang: their language.
            layer: 0 for the embeddings, k for the k-th layer, -1 for the last one.
            pool: ``"mean"`` over the pieces of a text (zeros for a text without any), or None.

        Returns:
            (T, C) for a text, a list of these for a list; with ``pool`` (C,) and (N, C). On the CPU.

        Raises:
            LanguageError: a language that the model cannot route. TokenizerError: no tokenizer.
            UsageError: no such layer, an unknown ``pool``, or texts that are none.
        """
        import torch

        from fairseq_interference.evaluation import hidden

        loaded = cast("Loaded", self)
        if pool not in (None, "mean"):
            raise UsageError("Unknown pooling.", where="pool", value=pool, allowed='"mean" or None')
        many = _texts(texts, "texts")
        number = hidden.layer_number(layer, hidden.layers_of(loaded))
        where, tokenizer = hidden.route(loaded, _code(lang)), hidden.tokenizer_of(loaded)
        ids = [[loaded.dictionary.index(piece) for piece in tokenizer.encode_line(text, lang)] for text in many]
        found = hidden.hidden_states(loaded, ids, where.lang_id, [number], mean=pool is not None)
        states = [state[0] for state in found]
        if isinstance(texts, str):
            return states[0]
        if pool is None:
            return states
        return torch.stack(states) if states else torch.zeros(0, hidden.width_of(loaded))

    @overload
    def fill_mask(self, text: str, lang: str, top_k: int = 5) -> list[Fill]: ...  # type: ignore[overload-overlap]
    @overload
    def fill_mask(self, text: Sequence[str], lang: str, top_k: int = 5) -> list[list[Fill]]: ...
    def fill_mask(
        self, text: Union[str, Sequence[str]], lang: str, top_k: int = 5
    ) -> Union[list[Fill], list[list[Fill]]]:
        """The best sub-word pieces for every ``<mask>`` in a text.

        Args:
            text: raw text with ``<mask>`` in it, or a list of them.
            lang: their language.
            top_k: how many for each mask.

        Returns:
            ``Fill(piece, probability, text, mask)``, best first; one mask after the other where there are several.

        Raises:
            CheckpointError: not a pre-trained model.
            UsageError, LanguageError, DictionaryError, TokenizerError: see :func:`~.fill_mask.fill_masks`.
        """
        from fairseq_interference.evaluation.fill_mask import fill_masks

        self._must_be("fill_mask", PRETRAINED)
        found = fill_masks(cast("Loaded", self), _texts(text, "text"), _code(lang), top_k)
        return found[0] if isinstance(text, str) else found

    @overload
    def tag(self, words: Sequence[str], lang: str) -> list[str]: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, words: Sequence[Sequence[str]], lang: str) -> list[list[str]]: ...
    def tag(self, words: Union[Sequence[str], Sequence[Sequence[str]]], lang: str) -> Union[list[str], list[list[str]]]:
        """A label for every word: entities or parts of speech, as the checkpoint was fine-tuned.

        Args:
            words: the words of a sentence, or a list of sentences. ``[]`` is a sentence without words.
            lang: their language.

        Returns:
            list of labels, or a list of these.

        Raises:
            CheckpointError: a checkpoint that labels no words. UsageError: a text that is not cut into words.
            LanguageError: a language that the model cannot route.
        """
        from fairseq_interference.evaluation.predict import predict_labels

        self._must_be("tag", "ner", "pos")
        if isinstance(words, str) or not isinstance(words, Sequence):
            what = "A sentence is a list of words."
            raise UsageError(what, where="words", value=repr(words)[:80], next_step="words.split()")
        single = all(isinstance(word, str) for word in words)
        sentences = [_texts(one, "words", sentence=True) for one in ([words] if single else words)]
        found = predict_labels(self.model, self.task, sentences, _code(lang))
        return found[0] if single else found

    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, lang: str, question_lang: Optional[str] = None
    ) -> ScoredAnswer: ...
    @overload
    def answer(
        self,
        question: Sequence[str],
        context: Union[str, Sequence[str]],
        lang: str,
        question_lang: Optional[str] = None,
    ) -> list[ScoredAnswer]: ...
    def answer(
        self,
        question: Union[str, Sequence[str]],
        context: Union[str, Sequence[str]],
        lang: str,
        question_lang: Optional[str] = None,
    ) -> Union[ScoredAnswer, list[ScoredAnswer]]:
        """The part of a context that answers a question.

        Args:
            question: a question, or a list of them.
            context: its context of any length; for a list one context for all of them, or one each.
            lang: language of the contexts.
            question_lang: that of the questions, if it differs.

        Returns:
            ``ScoredAnswer(text, start, end, score)`` with ``text == context[start:end]``, or a list of these.

        Raises:
            CheckpointError: a checkpoint that answers nothing. DataError: a context without text.
            UsageError: numbers of questions and contexts differ. LanguageError: see :meth:`tag`.
        """
        from fairseq_interference.data.answers import ScoredAnswer
        from fairseq_interference.data.readers.questions import Question
        from fairseq_interference.evaluation.predict import predict_answers

        self._must_be("answer", "qa")
        asked = [
            Question(str(number), text, one, None, None)
            for number, (one, text) in enumerate(_paired(question, context, ("question", "context")))
        ]
        theirs = None if question_lang is None else _code(question_lang, "question_lang")
        found = predict_answers(self.model, self.task, asked, _code(lang), question_lang=theirs)
        best = [answers[0] if answers else ScoredAnswer("", 0, 0, float("-inf")) for answers in found]
        return best[0] if isinstance(question, str) else best

    @overload
    def classify(self, a: str, b: str, lang: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, a: Sequence[str], b: Union[str, Sequence[str]], lang: str) -> list[str]: ...
    def classify(self, a: Union[str, Sequence[str]], b: Union[str, Sequence[str]], lang: str) -> Union[str, list[str]]:
        """The label of a pair of sentences, such as ``entailment``.

        Args:
            a: first sentence (premise), or a list of them.
            b: second sentence (hypothesis); for a list one for all of them, or one each.
            lang: their language.

        Returns:
            a label of the checkpoint, or a list of these.

        Raises:
            CheckpointError: a checkpoint that labels no pairs.
            UsageError: numbers of sentences differ. LanguageError: see :meth:`tag`.
        """
        from fairseq_interference.evaluation.predict import predict_pairs

        self._must_be("classify", "nli")
        found = predict_pairs(self.model, self.task, _paired(a, b, ("a", "b")), _code(lang))
        return found[0] if isinstance(a, str) else found

    def _must_be(self, method: str, *kinds: str) -> None:
        """Raise :class:`CheckpointError` unless the checkpoint is of one of these kinds."""
        kind = getattr(self.task, "kind", PRETRAINED)
        if kind in kinds:
            return
        advice = f"make one: {KINDS[kinds[0]][1]}"
        start = _option(_option(self.cfg, "checkpoint"), "finetune_from_model")
        if kinds == (PRETRAINED,) and start:
            advice = f"load the checkpoint that this one was fine-tuned from: {start}"
        raise CheckpointError(
            f"This checkpoint cannot {method}.",
            where=self.path,
            value=KINDS[kind][0] if kind in KINDS else kind,
            allowed=" or ".join(KINDS[name][0] for name in kinds),
            next_step=advice,
        )


def _option(section: Any, name: str) -> Any:
    return getattr(section, name, None)


def _code(lang: str, where: str = "lang") -> str:
    """``lang``, if it is a language code."""
    return check_code(lang if isinstance(lang, str) else repr(lang), where)


def _texts(given: Any, where: str, sentence: bool = False) -> list[str]:
    """One text or several as a list; of a ``sentence`` the words, which are given as several.

    Raises:
        UsageError: something in it is no text.
    """
    many = [given] if isinstance(given, str) and not sentence else given
    if isinstance(many, str) or not isinstance(many, Iterable):
        raise UsageError("A sentence is a list of words.", where=where, value=repr(many)[:80], allowed="lists of str")
    many = list(many)
    for text in many:
        if not isinstance(text, str):
            raise UsageError("This is no text.", where=where, value=repr(text)[:80], allowed="str, or a list of str")
    return many


def _paired(
    first: Union[str, Sequence[str]], second: Union[str, Sequence[str]], names: tuple[str, str]
) -> list[tuple[str, str]]:
    """Pairs of two arguments; a single second one goes with all of the first.

    Raises:
        UsageError: their numbers differ, or something is no text.
    """
    ones, others = _texts(first, names[0]), _texts(second, names[1])
    if isinstance(second, str):
        others *= len(ones)
    if len(ones) != len(others) or (isinstance(first, str) and not isinstance(second, str)):
        what = f"{names[0]} and {names[1]} go together: two texts, or two lists of one length."
        raise UsageError(what, where=", ".join(names), value=f"{len(ones)} and {len(others)}")
    return list(zip(ones, others))
