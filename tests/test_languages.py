"""Language codes and ids: append-only, compared as whole strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.errors import LanguageError
from fairseq_interference.languages import RESERVED, LanguageList, check_code, parse_codes

CODES = st.from_regex(r"[a-z][a-z0-9_-]{1,15}", fullmatch=True).filter(lambda code: code not in RESERVED)
LISTS = st.lists(CODES, unique=True, max_size=12)


@given(LISTS)
def test_ids_are_positions(codes):
    languages = LanguageList(codes)
    assert [languages.id(code) for code in codes] == list(range(len(codes)))
    assert languages.codes == codes and list(languages) == codes and len(languages) == len(codes)


@given(LISTS)
def test_file_round_trip(codes):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "languages.txt"
        LanguageList(codes).write(path)
        assert LanguageList.read(path) == LanguageList(codes)
        assert path.read_bytes() == "".join(f"{code}\n" for code in codes).encode()
        assert [entry.name for entry in Path(folder).iterdir()] == ["languages.txt"]


@given(LISTS, LISTS)
def test_extending_keeps_every_id(old, more):
    before = LanguageList(old)
    after = before.extended(more)
    after.check_extends(before)
    assert set(after) == set(old) | set(more)
    assert [after.id(code) for code in old] == list(range(len(old)))


@given(LISTS.filter(lambda codes: len(codes) > 1), st.randoms())
def test_any_other_order_is_refused(codes, random):
    shuffled = list(codes)
    random.shuffle(shuffled)
    if shuffled == codes:
        shuffled.reverse()
    with pytest.raises(LanguageError, match="only be appended"):
        LanguageList(shuffled).check_extends(LanguageList(codes))
    with pytest.raises(LanguageError):
        LanguageList(codes[:-1]).check_extends(LanguageList(codes))


@given(LISTS, LISTS)
def test_digest_tells_lists_apart(first, second):
    assert (LanguageList(first).digest == LanguageList(second).digest) == (first == second)


MALFORMED = ["EN", "e", "", "en.hi", "1a", "en ", "a" * 17, "ен", ".ipynb_checkpoints"]


@pytest.mark.parametrize("code", [*MALFORMED, *sorted(RESERVED)])
def test_not_a_code(code):
    with pytest.raises(LanguageError):
        check_code(code)


def test_codes_are_whole_strings():
    """`te` is no part of `ter`, and names of methods are codes like others."""
    languages = LanguageList(["te", "ter", "to", "pop", "keys"])
    assert languages.id("ter") == 1 and "er" not in languages and "keys" in languages


def test_parse():
    assert parse_codes("en, hi ,sw,") == ["en", "hi", "sw"]
    with pytest.raises(LanguageError, match="twice"):
        parse_codes("en,hi,en")


def test_unknown_language_names_the_known():
    with pytest.raises(LanguageError) as caught:
        LanguageList(["en", "hi"]).id("xx", where="--eval-langs")
    assert "en,hi" in str(caught.value) and "--eval-langs" in str(caught.value) and caught.value.exit_code == 2


def test_bad_line_is_named(tmp_path):
    (tmp_path / "languages.txt").write_text("en\nHindi\n")
    with pytest.raises(LanguageError, match=r"languages\.txt:2") as caught:
        LanguageList.read(tmp_path / "languages.txt")
    assert caught.value.exit_code == 1
