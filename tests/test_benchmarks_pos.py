"""Official files of parts of speech to the prepared form, made ones and every real one."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.benchmarks.pos import main
from fairseq_interference.data.prepared import read_labels, read_sentences
from fairseq_interference.data.readers import pos
from fairseq_interference.errors import DataError

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "pos"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")) or ["no real data"]
# UD 1 tags and slips: refused as they are
MAPPED = {
    "ar/ar-ud-dev.s1-100.conllu": ("CONJ=CCONJ", 68),
    "hi/hi-ud-dev.s1-260.conllu": ("CONJ=CCONJ,adj=ADJ,adv=ADV", 49),
}


def row(number: str, form: str, tag: str) -> str:
    return f"{number}\t{form}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n"


def sentence(*tagged: str) -> str:
    pairs = [pair.rsplit("/", 1) for pair in tagged]
    return "# text\n" + "".join(row(str(i), word, tag) for i, (word, tag) in enumerate(pairs, 1)) + "\n"


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_prepared_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test, blind = (tmp_path / name for name in ("train.conllu", "test.conllu", "blind.conllu"))
    train.write_text(sentence("a b/NOUN", "und/CONJ") + row("1-2", "zum", "_") + sentence("c/X"), encoding="utf-8")
    test.write_text(sentence("c/X") + sentence("_/SYM", "d/_"), encoding="utf-8")
    blind.write_text(sentence("c/_"), encoding="utf-8")
    out = tmp_path / "prepared" / "ud"
    flags = ["--out", str(out), "--input", f"de:train:{train}", f"de:test:{test}", f"hi:test:{blind}"]
    assert main(flags) == 1
    assert f"{train}:3" in capsys.readouterr().err
    flags += ["--tag-map", "de:CONJ=CCONJ"]
    assert main([*flags, "--dry-run"]) == 0 and not out.exists()
    assert main(flags) == 0
    assert read_labels(out / "labels.txt") == list(pos.TAGS)
    assert jsonl(out / "de" / "train.jsonl") == [
        {"id": "de-train-1", "lang": "de", "words": ["a b", "und"], "labels": ["NOUN", "CCONJ"], "source_line": 2},
        {"id": "de-train-2", "lang": "de", "words": ["c"], "labels": ["X"], "source_line": 7},
    ]
    assert read_sentences(out / "de" / "test.jsonl", pos.TAGS)[1].labels == ["SYM", "_"]
    with pytest.raises(DataError):
        read_sentences(out / "de" / "test.jsonl", ["O", "B-X"])
    assert jsonl(out / "hi" / "test.jsonl")[0]["labels"] is None
    assert (out / "de" / "train.gold").read_text(encoding="utf-8") == train.read_text().replace("CONJ", "CCONJ")
    assert (out / "de" / "test.gold").read_bytes() == test.read_bytes()
    meta = json.loads((out / "de" / "test.meta.json").read_text(encoding="utf-8"))
    assert (meta["format"], meta["words"], meta["tags"]) == ("conllu", 3, {"SYM": 1, "X": 1, "_": 1})
    assert meta["leaks"] == {"also_in_train": 1, "distinct": 2}
    said = capsys.readouterr().out
    assert "1 words have no tag" in said and "1 of 2 distinct sentences are also in train" in said
    assert main(flags) == 0
    assert main([*flags[:-1], "de:CONJ=SCONJ"]) == 1
    assert "tag_maps" in capsys.readouterr().err
    assert main([*flags[:-1], "de:CONJ=UND"]) == 2


def test_drawn_splits_keep_the_lines_of_the_treebank(tmp_path: Path) -> None:
    whole = tmp_path / "all.conllu"
    sentences = [
        f"# sent {i}\n" + row("1-2", "zum", "_") + row("1", f"w{i}", "X") + row("2", "m", "DET") + "\n"
        for i in range(20)
    ]
    whole.write_text("".join(sentences), encoding="utf-8")
    out = tmp_path / "drawn"
    assert main(["--out", str(out), "--input", f"de:all:{whole}", "--split", "dev=0.2,test=0.1"]) == 0
    parts = [(out / "de" / f"{split}.gold").read_text(encoding="utf-8") for split in ("train", "dev", "test")]
    assert [part.count("# sent") for part in parts] == [14, 4, 2]
    kept = [text for text in sentences if text in "\n" + "".join(parts)]
    assert kept == sentences
    assert sum(map(len, parts)) == len("".join(sentences))


def words_by_hand(path: Path) -> list[tuple[str, str]]:
    """Words and tags, read as each source documents it and without the readers."""
    found = []
    for line in path.read_bytes().decode("utf-8").split("\n"):
        cells = line.split(" " if path.suffix == ".txt" else "\t")
        if path.suffix == ".conllu":
            if len(cells) == 10 and cells[0].isdigit():
                found.append((cells[1], cells[3]))
        elif line:
            found.append((cells[0], cells[1] if len(cells) > 1 else ""))
    return found


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_every_real_file(real_data: Path, tmp_path: Path, name: str) -> None:
    path, lang = FOLDER / name, name[:2]
    text, line = MAPPED.get(name, ("", 0))
    if text:
        with pytest.raises(DataError, match="17 tags") as caught:
            pos.read(path)
        assert str(caught.value.where) == f"{path}:{line}"
    file = pos.read(path, tag_map=pos.parse_tag_map(text))
    by_hand = words_by_hand(path)
    assert [word for words in file.words for word in words] == [word for word, _ in by_hand]
    assert file.labelled is (path.name not in ("test-mr.tsv", "test-te.tsv"))
    pos.write(tmp_path / "back", file)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    if file.labelled and not text:
        pos.write(tmp_path / "back", file, file.labels)
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
    out = tmp_path / "prepared"
    flags = ["--out", str(out), "--input", f"{lang}:test:{path}", *(["--tag-map", text] if text else [])]
    assert main(flags) == 0
    sentences = read_sentences(out / lang / "test.jsonl", pos.TAGS)
    assert [s.words for s in sentences] == file.words
    gold = pos.read(out / lang / "test.gold")
    assert (gold.words, gold.labels) == (file.words, file.labels)
    if file.labelled:
        mapping = pos.parse_tag_map(text)
        tags = Counter(mapping.get(tag, tag) for _, tag in by_hand)
        assert tags == Counter(tag for s in sentences for tag in s.labels or ())
