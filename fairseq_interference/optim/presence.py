"""Languages that are absent from an update do not move: neither their weights nor their optimizer moments.

``legacy_ddp`` and the half-precision wrappers turn "no gradient" into a gradient of zero, and Adam then still moves
the weights by momentum and weight decay. Tasks therefore note which languages had training tokens in an update, and
take the gradient of all others away just before the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import HostError, UsageError
from fairseq_interference.optim import parts


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer inside a precision wrapper, or itself."""
    return getattr(optimizer, "fp32_optimizer", optimizer)


def has_language_parts(parameters: Iterable[Any]) -> bool:
    """Whether any trainable parameter belongs to one language."""
    return any(parameter.requires_grad and language_of(parameter) is not None for parameter in parameters)


def check_optimizer(optimizer: Any) -> None:
    """Refuse wrappers that cannot tell the parameters of one language from those of another.

    Raises:
        HostError: flattened or memory-efficient half precision, with the remedy.
    """
    name = type(optimizer).__name__
    if name.startswith("MemoryEfficient"):
        raise HostError(
            "Memory-efficient half precision keeps no masters: language-specific parts cannot stand still in it.",
            where="--memory-efficient-fp16/--memory-efficient-bf16",
            next_step="leave the flag out; use --fp16 --fp16-no-flatten-grads, --bf16 or --amp",
        )
    if getattr(optimizer, "has_flat_params", False):
        raise HostError(
            "Flattened half precision melts all parameters into one: language-specific parts cannot stand still in it.",
            where="--fp16",
            next_step="add --fp16-no-flatten-grads (or use --bf16 or --amp)",
        )


class LanguagePresence:
    """Which languages had training tokens in the current update, on this worker.

    Args:
        languages: codes; ids are positions.
    """

    def __init__(self, languages: Iterable[str]) -> None:
        self.codes = list(languages)
        self.tokens: Optional[Tensor] = None  # (L,) training tokens of each language, on the model's device
        self._trainable: list[Any] = []
        self._specific: list[Any] = []
        self._model: Any = None

    def watch(self, model: Any, optimizer: Any) -> None:
        """Look up the parameters of a model."""
        if model is self._model:
            return
        self._model = model
        self._trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._specific = [parameter for parameter in self._trainable if language_of(parameter) is not None]
        if self._specific:
            check_optimizer(optimizer)

    def is_new_update(self) -> bool:
        """Whether no parameter has a gradient yet."""
        return all(parameter.grad is None for parameter in self._trainable)

    def mark(self, model: Any, optimizer: Any, lang_id: Tensor, tokens: Tensor) -> None:
        """Note the languages of a training micro-batch; call before its backward pass.

        A micro-batch that finds no gradient anywhere begins a new update: what an update that was given up
        (overflow, out of memory) had noted is forgotten.

        Args:
            lang_id: language of each row, ``(B,)``.
            tokens: training tokens of each row, ``(B,)``.
        """
        self.watch(model, optimizer)
        if not self._specific:
            return
        if self.tokens is None or self.is_new_update():
            self.tokens = torch.zeros(len(self.codes), device=lang_id.device)
        self.tokens.index_add_(0, lang_id, tokens.to(self.tokens))

    def present(self, model: Any) -> Optional[set[str]]:
        """Languages present on any worker in this update (a collective); None if no part is language-specific."""
        self._model = self._model or model
        if not self._specific:
            return None
        device = self._specific[0].device
        tokens = torch.zeros(len(self.codes), device=device) if self.tokens is None else self.tokens.to(device)
        group = getattr(model, "process_group", None)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(tokens, group=group)
        return {code for code, number in zip(self.codes, tokens.tolist()) if number > 0}

    def silence_absent(self, optimizer: Any, model: Any) -> Optional[set[str]]:
        """Take the gradients of absent languages away, also from fp32 masters; returns the languages present."""
        present = self.present(model)
        self.tokens = None
        if present is None:
            return None
        masters = getattr(optimizer, "fp32_params", None)
        if masters is not None:
            check_optimizer(optimizer)
            optimizer._sync_fp16_grads_to_fp32()  # no-op when clipping has done so already
        for parameter in [*self._specific, *(masters or [])]:
            code = language_of(parameter)
            if code is not None and code not in present:
                parameter.grad = None
        return present


class PresenceMixin:
    """For tasks with ``languages``: keeps absent languages still. Place before the host's task class.

    A task overrides :meth:`training_tokens` if its targets are padded with something else than ``<pad>``.
    """

    languages: Any
    takes_meta_step = False  # what --optimizer meta_adapter needs
    _presence: Optional[LanguagePresence] = None

    @property
    def presence(self) -> LanguagePresence:
        if self._presence is None:
            self._presence = LanguagePresence(self.languages)
        return self._presence

    def training_tokens(self, sample: dict[str, Any]) -> Tensor:
        """Tokens with a loss in each row of a sample, ``(B,)``."""
        pad = self.target_dictionary.pad()  # type: ignore[attr-defined]
        counts: Tensor = sample["target"].ne(pad).flatten(1).sum(1)
        return counts

    def rows_of(self, sample: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        """A sample of some rows (their numbers), whose loss and logs add up with those of the others."""
        return parts.rows_of(sample, rows)

    def trained_languages(self) -> list[str]:
        """Codes of the languages that are trained on."""
        return list(self.languages)

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> Any:
        """The host's step; notes the languages first. A dummy batch (``ignore_grad``) makes no language present."""
        if getattr(inner_optimizer(optimizer), "needs_meta_step", False) and not self.takes_meta_step:
            what = "This task has no meta step; language-specific parts would be trained as all others are."
            raise UsageError(what, where="--optimizer meta_adapter", next_step="use --optimizer adam")
        tokens = self.training_tokens(sample)
        self.presence.mark(model, optimizer, sample["net_input"]["lang_id"], tokens * 0 if ignore_grad else tokens)
        step = super().train_step  # type: ignore[misc]
        language_steps = getattr(inner_optimizer(optimizer), "language_steps", None)
        if language_steps is not None:
            return language_steps(self, step, sample, model, criterion, optimizer, update_num, ignore_grad)
        return step(sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad)

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Step without the languages that are absent on all workers."""
        from fairseq_interference.host_optimizers import optimizer_step

        self.presence.silence_absent(optimizer, model)
        optimizer_step(optimizer)
