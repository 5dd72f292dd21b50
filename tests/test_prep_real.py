"""prepare.sh on real text of twelve languages, without a hand edit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.clean import Options, tasks_of
from data_prep.clean import _lines as lines_of
from data_prep.plan import parser, plan
from data_prep.sources import find_sources
from fairseq_interference.data.pretokenize import lone_marks, pretokenize
from fairseq_interference.data.text import Cleaner
from fairseq_interference.data.tokenizer import Tokenizer

pytestmark = pytest.mark.real_data
SOURCES = Path(__file__).with_name("real_sources.yaml")
MAIN = ["en", "fr", "ar", "ru", "hi", "te", "sw"]
SMALL = ["mr", "kn", "de", "es", "zh"]


def test_every_file_has_one_language(real_data: Path) -> None:
    found = find_sources(SOURCES, MAIN + SMALL)
    assert found.unused == [] and found.others == []
    names = [source.name for sources in found.sources.values() for source in sources]
    assert len(names) == len(set(names)) == sum(path.is_file() for path in (real_data / "raw").rglob("*"))
    for lang, sources in found.sources.items():
        assert all(source.name.endswith(".eng") == (lang == "en") for source in sources if source.format == "parallel")
        assert all((source.format == "html") == source.name.endswith(".html") for source in sources)


@pytest.mark.parametrize("lang", MAIN + SMALL)
def test_real_lines_survive_cleaning_and_moses(real_data: Path, tmp_path: Path, lang: str) -> None:
    sources = find_sources(SOURCES, [lang]).sources[lang]
    cleaner = Cleaner()
    number = 0
    for task in tasks_of(sources, Options(), tmp_path):
        for raw in lines_of(task):
            number += 1
            if number % 9 and "\u200d" not in raw and "\u200c" not in raw:
                continue  # a ninth, and all with joiners
            line = cleaner(raw)
            assert cleaner(line) == line
            for joiner in "\u200c\u200d":
                assert line.count(joiner) == raw.count(joiner)
            tokens = pretokenize(line, lang, "moses")
            assert tokens.replace(" ", "") == line.replace(" ", "")
            assert not lone_marks(line, tokens)
            assert not any(token in ("\u200c", "\u200d") for token in tokens.split(" "))
    assert number > 50


@pytest.mark.slow
def test_all_real_text_to_data_bin(real_data: Path, tmp_path: Path) -> None:
    langs = MAIN + SMALL
    out = tmp_path / "bin"
    argv = ["--langs", ",".join(langs), "--raw", str(SOURCES), "--out", str(out), "--vocab-size", "4000"]
    assert len(plan(parser().parse_args(argv)).steps) == 4 * len(langs) + 3
    command = ["bash", str(SOURCES.parent.parent / "data_prep" / "prepare.sh"), *argv, "--max-lines", "fr=1000"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((out / "report.json").read_text())
    assert (out / "languages.txt").read_text().split() == langs
    languages = report["languages"]
    assert languages["fr"]["splits"]["train"]["lines"] == 1000
    assert languages["ar"]["rules"]["normalized"]["lines"] > 1000  # shadda and vowel in another order
    assert languages["fr"]["rules"]["blank_family"]["chars"] > 100  # NNBSP before ? and !
    assert languages["te"]["rules"]["cut"]["lines"] == languages["kn"]["rules"]["cut"]["lines"] == 1  # one-line corpora
    assert languages["te"]["rules"]["zero_width_space"]["chars"] >= 2
    for lang in MAIN:
        assert languages[lang]["tokens"]["valid"]["rate"] < 0.005
    tokenizer = Tokenizer.load(out / "tokenizer")
    words = ["క్రీస్టియన్\u200cసన్", "हिन्\u200dदी", "l’eau", "Kiswahili"]
    assert all(tokenizer.decode(pieces) == word for word, pieces in zip(words, tokenizer.encode_words(words, "te")))
