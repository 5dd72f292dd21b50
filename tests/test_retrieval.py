"""Sentence retrieval: against loops over single sentences, parallel files as they come, the verb, real text."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.cli import main
from fairseq_interference.data.readers.parallel import read_parallel
from fairseq_interference.errors import DataError, ScoringError, UsageError
from fairseq_interference.evaluation.metrics_retrieval import retrieval_scores

pytest.importorskip("fairseq")
from tagging_world import WORDS, write_checkpoint

REPOSITORY = Path(__file__).resolve().parent.parent
LANGS = ("xa", "xb")


# --- the measure -------------------------------------------------------------------------------------------------


def by_hand(source: Any, target: Any, pairs: Any) -> tuple[float, float]:
    """Both directions, one cosine after the other."""
    found = []
    for queries, pool, way in ((source, target, pairs), (target, source, [(b, a) for a, b in pairs])):
        total = 0.0
        for query, _ in way:
            cosines = []
            for vector in pool:
                norms = math.sqrt(sum(x * x for x in queries[query])) * math.sqrt(sum(x * x for x in vector))
                cosines.append(sum(x * y for x, y in zip(queries[query], vector)) / norms if norms else 0.0)
            best = [number for number, cosine in enumerate(cosines) if cosine > max(cosines) - 1e-9]
            total += sum((query, number) in way for number in best) / len(best)
        found.append(total / len(way))
    return found[0], found[1]


VECTORS = st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=7)


@given(VECTORS, VECTORS, st.data())
def test_against_loops(source: Any, target: Any, data: Any) -> None:
    """Small whole numbers make many ties and vectors of zeros; pairs repeat, and a text has several translations."""
    one = st.tuples(st.integers(0, len(source) - 1), st.integers(0, len(target) - 1))
    pairs = data.draw(st.lists(one, min_size=1, max_size=9))
    found = retrieval_scores(np.array(source, dtype=float), np.array(target, dtype=float), np.array(pairs))
    there, back = by_hand(source, target, pairs)
    assert found["source_to_target"] == pytest.approx(there, abs=1e-12)
    assert found["target_to_source"] == pytest.approx(back, abs=1e-12)
    assert found["accuracy"] == pytest.approx((there + back) / 2, abs=1e-12) and found["n"] == len(pairs)


def test_a_collapsed_model_has_the_score_of_chance() -> None:
    same, pairs = np.ones((8, 3)), np.stack([np.arange(8)] * 2, axis=1)
    found = retrieval_scores(same, same * 2, pairs)
    assert found["accuracy"] == 1 / 8 and found["ties"] == {"source_to_target": 8, "target_to_source": 8}


def test_more_queries_than_are_compared_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    source, target = draw.normal(size=(23, 4)), draw.normal(size=(19, 4))
    pairs = np.stack([draw.integers(0, 23, 40), draw.integers(0, 19, 40)], axis=1)
    whole = retrieval_scores(source, target, pairs)
    monkeypatch.setattr("fairseq_interference.evaluation.metrics_retrieval.ROWS", 5)
    assert retrieval_scores(source, target, pairs) == whole


def test_vectors_that_say_nothing_are_refused() -> None:
    with pytest.raises(ScoringError, match="finite"):
        retrieval_scores(np.array([[math.nan]]), np.ones((1, 1)), np.array([[0, 0]]))
    with pytest.raises(ScoringError, match="no pairs"):
        retrieval_scores(np.ones((1, 1)), np.ones((1, 1)), np.zeros((0, 2), dtype=int))


# --- parallel files ----------------------------------------------------------------------------------------------


def test_only_lf_ends_a_line(tmp_path: Path) -> None:
    # T9, B6, B7: U+2028, U+0085 and CR inside, CRLF, BOM, a blank line, no LF at the end
    (tmp_path / "one").write_bytes("\ufeffa\u2028b\r\n\nc\x85d\re\r\nlast".encode())
    (tmp_path / "other").write_bytes(b"A\nB\nC\nD\n")
    pairs = read_parallel(tmp_path / "one", tmp_path / "other")
    assert [pair[:2] for pair in pairs] == [("a\u2028b", "A"), ("", "B"), ("c\x85d\re", "C"), ("last", "D")]
    assert [pair.line for pair in pairs] == [1, 2, 3, 4]


def test_both_sides_in_one_file(tmp_path: Path) -> None:
    # N4: quotes are text
    path = tmp_path / "pairs.tsv"
    path.write_text('"a\t"A"\r\nb\tB\r\n', encoding="utf-8")
    assert [pair[:2] for pair in read_parallel(path)] == [('"a', '"A"'), ("b", "B")]
    path.write_text("7\tGo.\t8\tVa !\n9\tHi.\t10\tSalut.\n", encoding="utf-8")
    assert [pair[:2] for pair in read_parallel(path, columns=(4, 2))] == [("Va !", "Go."), ("Salut.", "Hi.")]
    assert len(read_parallel(path, columns=(2, 4), most=1)) == 1


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("a\tA\nb\n", None, ["pairs.tsv:2", "--target"]),
        ("a\tA\tCC-BY\n", None, ["pairs.tsv:1", "3 columns", "--columns"]),
        ("a\tA\tCC-BY\na\tA\n", (1, 3), ["pairs.tsv:2", "2 columns"]),
    ],
)
def test_a_line_without_its_columns(tmp_path: Path, text: str, columns: Any, said: list[str]) -> None:
    (tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_parallel(tmp_path / "pairs.tsv", columns=columns)
    assert all(part in str(caught.value) for part in said)


def test_files_of_different_lengths(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\nb\n")
    (tmp_path / "other").write_text("A\n")
    with pytest.raises(DataError, match="as many lines") as caught:
        read_parallel(tmp_path / "one", tmp_path / "other")
    assert "2 and 1 lines" in str(caught.value)
    with pytest.raises(UsageError):
        read_parallel(tmp_path / "one", tmp_path / "one", columns=(1, 2))


# --- a model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with and without language-specific parts, and parallel text with repeats and a blank line."""
    folder = tmp_path_factory.mktemp("retrieval")
    write_checkpoint(folder / "adpt", LANGS, "xlm_adpt_tiny", "--encoder-layers", "3")
    write_checkpoint(folder / "joint", LANGS, "xlm_joint_tiny")
    draw = random.Random(1)
    texts = {lang: [" ".join(draw.choices(WORDS[lang], k=draw.randint(1, 9))) for _ in range(30)] for lang in LANGS}
    texts["xa"][5] = texts["xa"][4]  # one sentence, two translations
    texts["xb"][9] = f"  {texts['xb'][8]}\u200b "  # one translation of two sentences, in other blanks
    texts["xa"][11] = " \u200b"
    texts["xb"][20] = " ".join(draw.choices(WORDS["xb"], k=90))  # longer than the model
    for lang, lines in texts.items():
        (folder / f"{lang}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    both = [f"{a}\t{b}\n" for a, b in zip(texts["xa"], texts["xb"])]
    (folder / "both.tsv").write_text("".join(both), encoding="utf-8")
    return folder


def evaluate(world: Path, arch: str, *flags: str) -> int:
    command = ["evaluate", "--task", "retrieval", "--checkpoint", str(world / arch / "checkpoint_last.pt"), *flags]
    return main(command)


def files(world: Path) -> list[str]:
    return ["--source", str(world / "xa.txt"), "--target", str(world / "xb.txt"), "--langs", "xa,xb", "--json"]


def scored(world: Path, capsys: pytest.CaptureFixture[str], *flags: str, arch: str = "adpt") -> dict[str, Any]:
    assert evaluate(world, arch, *flags) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out)
    return result


