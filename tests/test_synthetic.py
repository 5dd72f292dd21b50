"""Artificial languages: what the files hold must agree with the truth written beside them."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import conllu
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from data_prep.synthetic.__main__ import main
from data_prep.synthetic.config import make_config
from data_prep.synthetic.scripts import CONSONANTS, LETTERS, VOWELS, write
from fairseq_interference.errors import UsageError

CODES = ("xa", "xb", "xc", "xd", "xe")
SPLITS = ("train", "dev", "test")
ARGUMENTS = shlex.split(
    "--langs xa,xb,xc,xd,xe --similarity 0.3 --similarity-of xa:xb=0.7 --sentences 600 --sentences-of xd=150 "
    "--labelled 60,30,30 --concepts 1200 --seed 5"
)
UD_TAGS = set(shlex.split("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "world"
    assert main(["--out", str(out), *ARGUMENTS]) == 0
    return out


@pytest.fixture(scope="module")
def truth(world: Path) -> dict[str, Any]:
    return json.loads((world / "truth.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def lexicon(world: Path) -> list[dict[str, str]]:
    with open(world / "lexicon.tsv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def trees(world: Path) -> dict[str, list[conllu.TokenList]]:
    return {
        code: [s for split in SPLITS for s in conllu.parse((world / f"pos/{code}/{split}.conllu").read_text("utf-8"))]
        for code in CODES
    }


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".done")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def panx(path: Path) -> tuple[list[list[str]], list[list[str]]]:
    blocks = [block.split("\n") for block in path.read_text("utf-8").strip("\n").split("\n\n")]
    words = [[line.split("\t")[0].split(":", 1)[1] for line in block] for block in blocks]
    return words, [[line.split("\t")[1] for line in block] for block in blocks]


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_same_seed_same_bytes_whatever_the_hash_seed(world: Path, tmp_path: Path, hash_seed: str) -> None:
    command = [sys.executable, "-m", "data_prep.synthetic", "--out", str(tmp_path / "again"), *ARGUMENTS]
    root = Path(__file__).resolve().parent.parent
    subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True)
    assert contents(tmp_path / "again") == contents(world)


def test_another_seed_another_world(world: Path, tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "w"), *ARGUMENTS, "--seed", "6"]) == 0
    ours, theirs = contents(world), contents(tmp_path / "w")
    assert ours.keys() == theirs.keys()
    assert all(ours[name] != theirs[name] for name in ours)


def test_adding_a_language_changes_no_other_language(world: Path, tmp_path: Path) -> None:
    fewer = [value.replace(",xd,xe", "") for value in ARGUMENTS if value != "--sentences-of" and "xd=" not in value]
    assert main(["--out", str(tmp_path / "w"), *fewer]) == 0
    ours = contents(world)
    smaller = {name: data for name, data in contents(tmp_path / "w").items() if name.count("/")}
    assert len(smaller) == 3 * 13
    assert all(ours[name] == data for name, data in smaller.items())


def test_a_finished_world_is_left_alone_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--out", str(tmp_path / "w"), "--langs", "2", "--sentences", "20", "--labelled", "5,5,5"]
    assert main(small) == 0
    before = (tmp_path / "w/raw/xa.txt").stat().st_mtime_ns
    assert main(small) == 0
    assert (tmp_path / "w/raw/xa.txt").stat().st_mtime_ns == before
    assert main([*small, "--seed", "2"]) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*small, "--seed", "2", "--force"]) == 0


def test_raw_lines_are_parallel(world: Path, truth: dict[str, Any]) -> None:
    """Line i means the same everywhere: digits and the number of stops agree; short corpora are prefixes."""
    lines = {code: (world / f"raw/{code}.txt").read_text("utf-8").split("\n")[:-1] for code in CODES}
    assert {code: len(value) for code, value in lines.items()} == {
        code: (150 if code == "xd" else 600) for code in CODES
    }
    for code in CODES:
        for mine, first in zip(lines[code], lines["xa"]):
            assert sorted(re.findall(r"[0-9]+", mine)) == sorted(re.findall(r"[0-9]+", first))
            assert mine == unicodedata.normalize("NFC", mine)
            assert mine == mine.lower()
            assert "  " not in mine


def test_raw_text_holds_no_labelled_sentence(world: Path, trees: dict[str, list[conllu.TokenList]]) -> None:
    raw = set((world / "raw/xb.txt").read_text("utf-8").split("\n"))
    assert not raw & {sentence.metadata["text"] for sentence in trees["xb"]}


def test_letters_belong_to_the_script(world: Path) -> None:
    blocks = {"xa": "LATIN", "xb": "DEVANAGARI", "xc": "ARABIC", "xd": "LATIN", "xe": "CYRILLIC"}
    for code, block in blocks.items():
        text = (world / f"raw/{code}.txt").read_text("utf-8")
        letters = {character for character in text if unicodedata.category(character)[0] in "LM"}
        assert letters and all(unicodedata.name(letter).startswith(block) for letter in letters)
        if code == "xb":
            assert any(unicodedata.category(letter) == "Mc" for letter in letters)
            assert "\u094d" in letters


@settings(max_examples=200, deadline=None)
@given(st.text(CONSONANTS + VOWELS, min_size=1, max_size=12), st.text(CONSONANTS + VOWELS, min_size=1, max_size=12))
def test_spelling_is_one_to_one_and_in_nfc(one: str, other: str) -> None:
    for script in LETTERS:
        assert (write(one, script) == write(other, script)) == (one == other)
        assert unicodedata.is_normalized("NFC", write(one, script))


def test_similarity_reached_is_the_similarity_asked(
    world: Path, truth: dict[str, Any], lexicon: list[dict[str, str]]
) -> None:
    own_words = [row for row in lexicon if row["class"] != "affix" and not row["alias"]]
    for pair, values in truth["pairs"].items():
        one, other = pair.split(":")
        recomputed = sum(row[one] == row[other] for row in own_words) / len(own_words)
        similarity = values["similarity"]
        assert recomputed == pytest.approx(similarity["achieved"], abs=1e-4)
        assert recomputed == pytest.approx(similarity["requested"], abs=0.03)
        assert (similarity["written_alike"] > 0) == values["same_script"]
    assert truth["pairs"]["xa:xb"]["similarity"]["requested"] == 0.7


def test_cognates_are_shared_strings_in_one_script(world: Path, truth: dict[str, Any]) -> None:
    texts = {code: (world / f"raw/{code}.txt").read_text("utf-8") for code in ("xa", "xd", "xe")}
    words = {code: set(re.findall(r"[^\W\d]+", text)) for code, text in texts.items()}
    assert len(words["xa"] & words["xd"]) > 0.2 * len(words["xd"])
    assert not words["xa"] & words["xe"]


@pytest.mark.parametrize("similarity", [0.0, 0.5, 1.0])
def test_extreme_similarities(tmp_path: Path, similarity: float) -> None:
    arguments = ["--langs", "4", "--sentences", "5", "--labelled", "2,2,2", "--concepts", "500"]
    assert main(["--out", str(tmp_path / "w"), *arguments, "--similarity", str(similarity)]) == 0
    pairs = json.loads((tmp_path / "w/truth.json").read_text("utf-8"))["pairs"]
    for values in pairs.values():
        assert values["similarity"]["achieved"] == pytest.approx(similarity, abs=0.03)


def test_contradicting_similarities_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["--similarity-of", "xa:xb=0.9", "xb:xc=0.9", "xa:xc=0.1"]
    assert main(["--out", str(tmp_path / "w"), "--langs", "3", *pairs]) == 2
    assert "contradict" in capsys.readouterr().err


def test_wrong_settings_are_all_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_config(["xa"], similarity=2.0, sentences=0, settings_of={"order": {"xb": "OVS"}}, concepts=1)
    message = str(caught.value)
    assert all(flag in message for flag in ("--similarity", "--sentences", "--order-of", "--concepts"))


def test_conllu_is_valid(trees: dict[str, list[conllu.TokenList]]) -> None:
    seen: Counter[str] = Counter()
    for code in CODES:
        for sentence in trees[code]:
            assert [token["id"] for token in sentence] == list(range(1, len(sentence) + 1))
            heads = {token["id"]: token["head"] for token in sentence}
            assert [token["deprel"] for token in sentence if token["head"] == 0] == ["root"]
            for node in heads:
                steps = 0
                while node:
                    node, steps = heads[node], steps + 1
                    assert steps <= len(heads)
            text = "".join(
                token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ") for token in sentence
            )
            assert text.strip() == sentence.metadata["text"]
            for token in sentence:
                assert list(token["feats"] or {}) == sorted(token["feats"] or {})
            seen.update(token["upos"] for token in sentence)
    assert set(seen) <= UD_TAGS
    assert len(seen) >= 14


def test_labels_are_iob2_and_readable_by_seqeval(world: Path) -> None:
    for code in CODES:
        for split in SPLITS:
            words, labels = panx(world / f"ner/{code}/{split}.tsv")
            assert f1_score(labels, labels, mode="strict", scheme=IOB2) == 1.0
            for before, label in ((b, c) for row in labels for b, c in zip(["O", *row], row)):
                assert label[0] != "I" or before[1:] == label[1:]
            assert {label[2:] for row in labels for label in row if label != "O"} == {"PER", "LOC", "ORG"}
            assert all(word and not word.isspace() for row in words for word in row)


def test_entities_are_parallel(world: Path) -> None:
    for split in SPLITS:
        kinds = []
        for code in CODES:
            _, labels = panx(world / f"ner/{code}/{split}.tsv")
            kinds.append([Counter(label for label in row if label.startswith("B-")) for row in labels])
        assert all(other == kinds[0] for other in kinds)


def test_some_words_are_entities_and_others_by_context_and_some_are_new_in_test(world: Path) -> None:
    inside: set[str] = set()
    outside: set[str] = set()
    by_split: dict[str, set[str]] = {}
    for split in SPLITS:
        words, labels = panx(world / f"ner/xa/{split}.tsv")
        named = {w for row, tags in zip(words, labels) for w, tag in zip(row, tags) if tag != "O"}
        by_split[split] = named
        inside |= named
        outside |= {w for row, tags in zip(words, labels) for w, tag in zip(row, tags) if tag == "O"}
    assert len(inside & outside) >= 5
    assert len(by_split["test"] - by_split["train"]) >= 5


@pytest.mark.slow
def test_full_size_takes_less_than_20_seconds_of_one_core(tmp_path: Path) -> None:
    begin = time.process_time()
    assert main(["--out", str(tmp_path / "w"), "--langs", "4", "--sentences", "20000"]) == 0
    assert time.process_time() - begin < 20
