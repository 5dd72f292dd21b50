"""Named errors. Each says what happened, where, the value, what is allowed and what to do next."""

from __future__ import annotations

import os
import sys
from typing import Callable, Optional

DONE, FAILED, USAGE, REQUEUE, INTERRUPTED = 0, 1, 2, 75, 130


class InterferenceError(Exception):
    """Base of all errors that a user can cause and mend.

    Args:
        what: what happened, one sentence.
        where: flag, ``file:line`` or module that it happened in.
        value: the offending value.
        allowed: what would have been accepted.
        next_step: the next command or edit that mends it.
    """

    exit_code = FAILED

    def __init__(
        self,
        what: str,
        *,
        where: Optional[object] = None,
        value: Optional[object] = None,
        allowed: Optional[object] = None,
        next_step: Optional[str] = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.value = value
        self.allowed = allowed
        self.next_step = next_step

    def __str__(self) -> str:
        parts = [self.what]
        if self.where is not None:
            parts.append(f"  where:   {self.where}")
        if self.value is not None:
            parts.append(f"  value:   {self.value!r}" if isinstance(self.value, str) else f"  value:   {self.value}")
        if self.allowed is not None:
            parts.append(f"  allowed: {self.allowed}")
        if self.next_step is not None:
            parts.append(f"  next:    {self.next_step}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments survive worker processes
        return (_rebuild, (type(self), self.what, self.where, self.value, self.allowed, self.next_step))


def _rebuild(kind: type[InterferenceError], what: str, *rest: object) -> InterferenceError:
    error = kind.__new__(kind)
    Exception.__init__(error, what)
    error.what = what
    error.where, error.value, error.allowed, next_step = rest
    error.next_step = None if next_step is None else str(next_step)
    return error


class UsageError(InterferenceError):
    """A flag, configuration or combination of options that cannot be run."""

    exit_code = USAGE


class LanguageError(InterferenceError):
    """An unknown, missing, malformed or reordered language; a usage error if it comes from a flag."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return USAGE if str(self.where).startswith("--") else FAILED


class DataError(InterferenceError):
    """A file whose bytes, layout or labels cannot be read."""


class DictionaryError(DataError):
    """A dictionary that is broken or is not the one that encoded the data."""


class TokenizerError(DataError):
    """Text cannot be encoded with the tokenizer that is there."""


class CheckpointError(InterferenceError):
    """A checkpoint that cannot be read, is unsafe, or does not fit."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint that holds a class outside the allow-list."""


class ResumeError(InterferenceError):
    """A run that cannot go on from its checkpoint with the settings given."""


class StageError(InterferenceError):
    """A finished stage whose inputs or settings have changed."""


class ScoringError(InterferenceError):
    """Gold and prediction files that cannot be compared."""


class HostError(InterferenceError):
    """The installed fairseq, torch or numpy cannot do what is asked."""


def exit_code(name: str, work: Callable[[], int]) -> int:
    """Run the work of a command ``name``; what a user can mend is a message on stderr, not a traceback.

    Returns:
        The code of ``work``, of its error, 1 for a file that cannot be read or written, or 130 if interrupted.
    """
    try:
        return work()
    except InterferenceError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python says so again as it ends
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{name}: {InterferenceError(error.strerror or str(error), where=error.filename)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
