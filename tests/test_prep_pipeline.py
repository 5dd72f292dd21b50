"""prepare.sh from raw text to data-bin: through the real commands, against the libraries run by hand."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep import binarize, dictionary, imported, learn_bpe
from data_prep.common import SPLITS
from data_prep.prepare import main as prepare
from data_prep.prepare import parser, plan
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import DictionaryError, InterferenceError, StageError, TokenizerError, UsageError

REPOSITORY = Path(__file__).resolve().parent.parent
PREPARE = REPOSITORY / "data_prep" / "prepare.sh"
SYLLABLES = {
    "en": ["low", "er", "est", "new", "wid", "ing", "un", "the", "re", "ly"],
    "hi": ["कि", "ता", "बें", "हिन्", "दी", "घर", "क्\u200dष", "ों", "में", "है"],
    "th": ["ที่", "นี่", "มา", "กิน", "ข้าว", "ไป"],
}


def make_raw(folder: Path, sizes: dict[str, int], seed: int = 1) -> Path:
    """Artificial text with what a pipeline stumbles over."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for lang, size in sizes.items():
        parts = SYLLABLES[lang]
        lines = []
        for number in range(size):
            words = ["".join(rng.choices(parts, k=rng.randint(1, 3))) for _ in range(rng.randint(2, 9))]
            lines.append(
                " ".join(words) + rng.choice([".", "?", " </s>", "\r", "\u2028x", "", "<mask>", f", {number}"])
            )
            if rng.random() < 0.1:
                lines.append(rng.choice(lines))
        (folder / f"{lang}.txt").write_bytes(("\ufeff" + "\n".join(lines)).encode())
    return folder


def run(*argv: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(PREPARE), *map(str, argv)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


def here(*argv: object) -> None:
    """prepare.sh in this process, the host included: it is loaded once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "data_prep.prepare._in_own_process", lambda name, arguments: importlib.import_module(name).main(arguments)
        )
        assert prepare(list(map(str, argv))) == 0


def tree(folder: Path) -> dict[str, str]:
    """Content of everything but the notes of the stages (they hold seconds)."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".done",))
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)
    }


