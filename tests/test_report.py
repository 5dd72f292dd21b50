"""Reports: numbers against numpy, missing cells, words, figures, files."""

from __future__ import annotations

import csv
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairseq_interference.cli import main
from fairseq_interference.errors import DataError
from fairseq_interference.evaluation import records, report, report_cells, report_markdown, report_words
from fairseq_interference.evaluation.report_cells import Cell, difference, pooled_sd
from fairseq_interference.evaluation.report_data import build_tables

LANGS = ["xa", "xb", "xc"]
NUMBERS = st.lists(st.floats(0, 1, allow_nan=False), min_size=2, max_size=6)


def record(arch, language, value, seed=1, train=None, setting=None, languages=None, metric="f1", **changes):
    train = [language] if train is None else train
    languages = languages or ([train[0]] if arch.startswith("xlm_mono") else LANGS)
    setting = setting or records.setting_of(language, train)
    made = {
        "schema": 1,
        "run": {
            "id": f"{arch}-{'+'.join(languages)}-{'+'.join(train)}-s{seed}",
            "arch": arch,
            "languages": languages,
            "config": {},
            "seed": seed,
            "setting": setting,
            "train_langs": train,
        },
        "code": {"version": "0.1.0", "commit": "c" * 40, "dirty": False},
        "environment": {
            "python": "3.11",
            "torch": "2.13.0",
            "host": "ve-fairseq 0.12.3",
            "device": "cpu: test, 2 cores",
        },
        "cost": {
            "parameters": {"shared": 100, "per_language": 10, "total": 130},
            "updates": 7,
            "tokens": None,
            "seconds": 61.0,
            "peak_memory_bytes": 5_000_000,
        },
        "evaluation": {
            "benchmark": "mlm" if setting == "pretrain" else "ner",
            "split": "test",
            "language": language,
            "n": 50,
            "metrics": {metric: value},
            "rules": "iob2",
        },
        "status": "done",
    }
    for key, value in changes.items():
        made["run"][key] = value
    records.validate(made)
    return made


def world(seeds=(1, 2, 3)):
    """Joint beats mono on xc, loses on xa, ties on xb."""
    mono = {"xa": 0.80, "xb": 0.60, "xc": 0.30}
    joint = {"xa": 0.70, "xb": 0.605, "xc": 0.55}
    made = []
    for seed, lang in itertools.product(seeds, LANGS):
        noise = 0.01 * (seed - 2)
        made.append(record("xlm_mono_tiny", lang, mono[lang] + noise, seed))
        made.append(record("xlm_joint_tiny", lang, joint[lang] + noise, seed))
        if lang != "xa":
            made.append(record("xlm_joint_tiny", lang, joint[lang] - 0.2 + noise, seed, train=["xa"]))
    return made


def by_kind(tables):
    return {table.kind: table for table in tables}


@given(NUMBERS, NUMBERS)
@settings(max_examples=60, deadline=None)
def test_mean_and_sd_are_numpy_s(a, b):
    first, second = Cell(tuple(a)), Cell(tuple(b))
    assert first.mean == pytest.approx(np.mean(a), abs=1e-12)
    assert first.sd == pytest.approx(np.std(a, ddof=1), abs=1e-12)
    residuals = np.concatenate([np.array(a) - np.mean(a), np.array(b) - np.mean(b)])
    assert pooled_sd(first, second) == pytest.approx(math.sqrt(residuals @ residuals / (len(residuals) - 2)), abs=1e-12)


@given(NUMBERS, NUMBERS)
@settings(max_examples=60, deadline=None)
def test_verdict_is_scipy_s_t_value_beyond_its_threshold(a, b):
    from scipy import stats

    assume(len(a) >= 3 and len(b) >= 3 and min(np.std(a), np.std(b)) > 1e-3)
    found = difference("xa", "joint", Cell(tuple(a)), Cell(tuple(b)))
    t = stats.ttest_ind(a, b, equal_var=True).statistic / math.sqrt(1 / (1 / len(a) + 1 / len(b)))
    assume(abs(abs(t) - 2) > 1e-6)
    assert found.verdict == ("same" if abs(t) < 2 else "gain" if t > 0 else "loss")


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["xlm_joint", "xlm_adpt"]), st.sampled_from(LANGS), st.integers(1, 4)),
        st.floats(0, 1, allow_nan=False),
        min_size=1,
    )
)
@settings(max_examples=40, deadline=None)
def test_random_records_against_a_loop(values):
    (zero_shot,) = [
        t
        for t in build_tables([record(a, lang, v, s, train=["xa"]) for (a, lang, s), v in values.items()] + [extra()])
        if t.kind == "zero-shot"
    ]
    for arch, lang in itertools.product(["xlm_joint", "xlm_adpt"], LANGS):
        held = [v for (a, x, _), v in sorted(values.items()) if (a, x) == (arch, lang)]
        cell = zero_shot.cell(lang, arch)
        assert cell.n == len(held)
        assert cell.mean == (pytest.approx(np.mean(held)) if held else None)
    gaps = zero_shot.transfer_gap()
    others = [lang for lang in ("xb", "xc") if any(x == lang for _, x, _ in values) or lang == "xb"]
    for arch in {a for a, _, _ in values}:
        seeds = [s for s in range(1, 5) if all((arch, lang, s) in values for lang in ["xa", *others])]
        gap = [values[arch, "xa", s] - np.mean([values[arch, lang, s] for lang in others]) for s in seeds]
        assert gaps[arch].values == pytest.approx(gap)


