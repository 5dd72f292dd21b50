"""Learning rates that are given as a number or as a factor of another one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fairseq_interference.errors import UsageError


@dataclass(frozen=True)
class Rate:
    """``x0.5``: half of another rate; ``0.001``: itself."""

    value: float
    relative: bool

    @classmethod
    def parse(cls, text: str, where: str) -> Rate:
        """Read a flag.

        Raises:
            UsageError: neither a positive number nor ``x`` and one.
        """
        found = re.fullmatch(r"(x?)([0-9.]+(?:e[+-]?\d+)?)", str(text).strip().lower())
        try:
            value = float(found[2]) if found else math.nan
        except ValueError:
            value = math.nan
        if found is None or not 0 < value < math.inf:
            raise UsageError("This is no learning rate.", where=where, value=text, allowed="0.001, or x0.5 of another")
        return cls(value, found[1] == "x")

    def factor(self, other: float, where: str) -> float:
        """How many times ``other`` it is."""
        if not self.relative and not other > 0:
            raise UsageError("An absolute rate follows --lr, which is 0 here.", where=where, value=self.value)
        return self.value if self.relative else self.value / other

    def of(self, other: float) -> float:
        """The rate itself."""
        return self.value * other if self.relative else self.value