OPTIONS = ("--vocab-size", 150, "--valid-lines", 20, "--test-lines", 30, "--workers", 1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepare")
    make_raw(folder / "raw", {"en": 300, "hi": 200, "th": 80})
    run("--langs", "en,hi", "--raw", folder / "raw", "--out", folder / "bin", *OPTIONS)
    return folder


def pieces_of(data: Path, lang: str, split: str) -> list[list[str]]:
    """Pieces of every line of a binarised split, read with the host."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(data / lang / split), words)
    assert dataset is not None
    lines = [dataset[number].tolist() for number in range(len(dataset))]
    assert all(line[-1] == words.eos() for line in lines)
    return [[words[number] for number in line[:-1]] for line in lines]


# ---------------------------------------------------------------- what comes out


def test_layout_of_data_bin(world: Path) -> None:
    found = {name for name in tree(world / "bin") if not name.endswith(".lock")}
    expected = {f"{lang}/{split}.{end}" for lang in ("en", "hi") for split in SPLITS for end in ("bin", "idx")}
    tokenizer = {"tokenizer/tokenizer.json", "tokenizer/bpe.codes"}
    assert found == expected | tokenizer | {"dict.txt", "languages.txt", "report.json"}
    assert (world / "bin" / "languages.txt").read_text() == "en\nhi\n"


def test_binarised_text_is_the_cleaned_text(world: Path) -> None:
    report = json.loads((world / "bin" / "report.json").read_text())
    tokenizer = Tokenizer.load(world / "bin" / "tokenizer")
    for lang in ("en", "hi"):
        raw = (world / "raw" / f"{lang}.txt").read_bytes().decode().split("\n")
        expected = {tokenizer.pretokenize(tokenizer.clean(line), lang) for line in raw}
        found: dict[str, set[str]] = {}
        for split in SPLITS:
            lines = pieces_of(world / "bin", lang, split)
            assert len(lines) == report["languages"][lang]["splits"][split]["lines"]
            found[split] = {tokenizer.decode(line) for line in lines}
        everything = set.union(*found.values())
        assert {line for line in everything if "<unk>" not in line} <= expected
        assert len(everything) >= 0.99 * len(expected)  # a rare piece of valid or test may be unknown
        assert not found["train"] & found["valid"] and not found["valid"] & found["test"]
        assert len(found["valid"]) == 20 and len(found["test"]) == 30


def test_report_counts_and_unknown_rate(world: Path) -> None:
    report = json.loads((world / "bin" / "report.json").read_text())
    english = report["languages"]["en"]
    raw = (world / "raw" / "en.txt").read_bytes().decode()
    assert english["read"]["lines"] == len(raw.split("\n"))
    assert english["rules"]["bom"] == {"lines": 1, "chars": 1}
    assert english["rules"]["cr"]["chars"] == raw.count("\r")
    assert english["rules"]["separators"]["chars"] == raw.count("\u2028")
    assert english["rules"]["special_symbols"]["chars"] == raw.count("</s>") + raw.count("<mask>") > 0
    lines = sum(english["splits"][split]["lines"] for split in SPLITS)
    assert lines + english["rules"]["duplicate"]["lines"] == english["clean"]["lines"]
    for split in SPLITS:
        pieces = [piece for line in pieces_of(world / "bin", "en", split) for piece in line]
        tokens = english["tokens"][split]
        assert tokens["pieces"] == len(pieces)
        assert tokens["unknown"] == pieces.count("<unk>")
        assert tokens["rate"] == pytest.approx(pieces.count("<unk>") / len(pieces), abs=1e-6)


def test_special_symbols_appear_only_where_the_host_puts_them(world: Path) -> None:
    for lang in ("en", "hi"):
        pieces = {piece for line in pieces_of(world / "bin", lang, "train") for piece in line}
        assert not pieces & {"<s>", "</s>", "<pad>", "<mask>", "<unk>"}


def test_equal_to_the_libraries_run_by_hand(world: Path, tmp_path: Path) -> None:
    """subword-nmt's own commands on the sampled text, and a dictionary of the host, give the same files."""
    work = world / "bin.work"
    lines = {lang: len((work / f"tokens/{lang}/train.txt").read_text().split("\n")) - 1 for lang in ("en", "hi")}
    taken = learn_bpe.sample_sizes(lines, 1.43, 1_000_000)
    with open(tmp_path / "sample", "w", encoding="utf-8") as sample:
        for lang in ("en", "hi"):
            for line in learn_bpe.sampled(work / f"tokens/{lang}/train.txt", lines[lang], taken[lang], 1):
                sample.write(line + "\n")
    command = [str(Path(sys.executable).with_name("subword-nmt"))]
    arguments = ["learn-bpe", "-s", "150", "-t", "-i", str(tmp_path / "sample"), "-o", str(tmp_path / "codes")]
    subprocess.run([*command, *arguments], check=True, capture_output=True)
    codes = world / "bin" / "tokenizer" / "bpe.codes"
    assert (tmp_path / "codes").read_bytes() == codes.read_bytes()
    for lang in ("en", "hi"):
        text = work / "tokens" / lang / "train.txt"
        arguments = ["apply-bpe", "-c", str(codes), "-i", str(text), "-o", str(tmp_path / lang)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)
        assert (tmp_path / lang).read_bytes() == (work / "pieces" / lang / "train.txt").read_bytes()
    from fairseq.data import Dictionary

    words = Dictionary()
    for lang in ("en", "hi"):
        Dictionary.add_file_to_dictionary(str(tmp_path / lang), words, str.split, 1)
    counts = {symbol: words.count[number] for symbol, number in words.indices.items() if number >= words.nspecial}
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:150]
    assert (world / "bin" / "dict.txt").read_text() == "".join(f"{symbol} {count}\n" for symbol, count in expected)


