"""Blocks, masking, folders: every row D of the fault list that needs no training."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrain_world import WORDS, data_folder, sentences, write_dictionary, write_tokens

from fairseq_interference.data import blocks as cutting
from fairseq_interference.data.dictionary import symbols_of_file
from fairseq_interference.data.folders import open_folders
from fairseq_interference.data.masking import Masking, keys
from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.errors import DataError, DictionaryError, LanguageError
from fairseq_interference.stages import file_hash, write_json

pytestmark = pytest.mark.usefixtures("plugin")


def complete(sizes: list[int], length: int) -> list[list[int]]:
    """Oracle: fill blocks with whole sentences; numbers of the tokens of each block."""
    found: list[list[int]] = []
    current: list[int] = []
    token = 0
    for size in sizes:
        if current and len(current) + size > length:
            found.append(current)
            current = []
        current = current + list(range(token, token + size))
        token += size
    return [*found, current]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.sampled_from(cutting.MODES), st.integers(2, 20))
@settings(max_examples=200)
def test_no_token_is_lost_and_no_block_is_too_long(sizes: list[int], mode: str, length: int) -> None:
    spans = cutting.spans(np.array(sizes), mode, length)
    tokens = [token for begin, end in spans for token in range(begin, end)]
    assert all(1 <= end - begin <= length for begin, end in spans)
    starts = np.cumsum(sizes) - sizes
    blank = {int(start) for start, size in zip(starts, sizes) if size == 1}
    left_out = blank if mode in ("eos", "complete_doc") else set()
    assert tokens == [token for token in range(sum(sizes)) if token not in left_out]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=40), st.integers(8, 20))
def test_complete_blocks_hold_whole_sentences(sizes: list[int], length: int) -> None:
    spans = cutting.spans(np.array(sizes), "complete", length)
    assert [list(range(begin, end)) for begin, end in spans] == complete(sizes, length)


def test_d16_a_long_line_is_split(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train", [list(range(4, 54))])
    part = cutting.Blocks(TokenFile(tmp_path / "train"), "complete", 7, eos=2)
    assert max(part.sizes) <= 8 and min(part.sizes) >= 7
    assert np.concatenate([part[number] for number in range(len(part))]).tolist() == [*range(4, 54), 2]


def test_token_files_equal_the_hosts_reader_and_hold_no_descriptor(tmp_path: Path) -> None:
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    text = sentences(50, 1)
    write_tokens(tmp_path / "train", text)
    before = len(os.listdir("/proc/self/fd"))
    ours = [TokenFile(tmp_path / "train") for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    host = MMapIndexedDataset(str(tmp_path / "train"))
    assert ours[0].sizes.tolist() == host.sizes.tolist()
    assert ours[0].tokens.tolist() == [int(token) for number in range(len(host)) for token in host[number]]


@pytest.mark.parametrize("text", [[], [[], [], []]])
def test_languages_without_text_are_named(tmp_path: Path, text: list[list[int]]) -> None:
    write_tokens(tmp_path / "train", text)
    with pytest.raises(DataError, match=r"no sentences|blank lines"):
        cutting.Blocks(TokenFile(tmp_path / "train"), "complete", 10, eos=2)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    write_tokens(tmp_path / "train", sentences(20, 1))
    whole = (tmp_path / "train.bin").read_bytes()
    (tmp_path / "train.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="disagree"):
        TokenFile(tmp_path / "train")


# -- masking --------------------------------------------------------------------------------------------------------

MASK = 64
WORD_IDS = np.arange(4, 64)


def masked(tokens: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return Masking(pad=1, mask=MASK, never=(1, 0, 2), words=WORD_IDS)(tokens, key)


def test_masking_statistics() -> None:
    tokens = np.random.default_rng(0).integers(4, 64, (400, 102))
    tokens[:, 0], tokens[:, -1] = 0, 2
    source, target = masked(tokens, keys(1, 1, np.arange(400)))
    chosen = target != 1
    assert not chosen[:, 0].any() and not chosen[:, -1].any()
    assert (target[chosen] == tokens[chosen]).all() and (source[~chosen] == tokens[~chosen]).all()
    assert (chosen.sum(1) == 15).all()
    hidden = (source[chosen] == MASK).mean()
    same = (source[chosen] == tokens[chosen]).mean()
    assert abs(hidden - 0.8) < 0.02 and abs(same - 0.1 - 0.1 / 60) < 0.02
    positions = chosen.sum(0)[1:-1] / 400
    assert abs(positions.mean() - 0.15) < 1e-9 and positions.std() < 0.03
    swapped = source[chosen & (source != tokens) & (source != MASK)]
    assert set(swapped.tolist()) <= set(WORD_IDS.tolist()) and len(set(swapped.tolist())) > 50


def test_short_rows_are_masked_in_proportion() -> None:
    tokens = np.full((20000, 6), 10)
    _, target = masked(tokens, keys(3, np.arange(20000)))
    counts = (target != 1).sum(1)
    assert set(counts.tolist()) == {0, 1} and abs(counts.mean() - 0.9) < 0.01


@given(st.integers(0, 5), st.integers(1, 12))
@settings(max_examples=20)
def test_masking_depends_on_the_block_alone(seed: int, padding: int) -> None:
    tokens = np.random.default_rng(seed).integers(4, 64, (5, 20))
    key = keys(seed, 2, np.arange(5))
    source, target = masked(tokens, key)
    padded = np.pad(tokens, ((0, 0), (0, padding)), constant_values=1)
    order = np.random.default_rng(seed).permutation(5)
    source2, target2 = masked(padded[order], key[order])
    assert (source2[:, :20] == source[order]).all() and (target2[:, :20] == target[order]).all()
    assert (masked(tokens, keys(seed, 3, np.arange(5)))[1] != target).any()


# -- folders --------------------------------------------------------------------------------------------------------


def test_ids_are_the_order_of_langs(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 5, "bb": 5})
    assert open_folders(str(tmp_path), "bb,aa").languages.codes == ["bb", "aa"]


def test_languages_txt_is_the_default(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 5, "bb": 5})
    with pytest.raises(LanguageError, match="aa,bb"):
        open_folders(str(tmp_path), "")
    (tmp_path / "languages.txt").write_text("bb\naa\n", encoding="utf-8")
    assert open_folders(str(tmp_path), "").languages.codes == ["bb", "aa"]


def test_d3_other_folders_are_ignored_with_a_note(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 5, "bb": 5})
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "tokenizer").mkdir()
    notes = open_folders(str(tmp_path), "aa").notes
    assert len(notes) == 2
    assert any(".ipynb_checkpoints" in note and "no token files" in note for note in notes)
    assert any("bb" in note and "not in --langs" in note for note in notes)


def test_an_unknown_language_names_those_that_are_there(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 5, "bb": 5})
    with pytest.raises(LanguageError, match="aa,bb"):
        open_folders(str(tmp_path), "aa,cc")


def test_d14_another_dictionary_is_an_error(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 5, "bb": 5})
    write_dictionary(tmp_path / "bb" / "dict.txt")
    open_folders(str(tmp_path), "aa,bb")
    write_dictionary(tmp_path / "bb" / "dict.txt", [*WORDS[:7], "other", *WORDS[8:]])
    with pytest.raises(DictionaryError, match=r"dict\.txt:8"):
        open_folders(str(tmp_path), "aa,bb")
    (tmp_path / "bb" / "dict.txt").unlink()  # as prepare.sh leaves it: a note says what the language was encoded with
    write_json(tmp_path / "bb" / ".done", {"inputs": {"dictionary": file_hash(tmp_path / "dict.txt")}, "settings": {}})
    open_folders(str(tmp_path), "aa,bb")
    write_json(tmp_path / "bb" / ".done", {"inputs": {"dictionary": "0" * 32}, "settings": {}})
    with pytest.raises(DictionaryError, match="another dictionary"):
        open_folders(str(tmp_path), "aa,bb")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
        ("a 1\nb 2\na 3\n", "twice"),
        ("a 1\nb\n", "symbol count"),
    ],
)
def test_b8_broken_dictionaries_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dict.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DictionaryError, match=message):
        symbols_of_file(tmp_path / "dict.txt")
