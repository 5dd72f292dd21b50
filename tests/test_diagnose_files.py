"""Files of studies, rows that survive an interruption, figures, index."""

from __future__ import annotations

import csv
import json

import pytest

from fairseq_interference.analysis import index, plots
from fairseq_interference.analysis.study import Ledger, Study, number, read_study, write_study
from fairseq_interference.errors import DataError, StageError

pytest.importorskip("matplotlib")


def example(**rows):
    first = [{"update": 1, "lang": "en", "value": 0.5}, {"update": 2, "lang": "en", "value": None}]
    return Study("example", {"checkpoint": "a.pt", "n": 3}, {"values": rows.get("values", first)})


def test_a_study_is_read_as_it_was_written(tmp_path):
    study = example()
    paths = write_study(study, tmp_path)
    assert paths[0] == tmp_path / "example" / "example.json"
    assert json.loads(paths[0].read_text())["schema"] == 1
    assert read_study(paths[0]) == study
    with open(tmp_path / "example" / "values.csv", newline="") as stream:
        assert [row["value"] for row in csv.DictReader(stream)] == ["0.5", ""]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    "rows", [[{"a": 1}, {"b": 1}], [{"a": float("nan")}], [{"a": float("inf")}]], ids=["columns", "nan", "inf"]
)
def test_rows_that_cannot_be_compared_are_refused(tmp_path, rows):
    with pytest.raises(DataError):
        write_study(example(values=rows), tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_no_number_is_none():
    assert number(float("nan")) is None and number(float("-inf")) is None and number(None) is None and number(2) == 2.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 2, "study": "x", "settings": {}, "tables": {}}'])
def test_what_is_no_study_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError):
        read_study(tmp_path / "x.json")
    with pytest.raises(DataError, match="no such study"):
        read_study(tmp_path / "y.json")


def test_a_ledger_goes_on_where_it_was(tmp_path):
    path = tmp_path / "rows.jsonl"
    Ledger(path, {"n": 1}).add("draw 1", [{"a": 1}])
    with open(path, "a") as stream:
        stream.write('{"key": "draw 2", "ro')  # cut off in the middle
    again = Ledger(path, {"n": 1})
    assert again.get("draw 1") == [{"a": 1}] and again.get("draw 2") is None
    again.add("draw 2", [{"a": 2}])
    assert Ledger(path, {"n": 1}).parts == {"draw 1": [{"a": 1}], "draw 2": [{"a": 2}]}
    with pytest.raises(StageError, match="other settings"):
        Ledger(path, {"n": 2})
    assert Ledger(path, {"n": 1}).parts
    assert not Ledger(path, {"n": 2}, force=True).parts and not Ledger(path, {"n": 2}).parts


def figures():
    curve = plots.Curve([1, 2, 3], [0.1, None, 0.3], [0.0, None, 0.2], [0.2, None, 0.4])
    lines = plots.Lines("a panel", {"xa-xb": curve, "xa-xa": curve}, "update", "cosine", zero=True, integers=True)
    heat = plots.Heat("another", ["xa", "xb"], ["xa", "xb"], [[1.0, None], [-0.2, 1.0]], "cosine")
    points = plots.Points("a third", {"xa-xb": (0.1, 0.2, 0.05), "xa-xc": (0.4, 0.1, None)}, "similarity", "cosine")
    empty = plots.Lines("nothing", {"xa": plots.Curve([1], [None])}, "update", "cosine")
    return lines, heat, points, empty


def test_figures_are_drawn_the_same_each_time(tmp_path):
    panels = figures()
    figure = plots.Figure("example-all", "all kinds", "Read it.", panels)
    paths = plots.draw_figure(figure, tmp_path)
    assert [path.name for path in paths] == ["example-all.png", "example-all.pdf"]
    before = [path.read_bytes() for path in paths]
    plots.draw_figure(figure, tmp_path)
    assert before == [path.read_bytes() for path in paths]
    with pytest.raises(plots.NothingToDraw):
        plots.draw_figure(plots.Figure("example-none", "none", "-", panels[3:]), tmp_path)
    assert not (tmp_path / "example-none.png").exists()


def test_the_index_shows_every_figure_of_every_study(tmp_path, monkeypatch):
    class Module:
        TITLE = "An example"

        @staticmethod
        def figures(study):
            assert study == example()  # from the file, not from memory
            lines, *_, empty = figures()
            return [
                plots.Figure("example-one", "one", "Higher is better.", [lines]),
                plots.Figure("example-two", "two", "-", [empty]),
            ]

    monkeypatch.setitem(index.STUDIES, "example", "example")
    monkeypatch.setattr(index, "module_of", lambda name: Module)
    assert "no study" in index.write_index(tmp_path).read_text()
    write_study(example(), tmp_path)
    text = index.write_index(tmp_path).read_text()
    assert "![one](figures/example-one.png)" in text and "Higher is better." in text and "two: no value" in text
    assert "checkpoint a.pt; n 3" in text and (tmp_path / "figures/example-one.png").stat().st_size > 1000
    assert "example-one.png" not in index.write_index(tmp_path, figures=False).read_text()