def test_running_again_does_nothing(world: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (world / "bin").rglob("*.bin")}
    content = tree(world / "bin")
    done = run("--langs", "en,hi", "--raw", world / "raw", "--out", world / "bin", *OPTIONS)
    assert "binarise en: done before" in done.stderr
    assert tree(world / "bin") == content
    assert {path: path.stat().st_mtime_ns for path in (world / "bin").rglob("*.bin")} == before


def test_changes_are_named_and_force_redoes(world: Path, tmp_path: Path) -> None:
    for name in ("raw", "bin", "bin.work"):
        shutil.copytree(world / name, tmp_path / name)
    argv = ["--langs", "en,hi", "--raw", tmp_path / "raw", "--out", tmp_path / "bin", *OPTIONS]
    before = tree(tmp_path / "bin")
    with pytest.raises(StageError, match="vocab_size"):
        here(*argv, "--vocab-size", 140)
    assert run(*argv, "--vocab-size", 140, check=False).returncode == 1
    with pytest.raises(StageError, match="seed"):
        here(*argv, "--seed", 2)
    assert tree(tmp_path / "bin") == before
    with open(tmp_path / "raw" / "hi.txt", "a", encoding="utf-8") as stream:
        stream.write("\nकिता")
    with pytest.raises(StageError, match=r"hi\.txt"):
        here(*argv)
    here(*argv, "--vocab-size", 140, "--force")
    after = tree(tmp_path / "bin")
    assert after["dict.txt"] != before["dict.txt"] and after["hi/train.bin"] != before["hi/train.bin"]
    with pytest.raises(StageError, match="dictionary of before"):  # hi would be left with it (D14)
        here("--langs", "en", *argv[2:], "--vocab-size", 130, "--force")
    with pytest.raises(StageError, match="dictionary of before"):
        here("--langs", "hi", *argv[2:], "--vocab-size", 130, "--force")
    assert tree(tmp_path / "bin") == after
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dict.txt").write_text("a 1\n")
    with pytest.raises(StageError, match="not made here"):
        here("--langs", "en", "--raw", tmp_path / "raw", "--out", tmp_path / "mine", *OPTIONS)
    assert (tmp_path / "mine" / "dict.txt").read_text() == "a 1\n"


def test_files_of_the_user_are_not_replaced(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "raw", tmp_path / "raw")
    (tmp_path / "raw" / "en").mkdir()
    (tmp_path / "raw" / "en" / "a.txt").write_bytes((tmp_path / "raw" / "en.txt").read_bytes())
    (tmp_path / "raw" / "en.txt").unlink()
    with pytest.raises(UsageError, match="places of their own"):
        here("--langs", "en", "--raw", tmp_path / "raw", "--out", tmp_path / "raw", *OPTIONS)
    (tmp_path / "bin" / "en").mkdir(parents=True)
    (tmp_path / "bin" / "en" / "mine").touch()
    with pytest.raises(StageError, match="in the place"):
        here("--langs", "en", "--raw", tmp_path / "raw", "--out", tmp_path / "bin", *OPTIONS)
    assert (tmp_path / "raw" / "en" / "a.txt").is_file()
    for place in ("hi.txt", "hi.txt/x"):
        with pytest.raises(UsageError, match="cannot be written to"):
            here("--langs", "en", "--raw", tmp_path / "raw", "--out", tmp_path / "raw" / place, *OPTIONS)


def test_tokenizer_and_report_of_the_user_are_not_replaced(world: Path, tmp_path: Path) -> None:
    for name in ("tokenizer/tokenizer.json", "report.json"):
        mine = tmp_path / name.partition(".")[0] / name
        mine.parent.mkdir(parents=True)
        mine.write_text("{}")
        out = tmp_path / name.partition(".")[0]
        with pytest.raises(StageError, match="not touched"):
            here("--langs", "en", "--raw", world / "raw", "--out", out, *OPTIONS, "--dry-run")
        assert mine.read_text() == "{}"