def extra():
    """A zero-shot score of a third model, so that the zero-shot table is there."""
    return record("xlm_ffn", "xb", 0.5, train=["xa"])


def test_within_and_zero_shot_are_apart():
    tables = by_kind(build_tables(world()))
    assert tables["within-language"].cell("xb", "xlm_joint_tiny").mean == pytest.approx(0.605)
    assert tables["zero-shot"].cell("xb", "xlm_joint_tiny").mean == pytest.approx(0.405)
    assert tables["zero-shot"].cell("xa", "xlm_joint_tiny").mean == pytest.approx(0.70)
    assert tables["zero-shot"].transfer_gap()["xlm_joint_tiny"].mean == pytest.approx(0.70 - (0.405 + 0.35) / 2)
    assert tables["zero-shot"].columns == ("xlm_joint_tiny",)
    assert tables["within-language"].transfer_gap() == {} and tables["zero-shot"].interference() == {}


def test_words_say_what_the_table_shows():
    tables = by_kind(build_tables(world()))
    text = " ".join(report_words.words(tables["within-language"]))
    assert "xc (+25.0) gain by more than 2 pooled sd" in text
    assert "xa (-10.0) lose (negative interference) by more than 2 pooled sd" in text
    assert "xb (+0.5) stay within 2 pooled sd" in text
    assert "xlm_mono_tiny has the best mean on xa (ahead of the next by more than 2 pooled sd)." in text
    gap = " ".join(report_words.words(tables["zero-shot"]))
    assert (
        "Transfer gap (score on xa minus the mean over the other languages), in points: xlm_joint_tiny 32.2 ± " in gap
    )


@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_words_claim_nothing_from_few_seeds(seeds):
    text = " ".join(report_words.words(by_kind(build_tables(world(seeds)))["within-language"]))
    assert "too few to tell" in text and " gain " not in text.replace("gain from chance", "") and "lose" not in text


def test_perplexity_is_better_when_lower():
    made = []
    for seed in (1, 2, 3):
        for arch, value in (("xlm_mono", 9.0), ("xlm_joint", 12.0)):
            made.append(record(arch, "xa", value + seed / 100, seed, setting="pretrain", metric=PERPLEXITY))
    (table,) = build_tables(made)
    text = " ".join(report_words.words(table))
    assert "xa (+3.00) lose (negative interference)" in text and "xlm_mono has the best mean on xa" in text


PERPLEXITY = next(iter(report_cells.PRETRAIN_METRICS))


def test_missing_is_missing(tmp_path):
    made = [r for r in world() if (r["run"]["arch"], r["evaluation"]["language"]) != ("xlm_mono_tiny", "xb")]
    table = by_kind(build_tables(made))["within-language"]
    assert table.missing == [("xb", "xlm_mono_tiny")]
    text = report_markdown.section(table)
    assert "| xb | missing | 60.5 ± 1.0 (3) |" in text
    said = " ".join(report_words.words(table))
    assert "no comparison for xb, a cell is missing" in said and "Missing: xb with xlm_mono_tiny." in said
    rows = list(csv.DictReader(report_markdown.to_csv([table]).splitlines()))
    (row,) = [r for r in rows if r["missing"] == "1"]
    assert (row["language"], row["model"], row["mean"], row["n"]) == ("xb", "xlm_mono_tiny", "", "0")


def test_unmeasured_metric_is_missing_not_zero():
    made = world()
    for item in made:
        if item["evaluation"]["language"] == "xb":
            item["evaluation"]["metrics"] = {"f1": None}
    assert by_kind(build_tables(made))["within-language"].cell("xb", "xlm_joint_tiny").n == 0