def alone(loaded: Any, text: str, lang: str, layer: int) -> Any:
    """Mean hidden state of one sentence, by itself in the model: float64, cut by hand where it is too long."""
    import torch

    from fairseq_interference.data.tokenizer import Tokenizer

    pieces = Tokenizer.load(loaded.tokenizer_dir).encode_line(text, lang)
    ids = [loaded.dictionary.index(piece) for piece in pieces] + [2]
    parts = -(-len(ids) // 63)
    cuts = [len(ids) * number // parts for number in range(parts + 1)]
    states = []
    for first, stop in zip(cuts, cuts[1:]):
        row, lang_id = torch.tensor([[0, *ids[first:stop]]]), torch.tensor([loaded.languages.id(lang)])
        with torch.no_grad():
            _, extra = loaded.model(row, lang_id=lang_id, features_only=True, return_all_hiddens=True)
        states.append(extra["inner_states"][layer][1:, 0])
    return torch.cat(states)[:-1].numpy().mean(axis=0)


def test_against_one_sentence_at_a_time(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference import load

    result = scored(world, capsys, *files(world), "--layer", "all")
    loaded = load(str(world / "adpt" / "checkpoint_last.pt"))
    loaded.model.double()
    lines = [(world / f"{lang}.txt").read_text(encoding="utf-8").split("\n")[:-1] for lang in LANGS]
    pairs = [(a.strip(), b.replace("\u200b", "").strip()) for a, b in zip(*lines) if a.replace("\u200b", "").strip()]
    one, other = (list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1))
    numbers = [(one.index(a), other.index(b)) for a, b in pairs]
    for layer in range(4):
        vectors = [[alone(loaded, text, lang, layer) for text in side] for side, lang in zip((one, other), LANGS)]
        there, back = by_hand(*vectors, numbers)
        found = result["metrics"]["per_layer"][str(layer)]
        assert (found["source_to_target"], found["target_to_source"]) == pytest.approx((there, back), abs=1e-12)
    assert (result["task"], result["lang"], result["n"]) == ("retrieval", "xb", 29)
    assert result["counts"]["left_out"] == 1 and result["counts"]["candidates"] == {"source": 28, "target": 28}
    assert (
        result["rules"]["layer"] == 2
        and result["metrics"]["accuracy"] == result["metrics"]["per_layer"]["2"]["accuracy"]
    )


def test_the_same_for_any_batch(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = scored(world, capsys, *files(world), "--layer", "all")
    for size in ("1", "3", "16"):
        assert scored(world, capsys, *files(world), "--layer", "all", "--batch-size", size) == whole


def test_identical_sides(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = str(world / "xa.txt")
    same = ["--source", text, "--target", text, "--langs", "xa,xa", "--layer", "all", "--json"]
    result = scored(world, capsys, *same)
    assert {row["accuracy"] for row in result["metrics"]["per_layer"].values()} == {1.0}


def test_one_file_with_both_sides(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--source", str(world / "both.tsv"), "--langs", "xa,xb", "--json"]
    assert scored(world, capsys, *both) == scored(world, capsys, *files(world))
    swapped = scored(world, capsys, *both, "--columns", "2,1", "--langs", "xb,xa")["metrics"]
    metrics = scored(world, capsys, *both)["metrics"]
    assert swapped["source_to_target"] == metrics["target_to_source"] and swapped["accuracy"] == metrics["accuracy"]


def test_layers(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = scored(world, capsys, *files(world), "--layer", "all")["metrics"]
    some = scored(world, capsys, *files(world), "--layer=-1,0,middle")
    assert some["rules"]["layer"] == 3 and some["metrics"]["accuracy"] == every["per_layer"]["3"]["accuracy"]
    assert some["metrics"]["per_layer"] == {name: every["per_layer"][name] for name in ("0", "2", "3")}
    assert scored(world, capsys, *files(world))["rules"]["layer"] == 2  # the middle of three, rounded up


def test_table_and_notes(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(world, "adpt", *files(world)[:-1], "--layer", "all") == 0
    said = capsys.readouterr()
    assert "xa to xb" in said.out and said.out.count(" *\n") == 1 and "29 pairs" in said.out
    assert "left out" in said.err and "on this very text" in said.err


def test_a_language_that_the_model_does_not_know(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A2, A3
    unknown = [*files(world)[:4], "--langs", "xa,zz", "--json"]
    assert evaluate(world, "adpt", *unknown) == 2
    assert "xa,xb" in capsys.readouterr().err
    rules = scored(world, capsys, *unknown, "--fallback-lang", "xb")["rules"]
    assert (rules["source_parts"], rules["parts"]) == ("own", "xb")
    assert scored(world, capsys, *unknown, arch="joint")["rules"]["parts"] == "none"
    assert scored(world, capsys, *files(world))["rules"]["parts"] == "own"


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        (["--layer", "7"], "no such layer", 2),
        (["--layer", "top"], "middle, all", 2),
        (["--langs", "xa"], "two codes", 2),
        (["--langs", "xa,shared"], "language code", 2),
        (["--batch-size", "0"], "At least 1", 2),
        (["--max-lines", "0"], "At least 1", 2),
        (["--columns", "1"], "A,B", 2),
        (["--lang", "xa"], "--langs", 2),
        (["--gold", "x"], "--gold says nothing", 2),
        (["--scheme", "conlleval"], "--scheme says nothing", 2),
        (["--source", "nowhere"], "no such file", 1),
    ],
)
def test_mistakes(world: Path, capsys: pytest.CaptureFixture[str], change: list[str], said: str, code: int) -> None:
    assert evaluate(world, "adpt", *files(world), *change) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_without_a_tokenizer_or_text(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(world / "adpt", tmp_path / "adpt")
    for place in (tmp_path / "adpt" / "tokenizer", tmp_path / "adpt" / "data" / "tokenizer"):
        shutil.rmtree(place)
    (tmp_path / "adpt" / "companions.json").unlink()
    assert evaluate(tmp_path, "adpt", *files(world)) == 1
    assert "tokenizer/" in capsys.readouterr().err
    (tmp_path / "blank").write_text(" \n\u200b\n")
    blank = ["--source", str(tmp_path / "blank"), "--target", str(tmp_path / "blank"), "--langs", "xa,xb"]
    assert evaluate(world, "adpt", *blank) == 1
    assert "text on both sides" in capsys.readouterr().err


def test_precision_is_put_back(world: Path) -> None:
    import torch

    from fairseq_interference import load
    from fairseq_interference.evaluation.retrieval import retrieve

    loaded = load(str(world / "adpt" / "checkpoint_last.pt"))
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    retrieve(loaded, [("river", "mulo")], LANGS)
    after = loaded.model.state_dict()
    assert all(after[name].dtype == value.dtype and torch.equal(after[name], value) for name, value in before.items())


def test_records(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """run/evaluate.sh writes what the verb says, under the language of the target."""
    from fairseq_interference.evaluation.checkpoint_records import main as records_main

    result = scored(world, capsys, *files(world))
    flags = ["--task", "retrieval", "--checkpoint", str(world / "adpt" / "checkpoint_last.pt")]
    flags += [*files(world)[:-1], "--results", str(tmp_path / "results")]
    assert records_main([*flags, "--benchmark", "tatoeba"]) == 0
    [path] = (tmp_path / "results").glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    evaluation = record["evaluation"]
    assert {name: evaluation[name] for name in ("n", "metrics", "rules")} == {
        name: result[name] for name in ("n", "metrics", "rules")
    }
    assert (evaluation["benchmark"], evaluation["language"]) == ("tatoeba-xa", "xb")
    assert record["run"]["setting"] == "pretrain"
    assert main(["report", "--results", str(tmp_path / "results")]) == 0
    report = (tmp_path / "results" / "report.md").read_text(encoding="utf-8")
    assert "Pre-training: tatoeba-xa test, accuracy" in report and "missing" in report
    capsys.readouterr()
    assert records_main(flags[:4]) == 2
    assert "--source" in capsys.readouterr().err
    assert records_main([*flags[:4], "--data", "x"]) == 2


def test_artificial_languages(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Raw text of data_prep/synthetic is parallel line by line; --max-lines takes what both have."""
    made = [sys.executable, "-m", "data_prep.synthetic", "--out", str(tmp_path / "world"), "--langs", "xa,xb"]
    made += ["--sentences", "40", "--labelled", "3,3,3", "--concepts", "400"]
    subprocess.run(made, cwd=REPOSITORY, check=True, capture_output=True)
    raw = [str(tmp_path / "world" / "raw" / f"{lang}.txt") for lang in LANGS]
    result = scored(
        world, capsys, "--source", raw[0], "--target", raw[1], "--langs", "xa,xb", "--max-lines", "30", "--json"
    )
    assert result["n"] == 30 and 0 <= result["metrics"]["accuracy"] <= 1


@pytest.mark.real_data
@pytest.mark.parametrize("lang", ["ar", "fr", "hi", "mr", "ru", "sw", "te"])
def test_real_parallel_text(real_data: Path, lang: str) -> None:
    english, other = sorted((real_data / "raw" / lang).glob("tatoeba.*"), key=lambda path: path.suffix != ".eng")
    pairs = read_parallel(english, other)
    assert len(pairs) in (1000, 390, 234)
    assert all(pair.source.strip() and pair.target.strip() for pair in pairs)


@pytest.mark.real_data
def test_real_retrieval(real_data: Path, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hardly any piece of real text is known to the tiny model; identical sides are found unless they look alike."""
    english = str(real_data / "raw" / "te" / "tatoeba.tel-eng.eng")
    telugu = str(real_data / "raw" / "te" / "tatoeba.tel-eng.tel")
    flags = ["--source", english, "--target", telugu, "--langs", "xa,xb", "--json"]
    result = scored(world, capsys, *flags)
    assert result["n"] == 234 and result["counts"]["left_out"] == 0
    assert result["counts"]["candidates"] == {
        side: len({line.strip() for line in Path(path).read_text(encoding="utf-8").split("\n")} - {""})
        for side, path in (("source", english), ("target", telugu))
    }
