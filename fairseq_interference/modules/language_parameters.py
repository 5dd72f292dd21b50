"""A vector per language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from fairseq_interference.modules.language_switch import SortPlan


class LanguageEmbeddings(nn.Module):
    """One learned vector per language, each a parameter of its own so that absent languages get no gradient.

    Args:
        codes: language codes in the order of their ids.
        dim: C.
    """

    def __init__(self, codes: Iterable[str], dim: int) -> None:
        super().__init__()
        self.codes = list(codes)
        for code in self.codes:
            self._parameters[code] = nn.Parameter(torch.zeros(dim))

    def of(self, language: int) -> nn.Parameter:
        """Vector (C,) of a language id."""
        vector = self._parameters[self.codes[language]]
        assert vector is not None
        return vector

    def items(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(code, vector), in the order of the ids."""
        return ((code, self.of(number)) for number, code in enumerate(self.codes))

    def forward(self, plan: SortPlan) -> Tensor:
        """(B, 1, C): the vector of every sequence, sorted as ``plan`` says."""
        rows = [self.of(language).expand(size, -1) for language, size in zip(plan.languages, plan.sizes)]
        return torch.cat(rows).unsqueeze(1)
