"""``convert to-hf``: what transformers' own classes compute from the folder, with every head; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_world import TEXT, close, compare, tokens, with_sentencepiece, write_hf, write_ours

from fairseq_interference.errors import CheckpointError, UsageError

transformers = pytest.importorskip("transformers", reason="extra hf is not installed")
pytestmark = pytest.mark.usefixtures("plugin")
XMOD_BASE = ("--adapter-placement", "layer-norm")
XMOD_LARGE = ("--adapter-placement", "layer", "--encoder-normalize-before")


def convert(path: Path, out: Path, **more: Any) -> Any:
    from fairseq_interference.convert.to_hf import convert

    return convert(path, out, **more)


def opened(folder: Path, kind: str) -> Any:
    """The model as transformers loads it, without a missing or unexpected tensor."""
    found, told = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    wrong = {name: told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not any(wrong.values()), wrong
    return found.eval()


def load(path: Path) -> Any:
    import fairseq_interference

    return fairseq_interference.load(str(path))


@pytest.mark.parametrize("flags", [(), ("--untie-weights-roberta",)], ids=["tied", "untied"])
def test_masked_lm(tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = write_ours(tmp_path / "ours", "xlm_joint_tiny", *flags)
    found = convert(path, tmp_path / "hf")
    assert found.architecture == "XLMRobertaForMaskedLM"
    assert any("subword-nmt" in note for note in found.notes)
    theirs = opened(tmp_path / "hf", found.architecture)
    assert theirs.config.tie_word_embeddings == (not flags)
    compare(load(path).model, theirs)


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_without_safetensors(tmp_path: Path, safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = write_ours(tmp_path / "ours")
    if not safe:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    convert(path, tmp_path / "hf")
    monkeypatch.undo()
    assert (tmp_path / "hf" / ("model.safetensors" if safe else "pytorch_model.bin")).is_file()
    compare(load(path).model, opened(tmp_path / "hf", "XLMRobertaForMaskedLM"))


@pytest.mark.parametrize(
    ("task", "labels", "kind"),
    [
        ("xlm_tagging", "O,B-LOC,I-LOC", "XLMRobertaForTokenClassification"),
        ("xlm_nli", "contradiction,entailment,neutral", "XLMRobertaForSequenceClassification"),
        ("xlm_qa", "", "XLMRobertaForQuestionAnswering"),
    ],
)
def test_heads_of_fine_tuning(tmp_path: Path, task: str, labels: str, kind: str) -> None:
    path = write_ours(tmp_path / "ours", task=task, labels=labels)
    found = convert(path, tmp_path / "hf")
    assert found.architecture == kind
    theirs, model = opened(tmp_path / "hf", kind), load(path).model
    ids, mask = tokens(model.encoder.sentence_encoder.embed_tokens.num_embeddings)
    name = task[len("xlm_") :]
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        more = {"classification_head_name": name} if name == "nli" else {"token_head_name": name}
        scores = model(ids, **more)[0]
    if name == "qa":
        close(scores, torch.stack([out.start_logits, out.end_logits], -1), mask, 1e-4)
    elif name == "tagging":
        close(scores, out.logits, mask, 1e-4)
    else:
        torch.testing.assert_close(scores, out.logits, rtol=0, atol=1e-4)
    if labels:
        assert [theirs.config.id2label[n] for n in range(theirs.config.num_labels)] == labels.split(",")
    assert convert(path, tmp_path / "mlm", head="mlm").architecture == "XLMRobertaForMaskedLM"
    with pytest.raises(UsageError, match="no such head"):
        convert(path, tmp_path / "other", head="qa" if name != "qa" else "nli")


@pytest.mark.parametrize(
    "flags",
    [XMOD_BASE, XMOD_LARGE, (*XMOD_LARGE, "--adapter-dim", "8"), ("--adapter-placement", "layer")],
    ids=["base", "pre-norm", "narrow", "bare"],
)
def test_adapters_as_xmod(tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny", *flags)
    found = convert(path, tmp_path / "hf")
    assert found.architecture == "XmodForMaskedLM"
    theirs = opened(tmp_path / "hf", "XmodForMaskedLM")
    assert theirs.config.languages == ["xa", "xb"] and theirs.config.default_language is None
    for lang_id in (torch.tensor([0, 0, 1]), torch.tensor([1, 0, 1])):
        compare(load(path).model, theirs, lang_id)


def test_xmod_and_back(tmp_path: Path) -> None:
    """transformers -> ours -> transformers: every tensor bit for bit; the large model's shared layer norm too."""
    from fairseq_interference.convert import from_hf

    large = {"adapter_reuse_layer_norm": False, "adapter_layer_norm": True, "ln_before_adapter": False}
    first = write_hf(tmp_path / "hf", "XmodForMaskedLM", languages=["en_XX", "sw_KE"], pre_norm=True, **large)
    with torch.no_grad():
        first.roberta.embeddings.token_type_embeddings.weight.zero_()
    first.save_pretrained(tmp_path / "hf")
    ours = from_hf.convert(tmp_path / "hf", tmp_path / "ours", "xlm_adpt").path
    convert(ours, tmp_path / "again")
    again = opened(tmp_path / "again", "XmodForMaskedLM")
    assert again.config.languages == ["en", "sw"]
    theirs = {name.replace("en_XX", "en").replace("sw_KE", "sw"): value for name, value in first.state_dict().items()}
    mine = again.state_dict()
    assert theirs.keys() == mine.keys()
    for name, value in theirs.items():
        if "token_type" not in name:
            assert torch.equal(value, mine[name]), name