def test_a_split_without_lines_has_no_files(world: Path, tmp_path: Path) -> None:
    sizes = ("--vocab-size", 200, "--valid-lines", 0, "--test-lines", 0, "--workers", 1)
    here("--langs", "th", "--raw", world / "raw", "--out", tmp_path / "bin", *sizes)
    assert {path.name for path in (tmp_path / "bin" / "th").iterdir()} == {".done", "train.bin", "train.idx"}
    report = json.loads((tmp_path / "bin" / "report.json").read_text())
    assert report["languages"]["th"]["missing_splits"] == ["valid", "test"]


# ---------------------------------------------------------------- dry run, usage


def test_dry_run_prints_the_commands_and_writes_nothing(world: Path, tmp_path: Path) -> None:
    argv = ("--langs", "en,hi", "--raw", world / "raw", "--out", tmp_path / "x" / "bin", *OPTIONS)
    done = run(*argv, "--dry-run", "--max-lines", "hi=50")
    assert not (tmp_path / "x").exists()
    assert done.stdout.count("python -m data_prep.clean") == 2
    assert "--max-lines 50" in done.stdout
    assert f"fairseq-preprocess --only-source --srcdict {tmp_path}" in done.stdout
    # the commands are exact: run by hand, in one shell, they give the same data (the last one loads the host)
    commands = [line for line in done.stdout.split("\n") if line.startswith("python ")]
    assert "data_prep.binarize" in commands[-1]
    script = "set -e\n" + "\n".join(commands[:-1]).replace("python ", f"{sys.executable} ")
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, cwd=REPOSITORY)
    ran = tree(tmp_path / "x" / "bin.work")
    places = ("--out", tmp_path / "y", "--work", tmp_path / "w")
    here("--langs", "en,hi", "--raw", world / "raw", *places, *OPTIONS, "--max-lines", "hi=50")
    assert tree(tmp_path / "w") == ran
    assert json.loads((tmp_path / "y" / "report.json").read_text())["languages"]["hi"]["splits"]["train"]["lines"] == 50


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--langs", "en,en"], 2, "listed twice"),
        (["--langs", "en,train"], 2, "not a language code"),
        (["--langs", "en,de"], 1, "no text of language de"),
        (["--max-lines", "hi=5"], 2, "--max-lines"),
        (["--max-lines", "en=many"], 2, "--max-lines"),
        (["--vocab-size", "3"], 2, "--vocab-size"),
        (["--temperature", "0.5"], 2, "--temperature"),
        (["--bpe", "wordpiece"], 2, "--bpe"),
        (["--min-chars", "9", "--max-chars", "8"], 2, "--min-chars, --max-chars"),
        (["--normalization", "nfkd"], 2, "--normalization"),
        (["--valid-lines", "0.7"], 2, "--valid-lines"),
        (["--script", "en=Nope"], 2, "Unknown script"),
        (["--append"], 2, "nothing to append to"),
        (["--tokenizer-from", "/nowhere"], 2, "--tokenizer-from"),
        (["--workers", "0"], 2, "--workers"),
        (["--memory", "x"], 2, "--memory"),
        (["--no-such-flag"], 2, "unrecognized"),
    ],
)
def test_usage_errors(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, message: str
) -> None:
    base = ["--langs", "en", "--raw", str(world / "raw"), "--out", str(tmp_path / "bin"), "--dry-run"]
    try:
        prepare([*base, *argv])
    except InterferenceError as error:
        assert error.exit_code == code
        assert message in str(error)
    except SystemExit as error:
        assert error.code == code
        assert message in capsys.readouterr().err
    else:
        pytest.fail("accepted")


