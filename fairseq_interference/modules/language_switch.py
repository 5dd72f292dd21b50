"""Routing: every sequence goes through the module of its own language.

A batch is sorted by language once per forward. The :class:`SortPlan` is handed to the layers as an argument and
is kept on no module, so that layers which run again in backward (``--checkpoint-activations``) route alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fairseq_interference.errors import LanguageError


@dataclass(frozen=True)
class SortPlan:
    """How a batch is sorted by language.

    Args:
        languages: ids present, ascending.
        sizes: sequences of each, summing to B.
        order: sorted row -> row of the batch, LongTensor (B,); None if the batch is sorted already.
        inverse: row of the batch -> sorted row; None likewise.
    """

    languages: tuple[int, ...]
    sizes: tuple[int, ...]
    order: Optional[Tensor] = None
    inverse: Optional[Tensor] = None

    def sort(self, x: Tensor) -> Tensor:
        """(B, ...) in the batch's order -> (B, ...) sorted by language."""
        return x if self.order is None else x.index_select(0, self.order)

    def unsort(self, x: Tensor) -> Tensor:
        """(B, ...) sorted by language -> (B, ...) in the batch's order."""
        return x if self.inverse is None else x.index_select(0, self.inverse)


def sort_plan(lang_id: Optional[Tensor], codes: Sequence[str], batch_size: int) -> SortPlan:
    """Check ``lang_id`` and plan the sort. One transfer to the host per forward, whatever the depth.

    Args:
        lang_id: LongTensor (B,).
        codes: language codes in the order of their ids.
        batch_size: B.

    Raises:
        LanguageError: missing ids, a wrong shape, or an id outside the list. There is no default language.
    """
    if lang_id is None:
        raise LanguageError(
            "This model has language-specific parts and needs the language of every sequence.",
            where='net_input["lang_id"]',
            value="missing",
            allowed="LongTensor (B,), ids of " + ",".join(codes),
        )
    if lang_id.shape != (batch_size,):
        raise LanguageError(
            "One language id per sequence is needed.",
            where='net_input["lang_id"]',
            value=f"shape {tuple(lang_id.shape)}",
            allowed=f"({batch_size},)",
        )
    ids: list[int] = lang_id.tolist()
    languages = sorted(set(ids))
    if languages and not 0 <= languages[0] <= languages[-1] < len(codes):
        raise LanguageError(
            "Unknown language id.",
            where='net_input["lang_id"]',
            value=",".join(str(i) for i in languages if not 0 <= i < len(codes)),
            allowed=", ".join(f"{number}={code}" for number, code in enumerate(codes)),
        )
    sizes = tuple(ids.count(language) for language in languages)
    if all(a <= b for a, b in zip(ids, ids[1:])):
        return SortPlan(tuple(languages), sizes)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    inverse = sorted(range(len(ids)), key=order.__getitem__)
    device = lang_id.device
    return SortPlan(
        tuple(languages), sizes, torch.tensor(order, device=device), torch.tensor(inverse, device=device)
    )


class LanguageModules(nn.Module):
    """Modules keyed by language code. Any code will do, also ``to``, ``pop`` or ``keys``.

    ``nn.ModuleDict`` refuses codes that are names of its attributes; here a code is only ever a key.

    Args:
        modules: code -> module, in the order of the ids.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.codes = []
        for code, module in modules:
            self._modules[code] = module
            self.codes.append(code)

    def of(self, language: int) -> nn.Module:
        """Module of a language id."""
        module = self._modules[self.codes[language]]
        assert module is not None
        return module

    def items(self) -> Iterator[tuple[str, nn.Module]]:
        """(code, module), in the order of the ids."""
        return ((code, self.of(number)) for number, code in enumerate(self.codes))

    def extra_repr(self) -> str:
        return f"{len(self.codes)} languages"


def run_by_language(function: Callable[..., Tensor], plan: SortPlan, *inputs: Optional[Tensor]) -> Tensor:
    """Run each language's slice in one call.

    Args:
        function: ``function(language id, *slices) -> (n, ...)``.
        plan: sort plan of the batch.
        inputs: (B, ...) sorted by language, or None, which is handed on.

    Returns:
        (B, ...) sorted by language.
    """
    if len(plan.languages) == 1:
        return function(plan.languages[0], *inputs)
    empty = (None,) * len(plan.sizes)
    slices = zip(*(empty if x is None else torch.split(x, list(plan.sizes)) for x in inputs))
    return torch.cat([function(language, *part) for language, part in zip(plan.languages, slices)])
