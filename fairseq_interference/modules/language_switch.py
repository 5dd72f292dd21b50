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

# On an accelerator a kernel's launch costs more than a small slice's arithmetic: from this many languages on, slices
# are padded to one size and run as one batched product, unless padding would do more than double the rows.
STACK_FROM = 4
STACK_WASTE = 2.0


@dataclass(frozen=True)
class Stacking:
    """Index of sorted rows into slices of one size, and back.

    Args:
        groups: languages present.
        rows: sorted row of every place, LongTensor (groups * largest,); places without a sequence repeat row 0.
        places: place of every sorted row, LongTensor (B,).
    """

    groups: int
    rows: Tensor
    places: Tensor

    def pad(self, x: Tensor) -> Tensor:
        """(B, T, C) sorted by language -> (groups, largest * T, C)."""
        return x.index_select(0, self.rows).view(self.groups, -1, x.size(-1))

    def unpad(self, y: Tensor, like: Tensor) -> Tensor:
        """Inverse of :meth:`pad`; ``like`` is the tensor that was padded."""
        return y.reshape(-1, *like.shape[1:]).index_select(0, self.places)


@dataclass(frozen=True)
class SortPlan:
    """How a batch is sorted by language.

    Args:
        languages: ids present, ascending.
        sizes: sequences of each, summing to B.
        order: sorted row -> row of the batch, LongTensor (B,); None if the batch is sorted already.
        inverse: row of the batch -> sorted row; None likewise.
        stacking: how to pad the languages' slices to one size; None where slices run one after the other.
    """

    languages: tuple[int, ...]
    sizes: tuple[int, ...]
    order: Optional[Tensor] = None
    inverse: Optional[Tensor] = None
    stacking: Optional[Stacking] = None

    def sort(self, x: Tensor) -> Tensor:
        """(B, ...) in the batch's order -> (B, ...) sorted by language."""
        return x if self.order is None else x.index_select(0, self.order)

    def unsort(self, x: Tensor) -> Tensor:
        """(B, ...) sorted by language -> (B, ...) in the batch's order."""
        return x if self.inverse is None else x.index_select(0, self.inverse)


def stacking(sizes: Sequence[int], device: torch.device) -> Stacking:
    """Plan the padding of slices of ``sizes`` sequences to the largest of them."""
    largest, begin = max(sizes), 0
    rows: list[int] = []
    places: list[int] = []
    for group, size in enumerate(sizes):
        rows += [*range(begin, begin + size), *([0] * (largest - size))]
        places += range(group * largest, group * largest + size)
        begin += size
    return Stacking(len(sizes), torch.tensor(rows, device=device), torch.tensor(places, device=device))


def worth_stacking(sizes: Sequence[int], device: torch.device) -> bool:
    """True where one padded product is cheaper than a call per language."""
    if device.type == "cpu" or len(sizes) < STACK_FROM:
        return False
    return max(sizes) * len(sizes) <= STACK_WASTE * sum(sizes)


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
    sizes, device = tuple(ids.count(language) for language in languages), lang_id.device
    stack = stacking(sizes, device) if worth_stacking(sizes, device) else None
    if all(a <= b for a, b in zip(ids, ids[1:])):
        return SortPlan(tuple(languages), sizes, stacking=stack)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    inverse = sorted(range(len(ids)), key=order.__getitem__)
    return SortPlan(
        tuple(languages), sizes, torch.tensor(order, device=device), torch.tensor(inverse, device=device), stack
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