def test_help_and_mistakes_end_without_traceback(tmp_path: Path) -> None:
    assert "Usage: data_prep/prepare.sh" in run("--help").stdout
    (tmp_path / "en.txt").write_bytes(b"ok\n\xff\n")
    done = run("--langs", "en", "--raw", tmp_path, "--out", tmp_path / "bin", check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/en.txt:2" in done.stderr and "Traceback" not in done.stderr


# ---------------------------------------------------------------- more languages, other vocabularies


def test_append_keeps_everything_bit_identical(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "bin", tmp_path / "bin")
    before = tree(tmp_path / "bin")
    argv = ["--raw", world / "raw", "--out", tmp_path / "bin", *OPTIONS]
    with pytest.raises(StageError, match="--append"):
        prepare(list(map(str, ["--langs", "en,hi,th", *argv])))
    done = run("--langs", "th", "--append", *argv)
    after = tree(tmp_path / "bin")
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"languages.txt", "report.json"}
    assert (tmp_path / "bin" / "languages.txt").read_text() == "en\nhi\nth\n"
    assert set(after) - set(before) >= {f"th/{split}.bin" for split in SPLITS}
    report = json.loads((tmp_path / "bin" / "report.json").read_text())
    assert list(report["languages"]) == ["en", "hi", "th"]
    assert report["languages"]["th"]["tokens"]["train"]["rate"] > 0.2  # its letters are unknown, and this is said
    assert re.search(r"th .*\d\d\.\d+", done.stderr)
    here("--langs", "th", "--append", *argv)
    assert tree(tmp_path / "bin") == after
    with pytest.raises(DictionaryError, match="another dictionary"):
        (tmp_path / "bin" / "en" / "dict.txt").write_text("a 1\n")
        prepare(list(map(str, ["--langs", "th", "--append", *argv])))


@pytest.fixture(scope="module")
def pieces_world(world: Path) -> Path:
    argv = ("--langs", "en,hi,th", "--raw", world / "raw", "--bpe", "sentencepiece", "--vocab-size", 120)
    here(*argv, "--out", world / "sp", "--workers", 1)
    return world / "sp"


def test_sentencepiece(pieces_world: Path) -> None:
    tokenizer = Tokenizer.load(pieces_world / "tokenizer")
    assert (tokenizer.kind, tokenizer.pretokenizer) == ("sentencepiece", "none")
    report = json.loads((pieces_world / "report.json").read_text())
    for found in report["languages"].values():
        assert found["rules"]["tokenizer_normalization"] == {"lines": 0, "chars": 0}
    joined = [piece for line in pieces_of(pieces_world, "hi", "train") for piece in line]
    assert any("\u200d" in piece for piece in joined)


def test_tokenizer_from_learns_nothing(world: Path, pieces_world: Path, tmp_path: Path) -> None:
    """A sentencepiece model and dict.txt as the host's public models carry them, beside a checkpoint."""
    given = tmp_path / "public"
    given.mkdir()
    shutil.copyfile(pieces_world / "tokenizer" / "sentencepiece.model", given / "sentencepiece.bpe.model")
    content = (pieces_world / "dict.txt").read_bytes().rstrip(b"\n")  # no LF at the end: still copied byte for byte
    (given / "dict.txt").write_bytes(content)
    (given / "model.pt").write_bytes(b"")
    argv = ("--langs", "hi,en", "--raw", world / "raw", "--out", tmp_path / "bin", "--workers", 1)
    here(*argv, "--tokenizer-from", given / "model.pt")
    assert (tmp_path / "bin" / "dict.txt").read_bytes() == content
    assert (tmp_path / "bin" / "languages.txt").read_text() == "hi\nen\n"
    assert pieces_of(tmp_path / "bin", "en", "valid") == pieces_of(pieces_world, "en", "valid")
    assert imported.find(world / "bin").kind == "subword-nmt"
    assert imported.find(world / "bin").pretokenizer == "moses"
    with pytest.raises(TokenizerError, match="No tokenizer"):
        imported.find(world / "raw")


def test_model_normalisation_is_counted(world: Path, tmp_path: Path) -> None:
    import sentencepiece

    given = tmp_path / "given"
    given.mkdir()
    text = ["ab क्\u200cष ﬁ", "ab cd"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(given / "m"),
        vocab_size=16,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    (given / "m.vocab").unlink()
    (given / "dict.txt").write_text("▁ 1\na 1\nb 1\n")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "hi.txt").write_text("ab\nक्\u200cष\nﬁ ab\ncd\n", encoding="utf-8")
    argv = ["--langs", "hi", "--raw", tmp_path / "raw", "--out", tmp_path / "bin", "--tokenizer-from", given]
    argv += ["--valid-lines", 0, "--test-lines", 0]
    made = plan(parser().parse_args(list(map(str, argv))))
    for step, name, arguments in made.steps:
        if name != "data_prep.binarize":
            step(arguments)
    counts = json.loads((tmp_path / "bin.work" / "pieces" / "hi" / "counts.json").read_text())
    assert counts["train"]["changed_lines"] == 2
    assert counts["train"]["changed_chars"] == 3  # the joiner is lost, a ligature becomes two letters