def test_unfinished_runs_are_named_and_not_counted(tmp_path):
    made = world()
    made[0]["status"] = "failed"
    tables = build_tables(made)
    assert by_kind(tables)["within-language"].cell("xa", "xlm_mono_tiny").n == 2
    assert f"{made[0]['run']['id']} on xa (failed)" in report.render(made, tables, {})


def test_what_stands_in_no_table_is_named(tmp_path, capsys):
    made = [record("xlm_joint", "xa", 0.5), record("xlm_joint", "xb", 7.0, metric="bleu")]
    for one in made:
        records.write_record(tmp_path, one)
    assert main(["report", "--results", str(tmp_path), "--no-figures"]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "report.md").read_text(encoding="utf-8")):
        assert f"{made[1]['run']['id']} on xb." in text and f"{made[0]['run']['id']} on" not in text


def test_other_examples_are_no_fair_comparison():
    made = world()
    assert not any("CAUTION" in sentence for table in build_tables(made) for sentence in report_words.words(table))
    made[-1]["evaluation"]["n"] = 40
    lang, found = made[-1]["evaluation"]["language"], build_tables(made)
    assert any(f"{lang} 40 or 50" in report_words.words(table)[0] for table in found)
    assert any(f"{lang} 40 or 50" in report_markdown.setting(table) for table in found)


def test_same_seed_twice_is_refused():
    twice = record("xlm_joint_tiny", "xa", 0.1, id="another")
    with pytest.raises(DataError, match="same seed") as error:
        build_tables([*world(), twice])
    assert "another" in str(error.value)


def test_models_of_other_languages_keep_their_own_column():
    pair = record("xlm_joint", "xb", 0.5, languages=["xa", "xb"])
    table = build_tables([pair, record("xlm_joint", "xb", 0.4), record("xlm_mono", "xb", 0.4, languages=["xa"])])[0]
    assert table.columns == ("xlm_mono (xa)", "xlm_joint (xa,xb)", "xlm_joint (xa,xb,xc)")


def test_other_rules_other_table():
    other = record("xlm_joint", "xa", 0.5)
    other["evaluation"]["rules"] = "conlleval"
    assert len(build_tables([other, record("xlm_joint", "xa", 0.4)])) == 2


def test_language_and_arch_order_are_the_same_everywhere():
    made = [record(a, x, 0.5, languages=["xc", "xa", "xb"]) for a in ("xlm_adpt", "xlm_joint") for x in LANGS]
    made += [record("xlm_mono", x, 0.5) for x in LANGS]
    table = build_tables(made)[0]
    assert table.languages == ("xc", "xa", "xb")
    assert table.columns == ("xlm_mono", "xlm_joint", "xlm_adpt")


def test_setting_stands_under_each_table():
    for table in build_tables(world()):
        text = report_markdown.setting(table)
        for part in ("seeds 1, 2, 3", "cpu: test, 2 cores", "cccccccccccc", "xa,xb,xc", "xa 50", "iob2", "min"):
            assert part in text
        assert "vary fine-tuning only" not in text
    made = [record("xlm_joint", "xa", 0.5, s, config={"pretrain_seed": 1}) for s in (1, 2)]
    assert "vary fine-tuning only" in report_markdown.setting(build_tables(made)[0])


def test_other_settings_within_a_cell_are_pointed_out():
    """A mean over two learning rates is no mean over seeds; places and seeds may differ."""
    configs = [
        {"optimizer": {"lr": lr}, "task": {"data": f"there{lr}", "selection": "source-dev"}, "dataset": {"seed": lr}}
        for lr in (0.1, 0.2, 0.2)
    ]
    made = [record("xlm_joint", "xa", 0.5, s, config=c) for s, c in enumerate(configs, 1)]
    assert "different settings: optimizer.lr." in report_markdown.setting(build_tables(made)[0])
    assert "CAUTION" not in report_markdown.setting(build_tables(made[1:])[0])


