"""Finding sources, cleaning files, and splitting: against slow and simple oracles."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import clean, learn_bpe, parallel, split
from data_prep.common import parse_memory
from data_prep.html_text import html_lines
from data_prep.learn_bpe import sample_sizes, sampled, shares
from data_prep.parallel import Chunk, chunks_of, raw_lines, text_lines
from data_prep.sources import find_sources
from fairseq_interference.errors import DataError, UsageError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def run_clean(folder: Path, content: bytes, lang: str = "en", **options: object) -> tuple[list[str], dict[str, object]]:
    write(folder / "raw" / f"{lang}.txt", content)
    out = folder / "out"
    sources = find_sources(folder / "raw", [lang]).sources[lang]
    clean.clean(lang, sources, out, clean.Options(**options).validate(), workers=1, force=True)  # type: ignore[arg-type]
    return (out / "text.txt").read_text(encoding="utf-8").split("\n")[:-1], json.loads(
        (out / "counts.json").read_text()
    )


# ---------------------------------------------------------------- sources


def test_files_are_found_by_name(tmp_path: Path) -> None:
    write(tmp_path / "en.txt", "a\n")
    write(tmp_path / "hi" / "b.txt", "b\n")
    write(tmp_path / "hi" / "a.txt.gz", gzip.compress(b"a\n"))
    write(tmp_path / "sw.txt.gz", gzip.compress(b"a\n"))
    write(tmp_path / "fr.txt", "d\n")
    write(tmp_path / "train.txt", "reserved\n")
    write(tmp_path / "hi" / "c.html", "<p>no rule\n")
    write(tmp_path / ".ipynb_checkpoints" / "x.txt", "hidden\n")
    found = find_sources(tmp_path, ["en", "hi", "sw"])
    assert {lang: [source.name for source in sources] for lang, sources in found.sources.items()} == {
        "en": ["en.txt"],
        "hi": ["hi/a.txt.gz", "hi/b.txt"],
        "sw": ["sw.txt.gz"],
    }
    assert found.unused == ["hi/c.html", "train.txt"]
    assert found.others == ["fr"]
    with pytest.raises(DataError, match="no text of language te"):
        find_sources(tmp_path, ["en", "te"])


def test_sources_yaml(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a\n")
    write(tmp_path / "page.html", "<p>b")
    write(tmp_path / "x.no", "c\nd\n")
    write(tmp_path / "x.en", "e\nf\n")
    write(tmp_path / "pairs.tsv", "g\th\n")
    write(tmp_path / "left.over", "i\n")
    text = """
        en: [a.txt, {path: page.html, format: html}, {path: x.en, pair: x.no}, {path: pairs.tsv, column: 1}]
        no: [{path: x.no, format: parallel, pair: x.en}, {path: pairs.tsv, column: 2}]
        sw: ['*.html2']
    """
    write(tmp_path / "sources.yaml", text)
    with pytest.raises(DataError, match="missing"):
        find_sources(tmp_path, ["en"])
    write(tmp_path / "sources.yaml", text.replace("sw: ['*.html2']", ""))
    found = find_sources(tmp_path, ["en", "no"])
    assert [(s.name, s.format, s.column) for s in found.sources["no"]] == [
        ("x.no", "parallel", None),
        ("pairs.tsv", "parallel", 2),
    ]
    assert found.unused == ["left.over"]
    assert find_sources(tmp_path / "sources.yaml", ["en", "no"]) == found
    lines = [
        line for task in clean.tasks_of(found.sources["no"], clean.Options(), tmp_path) for line in clean._lines(task)
    ]
    assert lines == ["c", "d", "h"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("en: [a.txt]\nfr: [a.txt]", DataError, "two languages"),
        ("en: [{path: a.txt, pair: b.txt}]", DataError, "different numbers of lines"),
        ("en: [{path: a.txt, pair: none.txt}]", DataError, "other side"),
        ("en: [{path: a.txt, format: parallel}]", UsageError, "needs `pair`"),
        ("en: [{path: a.txt, fromat: html}]", UsageError, "path and options"),
        ("en: [{path: a.txt, format: pdf}]", UsageError, "Unknown format"),
        ("en: a.txt", UsageError, "list of sources"),
        ("fr: [a.txt]", UsageError, "without sources"),
        ("root: $NO_SUCH_VARIABLE/x\nen: [a.txt]", UsageError, "not set"),
        ("en: [", UsageError, "cannot be read"),
    ],
)
def test_mistakes_in_sources_yaml_are_named(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    write(tmp_path / "a.txt", "a\nb\n")
    write(tmp_path / "b.txt", "a\nb\nc")
    write(tmp_path / "sources.yaml", text)
    with pytest.raises(error, match=message):
        find_sources(tmp_path, ["en"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git-LFS pointer"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html><body>Sign in", "HTML page"),
        ("a".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_not_text_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "en.txt", content)
    with pytest.raises(DataError, match=message):
        find_sources(tmp_path, ["en"])


def test_broken_packed_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "en.txt.gz", gzip.compress(random.Random(1).randbytes(99999).hex().encode())[:-20])
    with pytest.raises(DataError, match="packed file is broken"):
        clean.clean("en", find_sources(tmp_path, ["en"]).sources["en"], tmp_path / "o", clean.Options(), 1)
    packed = bytearray(gzip.compress(random.Random(1).randbytes(9999).hex().encode()))
    packed[20:60] = b"\xff" * 40
    (tmp_path / "en.txt.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"cannot be read|broken"):
        clean.clean("en", find_sources(tmp_path, ["en"]).sources["en"], tmp_path / "o", clean.Options(), 1)


def test_a_text_without_anything_to_merge(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too small"):
        learn_bpe.learn_subword_nmt([("ab", 1), ("cd", 1)], 100, tmp_path / "codes")


def test_html_becomes_lines() -> None:
    page = """<!doctype html><html dir="rtl"><head><title>no</title><style>p {}</style></head>
      <body><h1>Head</h1><p>One
        two &amp; <b>three</b>.</p><script>var x = "<p>no</p>";</script><ul><li>a<li>b</ul>c<br>d</body></html>"""
    assert [" ".join(line.split()) for line in html_lines(page)] == ["Head", "One two & three.", "a", "b", "c", "d"]


# ---------------------------------------------------------------- cleaning files


def test_bad_byte_is_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK_BYTES", 16)
    good = "ok öäü\n".encode() * 20
    with pytest.raises(DataError, match="0xE9") as caught:
        run_clean(tmp_path, good + b"caf\xe9\n" + good)
    assert str(caught.value.where).endswith("en.txt:21")


def test_only_lf_ends_a_line(tmp_path: Path) -> None:
    lines, counts = run_clean(tmp_path, "a\u2028b\r\nc\x85d\x1ce\rf\n\n\n  \ng".encode())
    assert lines == ["a b", "c d e f", "g"]
    assert counts["read"]["lines"] == 6  # type: ignore[index]
    assert counts["rules"]["blank"]["lines"] == 3  # type: ignore[index]


def test_filters_are_counted(tmp_path: Path) -> None:
    content = "ab\nवह घर\nlong enough\nवह a\n" + "x" * 30 + "\n"
    lines, counts = run_clean(tmp_path, content.encode(), "hi", min_chars=3, max_chars=20, script="Deva")
    assert lines == ["वह घर", "वह a"]
    rules = counts["rules"]
    assert {rule: rules[rule]["lines"] for rule in clean.LINE_RULES} == {  # type: ignore[index]
        "blank": 0,
        "too_short": 1,
        "too_long": 1,
        "other_script": 1,
        "cut": 0,
    }
    with pytest.raises(UsageError, match="Unknown script"):
        clean.Options(script="Nope").validate()


def test_long_lines_are_cut_not_dropped(tmp_path: Path) -> None:
    text = " ".join(f"word{number}." for number in range(500))
    lines, counts = run_clean(tmp_path, text.encode(), cut_chars=100)
    assert max(map(len, lines)) <= 100
    assert " ".join(lines) == text
    assert counts["rules"]["cut"] == {"lines": 1, "chars": len(text)}  # type: ignore[index]


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Nothing is left"):
        run_clean(tmp_path, b"\n \n\xef\xbb\xbf\n")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=30),
    st.integers(1, 40),
    st.booleans(),
)
def test_chunks_cover_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, last: bool
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "f"
    path.write_bytes(b"\n".join(lines) + (b"\n" if last and lines else b""))
    content = path.read_bytes()
    expected = content.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    chunks = [Chunk(str(path), begin, min(begin + size, len(content))) for begin in range(0, len(content), size)]
    found = [pair for chunk in chunks for pair in raw_lines(chunk)]
    assert [line for _, line in found] == expected
    assert all(content[position:].startswith(line) for position, line in found)
    ascii_path = path.with_name("g")
    ascii_path.write_text("".join(f"{line.hex()}\n" for line in lines))
    total = ascii_path.stat().st_size
    parts = [Chunk(str(ascii_path), begin, min(begin + size, total)) for begin in range(0, total, size)]
    assert [line for part in parts for line in text_lines(part)] == [line.hex() for line in lines]


# ---------------------------------------------------------------- split


def keys_of(lines: list[str]) -> split.UInts:
    return np.frombuffer(b"".join(map(clean.sentence_key, lines)), dtype="<u8").reshape(-1, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(alphabet="ab ", min_size=1, max_size=7), min_size=1, max_size=200),
    st.sampled_from([(5, 7), (0, 0), (None, None), (0.1, 0.2), (100, 100), (1, 0)]),
    st.none() | st.integers(1, 50),
    st.integers(0, 5),
)
def test_split_against_an_oracle(
    lines: list[str], sizes: tuple[int | float | None, int | float | None], limit: int | None, seed: int
) -> None:
    keys = keys_of(lines)
    options = split.Options(sizes[0], sizes[1], limit, seed)
    codes = split.assign(keys, options, memory=1 << 20)
    assert (
        codes == split.assign(keys, options, memory=5 * split.BYTES_A_LINE)
    ).all()  # ranges from disk change nothing
    seen: set[str] = set()
    for line, code in zip(lines, codes):
        assert (code == split.DUPLICATE) == (line in seen)  # the first of equal lines is kept
        seen.add(line)
    sets = {code: {line.replace(" ", "") for line, c in zip(lines, codes) if c == code} for code in range(1, 5)}
    assert not sets[split.VALID] & sets[split.TEST]
    assert not (sets[split.VALID] | sets[split.TEST]) & (sets[split.TRAIN] | sets[split.OVER])
    counts = np.bincount(codes, minlength=5)
    if limit is not None:
        assert counts[split.TRAIN] <= limit
        free = split.assign(keys, split.Options(sizes[0], sizes[1], None, seed), memory=1 << 20)
        assert ((codes == free) | (codes == split.OVER)).all()  # valid and test do not depend on the limit
        assert counts[split.TRAIN] == min(limit, (free == split.TRAIN).sum())
    if sizes == (5, 7) and len(seen) > 60:
        assert counts[split.VALID] <= 5 and counts[split.TEST] <= 7
    if len(seen) > 2 and sizes != (0.1, 0.2):
        assert counts[split.TRAIN] >= 1


def test_split_sizes_are_exact_and_seeded() -> None:
    lines = [f"sentence number {number} {number * 7919 % 1000}" for number in range(5000)]
    keys = keys_of(lines)
    first = split.assign(keys, split.Options(300, 200, None, 1), 1 << 28)
    assert np.bincount(first, minlength=5).tolist() == [0, 4500, 300, 200, 0]
    assert (first != split.assign(keys, split.Options(300, 200, None, 2), 1 << 28)).any()
    order = list(range(5000))
    random.Random(3).shuffle(order)
    again = split.assign(keys_of([lines[number] for number in order]), split.Options(300, 200, None, 1), 1 << 28)
    assert (again == first[order]).all()  # decided by the sentence, not by its place
    half = split.assign(keys, split.Options(300, 200, 1000, 1), 1 << 28)
    quarter = split.assign(keys, split.Options(300, 200, 500, 1), 1 << 28)
    assert set(np.flatnonzero(quarter == split.TRAIN)) < set(np.flatnonzero(half == split.TRAIN))  # nested


def test_fractions_keep_sentences_where_they_are_when_text_grows() -> None:
    lines = [f"line {number}" for number in range(4000)]
    options = split.Options(0.05, 0.1, None, 1)
    small = split.assign(keys_of(lines[:2000]), options, 1 << 28)
    large = split.assign(keys_of(lines), options, 1 << 28)
    assert (large[:2000] == small).all()
    assert 150 < (large == split.VALID).sum() < 250 and 320 < (large == split.TEST).sum() < 480


def test_options_of_the_split_are_checked() -> None:
    assert split.parse_size("auto", "x") is None
    assert split.parse_size("12", "x") == 12 and split.parse_size("0.25", "x") == 0.25
    for text in ("-1", "1.5", "0.6", "many"):
        with pytest.raises(UsageError):
            split.parse_size(text, "--valid-lines")
    assert parse_memory("2G") == 2 << 30 and parse_memory("512MiB") == 512 << 20
    with pytest.raises(UsageError):
        parse_memory("lots")
    with pytest.raises(UsageError, match="both"):
        split.Options(0.1, 10).validate()
    with pytest.raises(UsageError, match="max-lines"):
        split.Options(max_lines=0).validate()
    with pytest.raises(UsageError, match="Half"):
        split.Options(0.4, 0.2).validate()
    with pytest.raises(UsageError, match="auto"):
        split.Options(0.1, None).validate()
    assert split.parse_size("0.0", "x") == 0 and isinstance(split.parse_size("0.0", "x"), int)
    with pytest.raises(UsageError, match="1M"):
        parse_memory("1K")
    for limits in ({"min_chars": -1}, {"max_chars": -1}):
        with pytest.raises(UsageError, match="chars"):
            clean.Options(**limits).validate()


# ---------------------------------------------------------------- sampling for the vocabulary


def test_temperature_raises_small_languages() -> None:
    lines = {"en": 9000, "sw": 1000}
    assert shares(lines, 1) == pytest.approx({"en": 0.9, "sw": 0.1})
    assert shares(lines, 100)["sw"] == pytest.approx(0.5, abs=0.01)
    assert shares(lines, 2) == pytest.approx({"en": 0.75, "sw": 0.25})  # sqrt(9) : sqrt(1)
    assert sample_sizes(lines, 1, 1000) == {"en": 900, "sw": 100}
    assert sum(sample_sizes(lines, 1.43, 10**9).values()) in (9999, 10000)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 200), st.integers(0, 9))
def test_sample_is_whole_passes_and_a_remainder(
    tmp_path_factory: pytest.TempPathFactory, lines: int, wanted: int, seed: int
) -> None:
    path = write(tmp_path_factory.mktemp("sample") / "f", "".join(f"{number}\n" for number in range(lines)))
    found = list(sampled(path, lines, wanted, seed))
    assert len(found) == wanted
    times = {str(number): found.count(str(number)) for number in range(lines)}
    assert set(times.values()) <= {wanted // lines, wanted // lines + 1}


def test_chunk_sizes_do_not_depend_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "f", b"x" * 100)
    monkeypatch.setattr(parallel, "CHUNK_BYTES", 30)
    assert [chunk.size for chunk in chunks_of(path)] == [30, 30, 30, 10]


def test_learning_is_bounded_by_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {f"w{number:04d}": 1 + number % 7 for number in range(1000)}
    most = learn_bpe._most(words, 500, 1000)  # 1000 characters: 200 words of five
    assert len(most) == 200
    assert {count for _, count in most} == {7, 6}
    text = write(tmp_path / "en.txt", "".join(f"{word} {word}x\n" for word in words))
    options = learn_bpe.Options("sentencepiece", 50, memory=16_000)
    assert learn_bpe._fitting({"en": text}, {"en": 1000}, {"en": 1000}, 6500) == {"en": 500}
    counted = learn_bpe._word_counts({"en": text}, {"en": 1000}, {"en": 1000}, options)
    assert sum(len(word) for word, _ in counted) <= 16_000 // learn_bpe.BYTES_A_CHAR
    assert "are learnt from" in capsys.readouterr().err
