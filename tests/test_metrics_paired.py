"""Paired bootstrap: against all possible draws, against scores of drawn sentences, on systems known to be equal."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_interference.cli import main
from fairseq_interference.errors import ScoringError, UsageError
from fairseq_interference.evaluation import metrics_paired as paired
from fairseq_interference.evaluation.metrics import ner_scores, nli_scores, pos_scores
from fairseq_interference.evaluation.metrics_qa import qa_scores

GOLD = [["B-PER", "I-PER", "O"], ["B-LOC"], ["O", "O"], ["B-LOC", "O", "B-PER"], ["B-ORG", "I-ORG"]]
ONE = [["B-PER", "I-PER", "O"], ["B-LOC"], ["O", "B-LOC"], ["B-LOC", "O", "O"], ["B-ORG", "I-ORG"]]
OTHER = [["B-PER", "O", "O"], ["B-LOC"], ["O", "O"], ["B-LOC", "O", "B-PER"], ["O", "B-ORG"]]


def every_draw(gold: Any, one: Any, other: Any) -> list[float]:
    """The difference of F1 in each of the N^N draws, scored as files are."""
    found = []
    for draw in itertools.product(range(len(gold)), repeat=len(gold)):
        scores = [ner_scores([gold[n] for n in draw], [side[n] for n in draw])["f1"] for side in (one, other)]
        found.append(scores[0] - scores[1])
    return found


def test_against_every_possible_draw() -> None:
    counts = [paired.ner_counts(GOLD, side, "iob2") for side in (ONE, OTHER)]
    found = paired.paired_bootstrap(*counts, paired.micro_f1, resamples=20_000)
    exact = np.array(every_draw(GOLD, ONE, OTHER))
    sd = 0.5 / np.sqrt(20_000)
    assert found["better"] == pytest.approx((exact > 1e-12).mean(), abs=4 * sd)
    assert found["worse"] == pytest.approx((exact < -1e-12).mean(), abs=4 * sd)
    tails = (exact < 1e-12).mean(), (exact > -1e-12).mean()
    assert found["p"] == pytest.approx(min(1, 2 * min(tails)), abs=8 * sd)
    for name, share in (("low", 0.025), ("high", 0.975)):  # so many of the exact differences lie below
        below, at = (exact < found[name] - 1e-9).mean(), (exact < found[name] + 1e-9).mean()
        assert below - 4 * sd <= share <= at + 4 * sd
    assert found["difference"] == pytest.approx(ner_scores(GOLD, ONE)["f1"] - ner_scores(GOLD, OTHER)["f1"])


def test_f1_is_that_of_the_sums_and_no_mean() -> None:
    counts = paired.ner_counts(GOLD, ONE, "iob2")
    mean = np.mean([ner_scores([a], [b])["f1"] for a, b in zip(GOLD, ONE)])
    assert paired.micro_f1(*counts.sum(axis=0)) == pytest.approx(ner_scores(GOLD, ONE)["f1"])
    assert paired.micro_f1(*counts.sum(axis=0)) != pytest.approx(mean)


def test_counts_add_up_to_the_scores() -> None:
    draw = random.Random(1)
    tags = [[draw.choice(["NOUN", "VERB", "_"]) for _ in range(draw.randint(1, 6))] for _ in range(20)]
    given = [[draw.choice(["NOUN", "VERB"]) for _ in row] for row in tags]
    counts = paired.pos_counts(tags, given)
    assert counts[:, 1].sum() < sum(map(len, tags))
    assert paired.ratio(*counts.sum(axis=0)) == pytest.approx(pos_scores(tags, given)["accuracy"])
    golds, answers = [["the cat"], ["a b c"], ["x"], ["y"]], ["cat", "b c d", None, "y"]
    em, f1 = paired.qa_counts(golds, answers, "squad", None, "NFC")
    scores = qa_scores(golds, answers, "squad", None)
    assert (paired.ratio(*em.sum(axis=0)), paired.ratio(*f1.sum(axis=0))) == pytest.approx((scores["em"], scores["f1"]))
    labels = paired.ner_counts([["B-A", "I-A"]], [["I-A", "I-A"]], "conlleval")
    assert labels.tolist() == [[1, 1, 1]]  # T5
    assert paired.ner_counts([["B-A", "I-A"]], [["I-A", "I-A"]], "iob2").tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_difference_and_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, 4, 60)
    first, second = (np.stack([gold, gold + draw.integers(0, 2, 60), draw.binomial(gold, 0.7)], 1) for _ in "ab")
    same = paired.paired_bootstrap(first, first, paired.micro_f1, resamples=400, seed=seed)
    assert (same["difference"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)
    assert same["better"] == same["worse"] == 0
    one = paired.paired_bootstrap(first, second, paired.micro_f1, resamples=400, seed=seed)
    assert one == paired.paired_bootstrap(first, second, paired.micro_f1, resamples=400, seed=seed)
    other = paired.paired_bootstrap(second, first, paired.micro_f1, resamples=400, seed=seed)
    assert other["difference"] == -one["difference"] and other["p"] == one["p"]
    assert (other["low"], other["high"]) == pytest.approx((-one["high"], -one["low"]), abs=1e-12)
    assert (other["better"], other["worse"]) == (one["worse"], one["better"])
    assert one["low"] <= one["difference"] <= one["high"]


def test_equal_systems_differ_as_often_as_they_may() -> None:
    """Two systems of one true accuracy on 200 sets of 150 examples: p < 0.05 in about 5 %; the interval agrees."""
    draw, called, agreed = np.random.default_rng(3), 0, 0
    for seed in range(200):
        hard = draw.random(150) < 0.3
        sides = [np.stack([np.where(hard, draw.random(150) < 0.4, draw.random(150) < 0.9), np.ones(150)], 1)]
        sides += [np.stack([np.where(hard, draw.random(150) < 0.4, draw.random(150) < 0.9), np.ones(150)], 1)]
        found = paired.paired_bootstrap(*sides, paired.ratio, resamples=400, seed=seed)
        called += found["p"] < 0.05
        agreed += (found["p"] < 0.05) == (found["low"] * found["high"] > 0)
    assert 2 <= called <= 22  # 10 expected; four standard deviations
    assert agreed >= 190


def test_a_clear_difference_is_seen() -> None:
    draw, ones = np.random.default_rng(1), np.ones(300)
    worse = draw.random(300) < 0.7
    better = worse | (draw.random(300) < 0.3)
    found = paired.paired_bootstrap(np.stack([better, ones], 1), np.stack([worse, ones], 1), paired.ratio)
    assert found["low"] > 0 and found["p"] == pytest.approx(2 / 10_001) and found["better"] == 1


def test_what_cannot_be_drawn() -> None:
    one = np.ones((1, 2))
    with pytest.raises(ScoringError, match="two or more"):
        paired.paired_bootstrap(one, one, paired.ratio)
    with pytest.raises(ScoringError, match="same examples"):
        paired.paired_bootstrap(np.ones((3, 2)), np.ones((4, 2)), paired.ratio)
    with pytest.raises(UsageError, match="more draws"):
        paired.paired_bootstrap(np.ones((3, 2)), np.ones((3, 2)), paired.ratio, resamples=39)
    with pytest.raises(UsageError, match="negative"):
        paired.paired_bootstrap(np.ones((3, 2)), np.ones((3, 2)), paired.ratio, seed=-1)


# --- the verb ----------------------------------------------------------------------------------------------------


def words(labels: list[list[str]]) -> str:
    return "".join("".join(f"w{n}\t{label}\n" for n, label in enumerate(row)) + "\n" for row in labels)


def conllu(tags: list[list[str]]) -> str:
    rows = ("".join(f"{n}\tw\t_\t{tag}" + "\t_" * 6 + "\n" for n, tag in enumerate(row, 1)) for row in tags)
    return "".join(f"{row}\n" for row in rows)


TAGS = [["NOUN", "VERB"], ["NOUN", "_"], ["X"]], [["NOUN", "NOUN"], ["NOUN", "X"], ["X"]], [["X", "X"]] * 2 + [["X"]]
LABELS = ["entailment", "neutral", "contradiction", "-", "neutral"]
SQUAD = [{"id": str(n), "question": "?", "answers": [{"text": f"a b{n}", "answer_start": 0}]} for n in range(4)]
FILES = {
    "ner": tuple(map(words, (GOLD, ONE, OTHER))),
    "pos": tuple(map(conllu, TAGS)),
    "nli": (
        "".join(f"p{n}\th\t{label}\n" for n, label in enumerate(LABELS)),
        "entailment\nneutral\nneutral\nneutral\nneutral\n",
        "neutral\nneutral\ncontradiction\nneutral\nentailment\n",
    ),
    "qa": (
        json.dumps({"data": [{"paragraphs": [{"context": "a b0", "qas": SQUAD}]}]}),
        json.dumps({"0": "b0", "1": "b", "2": "a b2", "3": "c"}),
        json.dumps({"0": "c", "1": "a b1", "2": "b2"}),
    ),
}


@pytest.fixture
def evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(task: str, *flags: str, names: str = "pa", code: int = 0) -> Any:
        for name, text in zip("gpa", FILES[task]):
            (tmp_path / name).write_text(text, encoding="utf-8")
        command = ["evaluate", "--task", task, "--gold", str(tmp_path / "g"), "--predictions", str(tmp_path / names[0])]
        command += ["--against", str(tmp_path / names[1])] if names[1:] else []
        assert main([*command, *flags]) == code
        return capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("task", "metrics"), [("ner", ["f1"]), ("pos", ["accuracy"]), ("nli", ["accuracy"]), ("qa", ["f1", "em"])]
)
def test_verb(evaluate: Any, task: str, metrics: list[str]) -> None:
    """The result is that of --predictions alone, with the comparison added."""
    said = evaluate(task, "--json", "--bootstrap", "200")
    result = json.loads(said.out)
    one, other = (json.loads(evaluate(task, "--json", names=name).out) for name in "pa")
    assert list(result["paired"]) == metrics
    for name in metrics:
        row = result["paired"][name]
        assert (row["predictions"], row["against"]) == pytest.approx((one["metrics"][name], other["metrics"][name]))
        assert row["difference"] == pytest.approx(one["metrics"][name] - other["metrics"][name])
        assert row["low"] <= row["difference"] <= row["high"] and 0 < row["p"] <= 1
    rules = result["rules"].pop("paired")
    assert (rules["resamples"], rules["seed"]) == (200, 1)
    del result["paired"]
    assert result == one
    assert "few for a bootstrap" in said.err
    swapped = json.loads(evaluate(task, "--json", "--bootstrap", "200", names="ap").out)["paired"][metrics[0]]
    again = json.loads(evaluate(task, "--json", "--bootstrap", "200").out)["paired"][metrics[0]]
    assert swapped["difference"] == -again["difference"] and swapped["p"] == again["p"]
    seeds = {
        json.dumps(json.loads(evaluate(task, "--json", "--bootstrap", "200", "--seed", str(n)).out)["paired"])
        for n in range(4)
    }
    assert len(seeds) > 1


def test_table_shows_the_difference(evaluate: Any) -> None:
    out = evaluate("nli", "--bootstrap", "100", "--seed", "7").out
    assert "accuracy 75.00 against 50.00: +25.00 [" in out and "100 draws of pairs, seed 7" in out


def test_notes_of_both_files(evaluate: Any) -> None:
    err = evaluate("qa", "--bootstrap", "100").err
    assert "note: --against: 1 questions have no prediction" in err
    assert "note: 1 questions" not in err


@pytest.mark.parametrize(
    ("flags", "names", "said", "code"),
    [
        (["--bootstrap", "100"], "p", "--bootstrap says nothing without --against", 2),
        (["--seed", "2"], "p", "--seed says nothing without --against", 2),
        (["--bootstrap", "3"], "pa", ">= 40", 2),
        (["--seed", "-1"], "pa", "negative", 2),
        ([], "px", "There is no such file", 1),
    ],
)
def test_mistakes(evaluate: Any, flags: list[str], names: str, said: str, code: int) -> None:
    err = evaluate("ner", *flags, names=names, code=code).err
    assert said in err and "Traceback" not in err


def test_other_words_are_refused(evaluate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # T7: the second file is checked as the first one is
    gold, one, other = FILES["ner"]
    monkeypatch.setitem(FILES, "ner", (gold, one, other.replace("w2\tB-PER", "w9\tB-PER")))
    err = evaluate("ner", code=1).err
    assert "sentence 4" in err and "'w9'" in err and "predictions a:12" in err


def test_one_example_is_not_enough(evaluate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "ner", ("a\tO\n", "a\tO\n", "a\tB-X\n"))
    assert "two or more" in evaluate("ner", code=1).err


def test_no_host_and_no_tensors(evaluate: Any, tmp_path: Path) -> None:
    evaluate("ner", "--bootstrap", "50")
    flags = ["--gold", str(tmp_path / "g"), "--predictions", str(tmp_path / "p"), "--against", str(tmp_path / "a")]
    code = (
        "import sys; from fairseq_interference.cli import main\n"
        f"main(['evaluate', '--task', 'ner', *{flags!r}])\n"
        "print(sorted({'torch', 'fairseq'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip().endswith("[]")


def test_pairs_without_a_majority_are_no_examples(evaluate: Any) -> None:
    row = json.loads(evaluate("nli", "--json", "--bootstrap", "100").out)["paired"]["accuracy"]
    kept = [(a, b) for a, b in zip(LABELS, FILES["nli"][1].split()) if a != "-"]
    gold, given = zip(*kept)
    assert row["predictions"] == nli_scores(gold, given, sorted(set(LABELS) - {"-"}))["accuracy"]