def test_report_command(tmp_path, capsys):
    for item in world():
        records.write_record(tmp_path / "results", item)
    out = tmp_path / "out"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert str(out / "report.md") in printed and "negative interference" in printed
    text = (out / "report.md").read_text()
    figures = sorted(path.name for path in (out / "figures").iterdir())
    assert figures == [
        "interference-within-language-ner-test-f1.pdf",
        "interference-within-language-ner-test-f1.png",
        "scores-zero-shot-xa-ner-test-f1.pdf",
        "scores-zero-shot-xa-ner-test-f1.png",
    ]
    for name in figures:
        assert name.endswith(".pdf") or f"(figures/{name})" in text
    rows = list(csv.DictReader((out / "report.csv").read_text().splitlines()))
    joint = [r for r in rows if (r["kind"], r["language"], r["model"]) == ("within-language", "xa", "xlm_joint_tiny")]
    values = [
        r["evaluation"]["metrics"]["f1"]
        for r in world()
        if r["run"]["id"].startswith("xlm_joint_tiny-xa+xb+xc-xa-") and r["evaluation"]["language"] == "xa"
    ]
    assert float(joint[0]["mean"]) == pytest.approx(np.mean(values)) and joint[0]["seeds"] == "1 2 3"
    before = {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert before == {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_bars_are_the_records_numbers(tmp_path, monkeypatch):
    from fairseq_interference.analysis import plots

    drawn = {}
    monkeypatch.setattr(plots, "bars", lambda groups, series, *rest: drawn.update(groups=groups, series=series) or [])
    made = [r for r in world() if (r["run"]["arch"], r["evaluation"]["language"]) != ("xlm_mono_tiny", "xb")]
    plots.draw(by_kind(build_tables(made))["within-language"], "t", tmp_path, "x")
    (bars,) = drawn["series"].values()
    assert list(drawn["groups"]) == LANGS
    assert bars == [(pytest.approx(-10), pytest.approx(1)), (None, None), (pytest.approx(25), pytest.approx(1))]


def test_without_matplotlib_the_tables_are_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for item in world():
        records.write_record(tmp_path, item)
    assert main(["report", "--results", str(tmp_path)]) == 0
    assert "pip install" in capsys.readouterr().err
    assert "No figures: matplotlib is missing." in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "figures").exists()


def test_no_records(tmp_path, capsys):
    assert main(["report", "--results", str(tmp_path)]) == 1
    assert "no records" in capsys.readouterr().err
    (tmp_path / "x.json").write_text(json.dumps({"schema": 3}))
    assert main(["report", "--results", str(tmp_path)]) == 1
    assert "x.json" in capsys.readouterr().err


def test_no_host_is_imported():
    code = (
        "import sys, fairseq_interference.evaluation.report, fairseq_interference.analysis.plots;"
        "print({'torch', 'fairseq', 'matplotlib'} & set(sys.modules))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "set()"


def test_parts_of_another_language_are_said_and_do_not_split_the_table():
    own, other = record("xlm_adpt", "xb", 0.5, train=["xa"]), record("xlm_adpt", "xc", 0.4, train=["xa"])
    own["evaluation"]["rules"] = {"scheme": "iob2", "parts": "own"}
    other["evaluation"]["rules"] = {"scheme": "iob2", "parts": "xa"}
    (table,) = build_tables([own, other])
    assert table.rules == "scheme: iob2"
    assert "xlm_adpt read xc with the parts of xa" in report_markdown.setting(table)


def test_only_perplexity_per_character_crosses_dictionaries():
    made = []
    for arch, size in (("xlm_mono", 500), ("xlm_joint", 2000)):
        item = record(arch, "xa", 3.0, setting="pretrain", metric="perplexity_per_token")
        item["evaluation"]["metrics"]["perplexity_per_character"] = 2.0
        item["evaluation"]["rules"] = {"dictionary_size": size}
        made.append(item)
    tables = build_tables(made)
    assert [(t.metric, t.columns) for t in tables] == [
        ("perplexity_per_token", ("xlm_joint",)),
        ("perplexity_per_token", ("xlm_mono",)),
        ("perplexity_per_character", ("xlm_mono", "xlm_joint")),
    ]


def test_runs_with_dictionaries_of_their_own_need_a_flag(tmp_path, capsys):
    for arch, digest in (("xlm_mono", "aaaa"), ("xlm_joint", "bbbb")):
        item = record(arch, "xa", 3.0, setting="pretrain", metric="perplexity_per_token")
        item["evaluation"]["metrics"]["perplexity_per_character"] = 2.0
        item["evaluation"]["rules"] = {"dictionary": digest, "dictionary_size": 500}
        records.write_record(tmp_path / "results", item)
    asked = ["report", "--results", str(tmp_path / "results"), "--out", str(tmp_path), "--no-figures"]
    assert main(asked) == 1
    said = capsys.readouterr().err
    assert "aaaa" in said and "bbbb" in said and "--own-vocab" in said
    assert main([*asked, "--own-vocab"]) == 0
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "dictionary: aaaa" in text and "dictionary: bbbb" in text
