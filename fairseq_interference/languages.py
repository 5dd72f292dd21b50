"""Languages and their ids: an append-only list, saved beside data and in checkpoints."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Union

from fairseq_interference.errors import LanguageError

FILE_NAME = "languages.txt"
RESERVED = frozenset({"shared", "train", "valid", "test", "tokenizer"})
CODE = re.compile(r"[a-z][a-z0-9_-]{1,15}")
RULE = "[a-z][a-z0-9_-]{1,15}, ISO 639-1 where one exists; not " + ", ".join(sorted(RESERVED))


def check_code(code: str, where: object = None) -> str:
    """Return ``code`` if it is a language code, compared as a whole string.

    Raises:
        LanguageError: malformed or reserved code.
    """
    if not CODE.fullmatch(code) or code in RESERVED:
        raise LanguageError("This is not a language code.", where=where, value=code, allowed=RULE)
    return code


def parse_codes(text: str, where: object = "--langs") -> list[str]:
    """Split ``en,hi,sw`` into codes; blanks around commas are dropped, duplicates are an error."""
    return list(LanguageList((part.strip() for part in text.split(",") if part.strip()), where=where))


class LanguageList(Sequence[str]):
    """Codes in the order of their ids. Ids never change; new languages are appended.

    Args:
        codes: language codes, id 0 first.
        where: what an error names as the place.
    """

    def __init__(self, codes: Iterable[str] = (), where: object = None) -> None:
        self._codes = tuple(check_code(code, where) for code in codes)
        self._ids = {code: number for number, code in enumerate(self._codes)}
        if len(self._ids) != len(self._codes):
            twice = sorted({code for code in self._codes if self._codes.count(code) > 1})
            raise LanguageError("A language is listed twice.", where=where, value=",".join(twice))

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        return self._codes[number]

    def __len__(self) -> int:
        return len(self._codes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __contains__(self, code: object) -> bool:
        return code in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LanguageList) and self._codes == other._codes

    def __hash__(self) -> int:
        return hash(self._codes)

    def __repr__(self) -> str:
        return f"LanguageList({', '.join(f'{code}={number}' for number, code in enumerate(self._codes))})"

    @property
    def codes(self) -> list[str]:
        return list(self._codes)

    @property
    def digest(self) -> str:
        """Hexadecimal sha256 of the file that :meth:`write` would write."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def id(self, code: str, where: object = None) -> int:
        """Id of ``code``.

        Raises:
            LanguageError: unknown language; names the known ones.
        """
        if code not in self._ids:
            raise LanguageError("Unknown language.", where=where, value=code, allowed=",".join(self._codes))
        return self._ids[code]

    def extended(self, codes: Iterable[str]) -> LanguageList:
        """A list with the codes that are not yet there appended in the order given."""
        return LanguageList([*self._codes, *(code for code in codes if code not in self._ids)])

    def check_extends(self, old: LanguageList, where: object = None) -> None:
        """Raise unless every id of ``old`` means the same language here."""
        if self._codes[: len(old)] != old._codes:
            raise LanguageError(
                "The languages have changed their ids: languages may only be appended.",
                where=where,
                value=",".join(self._codes),
                allowed=",".join(old._codes) + "[,…]",
                next_step=f"give --langs {','.join(old.extended(self._codes))}",
            )

    def to_text(self) -> str:
        return "".join(f"{code}\n" for code in self._codes)

    def write(self, path: Union[str, Path]) -> None:
        """Write one code a line, through a temporary name."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(self.to_text(), encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Union[str, Path]) -> LanguageList:
        """Read a file of :meth:`write`; an error names the line."""
        try:
            lines = Path(path).read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError as error:
            raise LanguageError("This list of languages is not UTF-8.", where=path, value=str(error)) from None
        if lines and lines[-1] == "":
            lines.pop()
        for number, line in enumerate(lines, 1):
            check_code(line, where=f"{path}:{number}")
        return cls(lines, where=path)