def test_fine_tuned_xmod(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny", *XMOD_BASE, task="xlm_tagging", labels="O,B-X")
    assert convert(path, tmp_path / "hf").architecture == "XmodForTokenClassification"
    theirs, model = opened(tmp_path / "hf", "XmodForTokenClassification"), load(path).model
    ids, mask = tokens(model.encoder.sentence_encoder.embed_tokens.num_embeddings)
    lang = torch.tensor([1, 0, 1])
    with torch.no_grad():
        close(model(ids, lang_id=lang, token_head_name="tagging")[0], theirs(ids, lang, mask).logits, mask, 1e-4)


@pytest.mark.parametrize(
    ("arch", "flags", "said"),
    [
        ("xlm_joint_tiny", ("--lang-embeddings",), ["--lang-embeddings"]),
        ("xlm_ffn_tiny", (), ["--lang-parts ffn"]),
        ("xlm_attn_tiny", (), ["--lang-parts attn"]),
        ("xlm_adpt_tiny", (), ["--adapter-placement each", "X-MOD has one a layer"]),
        ("xlm_share_adpt_tiny", (), ["--adapter-placement each"]),
        ("xlm_joint_tiny", ("--encoder-normalize-before",), ["post-norm"]),
        ("xlm_joint_tiny", ("--activation-fn", "relu"), ["masked-LM head"]),
        ("xlm_adpt_tiny", (*XMOD_BASE, "--adapter-skip-layers", "0"), ["--adapter-skip-layers 0"]),
        ("xlm_adpt_tiny", (*XMOD_BASE, "--adapter-dim", "12"), ["--adapter-dim 12"]),
        ("xlm_adpt_tiny", (*XMOD_BASE, "--adapter-activation", "relu"), ["--adapter-activation relu"]),
        ("xlm_adpt_tiny", (*XMOD_BASE, "--adapter-layer-norm", "after"), ["--adapter-layer-norm after"]),
        ("xlm_adpt_tiny", (*XMOD_LARGE, "--adapter-layer-norm", "before"), ["xb and xa differ"]),
        ("xlm_adpt_tiny", (*XMOD_BASE, "--lang-embeddings", "--adapter-dim", "12"), ["embeddings", "--adapter-dim"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value)[:20],
)
def test_what_transformers_has_no_class_for(tmp_path: Path, arch: str, flags: tuple[str, ...], said: list[str]) -> None:
    path = write_ours(tmp_path / "ours", arch, *flags)
    with pytest.raises(CheckpointError) as caught:
        convert(path, tmp_path / "hf")
    assert all(text in str(caught.value) for text in said), str(caught.value)
    assert not (tmp_path / "hf").exists()


def test_refusal_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference.cli import main

    path = write_ours(tmp_path / "ours", "xlm_ffn_tiny")
    assert main(["convert", "to-hf", "--checkpoint", str(path), "--output", str(tmp_path / "hf")]) == 1
    assert "no class of transformers has ffn per language" in capsys.readouterr().err
    assert main(["convert", "to-hf", "--checkpoint", str(tmp_path / "no.pt"), "--output", str(tmp_path / "hf")]) == 2


# --- tokenizers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "drop"), [("same", 0), ("reversed", 0), ("reversed", 9)])
def test_tokenizer_and_rows_go_together(tmp_path: Path, order: str, drop: int) -> None:
    """Text through transformers' tokenizer gives what the same text gives here, whatever the order of dict.txt."""
    from fairseq_interference.data.tokenizer import Tokenizer

    path = write_ours(tmp_path / "ours")
    with_sentencepiece(path, order, drop)
    found = convert(path, tmp_path / "hf")
    assert any("rows of the embeddings" in note for note in found.notes) == (order != "same")
    theirs = opened(tmp_path / "hf", "XLMRobertaForMaskedLM")
    encoder = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path / "hf")
    loaded = load(path)
    tokenizer = Tokenizer.load(loaded.tokenizer_dir)
    for text in [*TEXT[:5], "Anna <mask> river"]:
        pieces = tokenizer.encode_line(text, "xa", special=True)
        ids = torch.tensor([[0, *(loaded.dictionary.index(piece) for piece in pieces), 2]])
        other = encoder(text, return_tensors="pt")["input_ids"]
        assert other.shape == ids.shape and (order != "same" or torch.equal(ids, other))
        with torch.no_grad():
            scores = loaded.model(ids)[0].softmax(-1)
            given = theirs(other).logits.softmax(-1)
        rows = encoder.convert_tokens_to_ids(loaded.dictionary.symbols)
        torch.testing.assert_close(given[..., rows], scores, rtol=0, atol=1e-5)


def test_huggingface_tokenizer_travels(tmp_path: Path) -> None:
    from fairseq_interference.convert import from_hf

    write_hf(tmp_path / "hf")
    pieces = [*("<s>", "<pad>", "</s>", "<unk>"), *(f"p{n}" for n in range(46)), "<mask>"]
    (tmp_path / "hf" / "sentencepiece.bpe.model").unlink()
    added = [
        {
            "id": n,
            "content": pieces[n],
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for n in (0, 1, 2, 3, 50)
    ]
    model = {"type": "Unigram", "unk_id": 3, "vocab": [[piece, -float(n)] for n, piece in enumerate(pieces)]}
    content = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "model": model}
    (tmp_path / "hf" / "tokenizer.json").write_text(
        json.dumps({**content, "post_processor": None, "decoder": None, "truncation": None, "padding": None})
    )
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["vocab_size"] >= len(pieces)
    ours = from_hf.convert(tmp_path / "hf", tmp_path / "ours", "xlm_joint", _languages("en,hi")).path
    assert convert(ours, tmp_path / "again").notes == ()
    encoder = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert encoder("p12", add_special_tokens=False)["input_ids"] == [pieces.index("p12")]
    assert (encoder.mask_token_id, encoder.pad_token_id) == (50, 1)


def _languages(text: str) -> Any:
    from fairseq_interference.languages import LanguageList

    return LanguageList(text.split(","))