def test_huggingface_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<s>": 0, "<unk>": 1, "low": 2, "er": 3}
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader.save(str(tmp_path / "tokenizer.json"))
    found = imported.find(tmp_path)
    assert found.kind == "huggingface" and found.dictionary is None
    assert imported.huggingface_dictionary(found.file) == "low 1\ner 1\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git-LFS"),
        ("a 1\nb 1\na 2\n", "twice"),
        ("a 1\n<mask> 1\n", "special symbols"),
        ("a 1\n</s> 1\n", "special symbols"),
        ("a one\n", "a piece, a blank and a count"),
        ("a\n", "a piece, a blank and a count"),
        ("", "empty"),
        ("a\xa0b 1\n", "a piece, a blank and a count"),
    ],
)
def test_broken_dictionaries_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "dict.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DictionaryError, match=message):
        dictionary.read_dictionary(tmp_path / "dict.txt")
    with pytest.raises(DictionaryError, match=message):
        binarize.binarize({}, tmp_path / "dict.txt", tmp_path / "out", 1)
    (tmp_path / "dict.txt").write_text("a 1\na 2 #fairseq:overwrite\n")
    assert dictionary.read_dictionary(tmp_path / "dict.txt") == ["a"]


def test_vocabulary_adapts_to_small_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "en.txt"
    text.write_text("low lower lowest new newer\n" * 30)
    for kind in learn_bpe.KINDS:
        learn_bpe.learn({"en": text}, tmp_path / kind, learn_bpe.Options(kind, 5000))
        assert "the text is small" in capsys.readouterr().err
        assert json.loads((tmp_path / kind / "learn.json").read_text())["size"] < 60
        many = tmp_path / f"{kind}.txt"
        many.write_text("".join(chr(0x4E00 + number) + chr(0x5E00 + number) + "\n" for number in range(200)) * 3)
        with pytest.raises(UsageError, match="no room"):
            learn_bpe.learn({"zh": many}, tmp_path / f"{kind}2", learn_bpe.Options(kind, 50))


# ---------------------------------------------------------------- workers, interruptions


@pytest.mark.slow
def test_workers_do_not_change_a_byte(world: Path, tmp_path: Path) -> None:
    make_raw(tmp_path / "raw", {"en": 3000, "hi": 2000})
    code = "import sys; from data_prep import parallel as p, prepare; p.CHUNK_BYTES = 5000; prepare.main(sys.argv[1:])"
    found = []
    for workers in (1, 2, 7):
        out = tmp_path / f"bin{workers}"
        argv = ["--langs", "en,hi", "--raw", tmp_path / "raw", "--out", out, "--vocab-size", 200, "--workers", workers]
        command = [sys.executable, "-c", code, *map(str, argv)]
        subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
        found.append((tree(out), tree(tmp_path / f"bin{workers}.work")))
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_killed_at_any_moment_and_run_again(world: Path, tmp_path: Path) -> None:
    expected = tree(world / "bin")
    rng = random.Random(5)
    killed = 0
    argv = ["--langs", "en,hi", "--raw", world / "raw", "--out", tmp_path / "bin", *OPTIONS, "--workers", 2]
    command = ["bash", str(PREPARE), *map(str, argv)]
    for limit in (0.3, 0.6, 1.0, 1.5, 2.5, 4.0):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHON": sys.executable}
        )
        time.sleep(limit * rng.uniform(0.7, 1.3))
        if process.poll() is None:
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]))
            killed += 1
        process.wait()
    assert killed
    run(*argv)
    assert tree(tmp_path / "bin") == expected
