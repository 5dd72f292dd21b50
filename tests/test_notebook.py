"""What ``load(path)`` gives can be asked: against the model itself, from another folder, one input or many."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fairseq")
import ddp
import torch
from tagging_world import LABELS, PEOPLE, WORDS, sentence, write_checkpoint, write_finetuned

import fairseq_interference
from fairseq_interference.data.readers.questions import Question
from fairseq_interference.errors import CheckpointError, DataError, LanguageError, TokenizerError, UsageError
from fairseq_interference.evaluation.predict import predict_answers, predict_labels, predict_pairs

NLI = ("contradiction", "entailment", "neutral")
CONTEXT = "  " + " ".join(random.Random(1).choices(WORDS["xb"], k=90)) + " "
TEXTS = ["the river walks", "house", "", " ".join(WORDS["xa"] * 12), "old . @@ under"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    start = write_checkpoint(folder / "mlm", ("xa", "xb"), "xlm_adpt_tiny")
    windows = ("--max-length", "32", "--stride", "10", "--max-query-length", "8")
    return {
        "mlm": start,
        "joint": write_checkpoint(folder / "joint", ("xa", "xb"), "xlm_joint_tiny"),
        "ner": write_finetuned(folder / "ner", start, "xlm_tagging", tuple(LABELS)),
        "pos": write_finetuned(folder / "pos", start, "xlm_tagging", ("NOUN", "VERB")),
        "nli": write_finetuned(folder / "nli", start, "xlm_nli", NLI, "--companions", str(start.parent)),
        "qa": write_finetuned(folder / "qa", start, "xlm_qa", (), *windows),
    }


@pytest.fixture(scope="module")
def loaded(paths: dict[str, Path]) -> dict[str, Any]:
    return {name: fairseq_interference.load(str(path)) for name, path in paths.items()}


# --- vectors -----------------------------------------------------------------------------------------------------


def alone(it: Any, text: str, lang: str, layer: int) -> torch.Tensor:
    """States of a text that fits, by itself in the model."""
    from fairseq_interference.data.tokenizer import Tokenizer

    pieces = Tokenizer.load(it.tokenizer_dir).encode_line(text, lang)
    row = torch.tensor([[0, *map(it.dictionary.index, pieces), 2]])
    with torch.no_grad():
        _, extra = it.model(row, lang_id=torch.tensor([it.languages.id(lang)]), return_all_hiddens=True)
    states: torch.Tensor = extra["inner_states"][layer][1:-1, 0]
    return states


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_encode_is_what_the_model_says(loaded: dict[str, Any], layer: int) -> None:
    it = loaded["mlm"]
    found = it.encode(TEXTS, "xa", layer=layer)
    for text, states in zip(TEXTS, found):
        if text and len(text) < 100:
            torch.testing.assert_close(states, alone(it, text, "xa", layer), rtol=1e-4, atol=1e-5)
    assert found[2].shape == (0, 32)
    assert len(found[3]) > 64 and not found[3].requires_grad  # longer than the model: nothing is lost
    torch.testing.assert_close(it.encode(TEXTS[0], "xa", layer=layer), found[0], rtol=1e-4, atol=1e-5)
    pooled = it.encode(TEXTS, "xa", layer=layer, pool="mean")
    wanted = torch.stack([states.mean(0) if len(states) else torch.zeros(32) for states in found])
    torch.testing.assert_close(pooled, wanted, rtol=1e-4, atol=1e-5)
    assert it.encode(TEXTS[0], "xa", layer=layer, pool="mean").shape == (32,)


def test_encode_depends_on_the_language_of_adapters(loaded: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(1)
    for parameter in loaded["ner"].model.parameters():
        if parameter.optim_overrides["interference"]["lang"] == "xb":
            with torch.no_grad():  # adapters start at the identity
                parameter.add_(torch.randn(parameter.shape, generator=draw))
    states = [loaded["ner"].encode("the river", lang) for lang in ("xa", "xb")]
    assert not torch.allclose(*states)


def test_encode_nothing(loaded: dict[str, Any]) -> None:
    assert loaded["mlm"].encode([], "xa") == []
    assert loaded["mlm"].encode([], "xa", pool="mean").shape == (0, 32)


# --- guesses -----------------------------------------------------------------------------------------------------


def test_fill_mask_is_the_head_of_the_model(loaded: dict[str, Any]) -> None:
    from fairseq_interference.data.tokenizer import Tokenizer

    it, tokenizer = loaded["mlm"], Tokenizer.load(loaded["mlm"].tokenizer_dir)
    before, after = (tokenizer.encode_line(text, "xa") for text in ("the river", "quickly"))
    row = [0, *map(it.dictionary.index, before), it.dictionary.index("<mask>"), *map(it.dictionary.index, after), 2]
    with torch.no_grad():
        scores = it.model(torch.tensor([row]), lang_id=torch.tensor([0]))[0][0, 1 + len(before)]
    shares = scores.softmax(-1)
    order = [n for n in shares.argsort(descending=True).tolist() if n > 3 and it.dictionary[n] != "<mask>"]
    found = it.fill_mask("the river <mask> quickly", "xa", top_k=4)
    assert [fill.piece for fill in found] == [it.dictionary[n] for n in order[:4]]
    assert [fill.probability for fill in found] == pytest.approx(shares[order[:4]].tolist(), rel=1e-4)
    assert found[0].text == tokenizer.decode([*before, found[0].piece, *after])
    assert [fill.mask for fill in found] == [0] * 4


def test_fill_several_masks_and_texts(loaded: dict[str, Any]) -> None:
    it = loaded["mlm"]
    texts = ["<mask> sees the <mask>.", "old <mask>", "the quickly walks and old <mask> river"]
    found = it.fill_mask(texts, "xa", top_k=2)
    assert [len(fills) for fills in found] == [4, 2, 2]
    assert [fill.mask for fill in found[0]] == [0, 0, 1, 1] and "<mask>" in found[0][0].text
    for text, fills in zip(texts, found):
        single = it.fill_mask(text, "xa", top_k=2)
        assert [fill.piece for fill in single] == [fill.piece for fill in fills]
    assert len(it.fill_mask("old <mask>", "xb", top_k=10_000)) == len(it.dictionary) - 5
    assert it.fill_mask([], "xa") == []


# --- labels and answers ------------------------------------------------------------------------------------------


def test_tag(loaded: dict[str, Any]) -> None:
    draw = random.Random(2)
    sentences = [sentence("xb", draw)[0] for _ in range(5)] + [[], ["the", "\u200b", "Delhi"] * 40]  # T1, T3
    for name in ("ner", "pos"):
        it = loaded[name]
        found = it.tag(sentences, "xb")
        assert found == predict_labels(it.model, it.task, sentences, "xb")
        assert list(map(len, found)) == list(map(len, sentences))
        assert it.tag(sentences[0], "xb") == found[0] and it.tag(tuple(sentences[0]), "xb") == found[0]
        assert it.tag([], "xa") == []


def test_classify(loaded: dict[str, Any]) -> None:
    it = loaded["nli"]
    first, second = ["the river walks", "old house", ""], ["house", "the river", "old"]
    found = it.classify(first, second, "xa")
    assert found == predict_pairs(it.model, it.task, list(zip(first, second)), "xa") and set(found) <= set(NLI)
    assert it.classify(first[0], second[0], "xa") == found[0]
    assert it.classify(first, "house", "xa")[0] == found[0]


def test_answer(loaded: dict[str, Any]) -> None:
    it = loaded["qa"]
    asked = PEOPLE["xb"][:3]
    found = it.answer(asked, CONTEXT, "xb")
    questions = [Question(str(n), CONTEXT, one, None, None) for n, one in enumerate(asked)]
    assert found == [best[0] for best in predict_answers(it.model, it.task, questions, "xb")]
    assert all(CONTEXT[one.start : one.end] == one.text != "" for one in found)
    single = it.answer(asked[0], CONTEXT, "xb", question_lang="xa")
    assert single.text == CONTEXT[single.start : single.end]
    assert len(it.answer(asked, [CONTEXT] * 3, "xb")) == 3
    with pytest.raises(DataError, match="nothing of this context"):
        it.answer("who?", " \u200b", "xb")


# --- from anywhere -----------------------------------------------------------------------------------------------


def test_fresh_python_from_another_folder(paths: dict[str, Path], tmp_path: Path) -> None:
    # U5, U8: nothing is imported first, paths are relative, and the folder changes after loading
    code = (
        "import fairseq_interference as fi, os\n"
        f"os.chdir({str(paths['ner'].parents[1])!r})\n"
        "mlm, ner, nli, qa = (fi.load(f'{n}/checkpoint_{k}.pt') for n, k in "
        "(('mlm', 'last'), ('ner', 'best'), ('nli', 'best'), ('qa', 'best')))\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "print('GOT', len(mlm.encode(['the', 'river'], 'xa')), len(mlm.fill_mask('the <mask>', 'xb')),\n"
        "      len(ner.tag(['the', 'river'], 'xa')), nli.classify('the', 'river', 'xa') in "
        f"{NLI!r}, len(qa.answer('the', 'the river walks', 'xa').text) > 0)\n"
    )
    assert "GOT 2 5 2 True True" in ddp.run_command([sys.executable, "-c", code], cwd=tmp_path).log


def test_companions_of_training_may_be_gone(paths: dict[str, Path], tmp_path: Path) -> None:
    """The copy beside a fine-tuned checkpoint is read, wherever --companions pointed to when it was trained."""
    import shutil

    moved = shutil.copytree(paths["nli"].parent, tmp_path / "moved")
    state = torch.load(moved / "checkpoint_best.pt", weights_only=False)
    assert state["cfg"]["task"]["companions"]
    state["cfg"]["task"]["companions"] = "gone/checkpoint_last.pt"
    torch.save(state, moved / "checkpoint_best.pt")
    assert fairseq_interference.load(moved / "checkpoint_best.pt").classify("the", "river", "xa") in NLI


# --- mistakes ----------------------------------------------------------------------------------------------------

SERVES = {"fill_mask": {"mlm"}, "tag": {"ner", "pos"}, "classify": {"nli"}, "answer": {"qa"}}
ARGUMENTS = {"fill_mask": ("<mask>",), "tag": (["a"],), "classify": ("a", "b"), "answer": ("a", "the river")}


@pytest.mark.parametrize("method", sorted(SERVES))
def test_a_checkpoint_that_cannot_says_which_can(loaded: dict[str, Any], method: str) -> None:
    for name in ("mlm", "ner", "pos", "nli", "qa"):
        call = getattr(loaded[name], method)
        if name in SERVES[method]:
            call(*ARGUMENTS[method], "xa")
            continue
        with pytest.raises(CheckpointError, match=f"cannot {method}") as caught:
            call(*ARGUMENTS[method], "xa")
        said = str(caught.value)
        assert "fine-tuned" in said and "checkpoint_" in said
        assert ("mlm/checkpoint_last.pt" in said) if method == "fill_mask" else ("bash run/finetune_" in said)


@pytest.mark.parametrize(
    ("name", "method", "arguments", "error", "said"),
    [
        ("mlm", "encode", ("the", "zz"), LanguageError, "xa,xb"),  # A3
        ("mlm", "fill_mask", ("<mask>", "zz"), LanguageError, "xa,xb"),
        ("ner", "tag", (["the"], "zz"), LanguageError, "xa,xb"),
        ("ner", "tag", (["the"], None), LanguageError, "None"),
        ("ner", "encode", ("the", "English"), LanguageError, "language code"),
        ("mlm", "encode", ("the", "xa", 3), UsageError, "0 (embeddings) to 2"),
        ("mlm", "encode", ("the", "xa", -1, "max"), UsageError, '"mean"'),
        ("mlm", "encode", (["the", float("nan")], "xa"), UsageError, "nan"),
        ("mlm", "encode", (3, "xa"), UsageError, "3"),
        ("mlm", "fill_mask", ("the river", "xa"), UsageError, "no <mask>"),
        ("mlm", "fill_mask", ("<mask> " * 80, "xa"), UsageError, "62 pieces"),
        ("mlm", "fill_mask", ("<mask>", "xa", 0), UsageError, "At least 1"),
        ("ner", "tag", ("the river", "xa"), UsageError, "words.split()"),
        ("ner", "tag", (["the", ["river"]], "xa"), UsageError, "'the'"),
        ("ner", "tag", ([["the", 3]], "xa"), UsageError, "3"),
        ("ner", "tag", (None, "xa"), UsageError, "None"),
        ("nli", "classify", (["a", "b"], ["a"], "xa"), UsageError, "2 and 1"),
        ("nli", "classify", ("a", ["a"], "xa"), UsageError, "two lists"),
        ("qa", "answer", (["a"], ["a", "b"], "xa"), UsageError, "1 and 2"),
        ("qa", "answer", ("a", "b", "xa", "no code"), LanguageError, "question_lang"),
    ],
)
def test_mistakes(loaded: dict[str, Any], name: str, method: str, arguments: Any, error: type, said: str) -> None:
    with pytest.raises(error) as caught:
        getattr(loaded[name], method)(*arguments)
    assert said in str(caught.value)


def test_a_model_without_parts_takes_any_language(loaded: dict[str, Any]) -> None:
    it = loaded["joint"]
    torch.testing.assert_close(it.encode("the river", "zz"), it.encode("the river", "xa"))


def test_fallback_language(paths: dict[str, Path]) -> None:
    it = fairseq_interference.load(paths["ner"], fallback_lang="xb")
    assert len(it.tag(["the", "river"], "zz")) == 2
    torch.testing.assert_close(it.encode("the river", "zz"), it.encode("the river", "xb"))


def test_without_a_tokenizer(paths: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    for name in ("checkpoint_last.pt", "dict.txt", "languages.txt"):
        shutil.copy(paths["mlm"].parent / name, tmp_path / name)
    it = fairseq_interference.load(tmp_path / "checkpoint_last.pt")
    for call in (lambda: it.encode("the", "xa"), lambda: it.fill_mask("<mask>", "xa")):
        with pytest.raises(TokenizerError, match="No tokenizer"):
            call()
