"""``convert from-hf``: transformers' own classes with random weights as oracles; XLM-R, X-MOD, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from cases import CASES, label
from convert_world import compare, write_hf, write_sentencepiece

from fairseq_interference.errors import CheckpointError, DictionaryError, LanguageError, TokenizerError, UsageError
from fairseq_interference.languages import LanguageList

pytest.importorskip("transformers", reason="extra hf is not installed")
pytestmark = pytest.mark.usefixtures("plugin")
ARCHS = [case for case in CASES if case.full_size > 64]
XMOD = {"languages": ["en_XX", "sw_KE", "zh_CN", "zh_TW"]}


def convert(source: Path, out: Path, arch: str = "xlm_adpt", langs: Optional[str] = "en,hi", **more: Any) -> Any:
    from fairseq_interference.convert.from_hf import convert

    return convert(source, out, arch, LanguageList(langs.split(",")) if langs else None, **more)


def loaded_from(source: Path, out: Path, *args: Any, **more: Any) -> Any:
    import fairseq_interference

    return fairseq_interference.load(str(convert(source, out, *args, **more).path))


@pytest.mark.parametrize("case", ARCHS, ids=label)
def test_xlm_r_into_every_arch(tmp_path: Path, case: Any) -> None:
    """Random token types included: they are added to every token, so they go into the positions."""
    theirs = write_hf(tmp_path / "hf", type_vocab_size=1)
    langs = "to" if case.arch == "xlm_mono" else "to,en"
    loaded = loaded_from(tmp_path / "hf", tmp_path / "out", case.arch, langs)
    assert theirs.roberta.embeddings.token_type_embeddings.weight.any()
    for lang in range(len(loaded.languages)):
        compare(loaded.model, theirs, torch.full((3,), lang))


@pytest.mark.parametrize("options", [{}, {"tie": False}, {"hidden_act": "gelu_python"}], ids=str)
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_forms_of_the_weights(tmp_path: Path, safe: bool, options: dict[str, Any]) -> None:
    theirs = write_hf(tmp_path / "hf", safe=safe, **options)
    found = convert(tmp_path / "hf", tmp_path / "out")
    assert found.notes == ("token types 1 to 1 left out: every token has type 0 here",)
    compare(loaded_from(tmp_path / "hf", tmp_path / "out").model, theirs)


def test_weights_in_parts(tmp_path: Path) -> None:
    theirs = write_hf(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="4KB")
    parts = list((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(parts) > 2
    compare(loaded_from(tmp_path / "hf", tmp_path / "out").model, theirs)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=parts[1].name):
        convert(tmp_path / "hf", tmp_path / "other")


@pytest.mark.parametrize("kind", ["XLMRobertaModel", "XLMRobertaForTokenClassification"])
def test_models_without_a_masked_lm_head(tmp_path: Path, kind: str) -> None:
    theirs = write_hf(tmp_path / "hf", kind)
    found = convert(tmp_path / "hf", tmp_path / "out")
    told = " ".join(found.notes)
    assert "no masked-LM head" in told and ("classifier" in told) == ("Token" in kind)
    model = loaded_from(tmp_path / "hf", tmp_path / "out").model
    head = model.encoder.lm_head
    assert head.weight is model.encoder.sentence_encoder.embed_tokens.weight
    body = theirs if kind == "XLMRobertaModel" else theirs.roberta
    ids = torch.tensor([[0, 9, 8, 7, 2]])
    with torch.no_grad():
        ours = model(ids, lang_id=torch.tensor([1]), features_only=True)[0]
        torch.testing.assert_close(ours, body(ids).last_hidden_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adapter_reuse_layer_norm": False, "adapter_layer_norm": True, "ln_before_adapter": False, "pre_norm": True},
        {"adapter_reuse_layer_norm": False, "adapter_reduction_factor": 4},
    ],
    ids=["base", "large-prenorm", "bare"],
)
@pytest.mark.parametrize("langs", [None, "zh_tw,en"], ids=["all", "some"])
def test_xmod(tmp_path: Path, options: dict[str, Any], langs: Optional[str]) -> None:
    theirs = write_hf(tmp_path / "hf", "XmodForMaskedLM", **XMOD, **options)
    loaded = loaded_from(tmp_path / "hf", tmp_path / "out", "xlm_adpt", langs)
    assert loaded.languages.codes == (langs.split(",") if langs else ["en", "sw", "zh_cn", "zh_tw"])
    names = {"en": 0, "sw": 1, "zh_cn": 2, "zh_tw": 3}
    for lang, code in enumerate(loaded.languages):
        compare_routed(loaded.model, theirs, lang, names[code])


def compare_routed(ours: Any, theirs: Any, lang: int, number: int) -> None:
    """As :func:`compare`, with different numbers of a language here and there."""
    from convert_world import close, tokens

    ids, mask = tokens(ours.encoder.sentence_encoder.embed_tokens.num_embeddings)
    with torch.no_grad():
        found = theirs(ids, attention_mask=mask, lang_ids=torch.full((3,), number), output_hidden_states=True)
        scores, extra = ours(ids, lang_id=torch.full((3,), lang), return_all_hiddens=True)
        features = ours(ids, lang_id=torch.full((3,), lang), features_only=True)[0]
    close(scores, found.logits, mask, 1e-4)
    close(features, found.hidden_states[-1], mask, 1e-5)
    for mine, other in zip(extra["inner_states"][:-1], found.hidden_states):
        close(mine.transpose(0, 1), other, mask, 1e-5)


def test_xmod_needs_an_arch_with_an_adapter_per_language(tmp_path: Path) -> None:
    write_hf(tmp_path / "hf", "XmodForMaskedLM", **XMOD)
    for arch in ("xlm_joint", "xlm_share_adpt", "xlm_ffn"):
        with pytest.raises(UsageError, match="xlm_adpt"):
            convert(tmp_path / "hf", tmp_path / "out", arch, None)
    with pytest.raises(LanguageError, match="sw"):
        convert(tmp_path / "hf", tmp_path / "out", "xlm_adpt", "en,hi")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "bert"}, "1e-12"),
        ({"model_type": "xlm-roberta-xl"}, "from-fairseq-xlmr"),
        ({"model_type": "llama"}, "llama"),
        ({"layer_norm_eps": 1e-12}, "layer_norm_eps"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"hidden_act": "relu"}, "masked-LM head"),
        ({"pad_token_id": 0}, "pad_token_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings_without_a_counterpart(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write_hf(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=said):
        convert(tmp_path / "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_setting_is_named_at_once(tmp_path: Path) -> None:
    from fairseq_interference.convert.hf_config import check_readable

    config = {"model_type": "xmod", "layer_norm_eps": 1e-12, "is_decoder": True, "ln_before_adapter": False}
    with pytest.raises(CheckpointError) as caught:
        check_readable(config, "config.json")
    assert all(name in str(caught.value) for name in ("layer_norm_eps", "is_decoder", "ln_before_adapter"))


def test_damaged_and_foreign_weights(tmp_path: Path) -> None:
    """Fault C1, and A7: strict, everything listed."""
    theirs = write_hf(tmp_path / "hf")
    whole = (tmp_path / "hf" / "model.safetensors").read_bytes()
    (tmp_path / "hf" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert(tmp_path / "hf", tmp_path / "out")
    (tmp_path / "hf" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        convert(tmp_path / "hf", tmp_path / "out")
    state = theirs.state_dict()
    torch.save({**state, "roberta.stranger": torch.zeros(1)}, tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"roberta\.stranger"):
        convert(tmp_path / "hf", tmp_path / "out")
    gone = "roberta.encoder.layer.1.output.dense.weight"
    torch.save({k: v for k, v in state.items() if k != gone}, tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"layers\.1\.fc2\.weight"):
        convert(tmp_path / "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- tokenizers --------------------------------------------------------------------------------------------------


def unigram(path: Path, pieces: list[str], **more: Any) -> None:
    added = [{"id": pieces.index("<mask>"), "content": "<mask>"}] if "<mask>" in pieces else []
    content = {"model": {"type": "Unigram", "vocab": [[piece, -1.0] for piece in pieces]}, "added_tokens": added}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, **more}), encoding="utf-8")


FIRST = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.mark.parametrize(
    ("pieces", "rows", "symbols"),
    [
        ([*FIRST, "\u2581a", "b", "<mask>"], 7, ["\u2581a", "b", "<mask>"]),
        ([*FIRST, "\x85", "\u2028", "<mask>"], 7, ["\x85", "\u2028", "<mask>"]),  # XLM-R has such a piece
        ([*FIRST, "a", "<mask>", "extra"], 9, ["a", "<mask>", "extra", "madeupword0007", "madeupword0008"]),
    ],
    ids=["mask last", "blanks of Unicode", "rows behind mask"],
)
def test_ids_of_a_tokenizer_json_stay(tmp_path: Path, pieces: list[str], rows: int, symbols: list[str]) -> None:
    from fairseq_interference.cli.check import Findings, check_dictionary
    from fairseq_interference.convert import vocabulary

    unigram(tmp_path / "tokenizer.json", pieces)
    read = vocabulary.pieces_of_json(tmp_path / "tokenizer.json")
    (tmp_path / "dict.txt").write_text(vocabulary.dictionary_text(read, rows, "x"), encoding="utf-8", newline="\n")
    dictionary = vocabulary.read_dictionary(tmp_path / "dict.txt")
    assert dictionary.symbols == [*FIRST, *symbols]
    vocabulary.check_rows(dictionary, rows, "x")
    vocabulary.check_pieces(dictionary, read, "x")
    found = Findings()
    check_dictionary(tmp_path / "dict.txt", found)
    assert not found.problems


@pytest.mark.parametrize(
    ("pieces", "rows", "said"),
    [
        (["<pad>", "<s>", "</s>", "<unk>", "a", "<mask>"], 6, "ids 0 to 3"),
        ([*FIRST, "a"], 5, "no <mask>"),
        ([*FIRST, "a", "b", "<mask>"], 6, "more pieces"),
        ([*FIRST, "a b", "<mask>"], 6, "cannot hold"),
    ],
)
def test_vocabularies_that_the_host_cannot_number(pieces: list[str], rows: int, said: str) -> None:
    from fairseq_interference.convert.vocabulary import dictionary_text

    with pytest.raises(DictionaryError, match=said):
        dictionary_text(pieces, rows, "tokenizer.json")


def test_a_tokenizer_from_elsewhere(tmp_path: Path) -> None:
    """X-MOD is published without one."""
    theirs = write_hf(tmp_path / "hf")
    (tmp_path / "hf" / "sentencepiece.bpe.model").rename(tmp_path / "moved.model")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        convert(tmp_path / "hf", tmp_path / "out")
    processor = write_sentencepiece(tmp_path / "tok" / "sentencepiece.bpe.model")
    pieces = [*FIRST, *(processor.id_to_piece(n) for n in range(3, processor.get_piece_size())), "<mask>"]
    unigram(tmp_path / "tok" / "tokenizer.json", pieces)
    loaded = loaded_from(tmp_path / "hf", tmp_path / "out", tokenizer=tmp_path / "tok")
    compare(loaded.model, theirs)
    assert loaded.dictionary.symbols == pieces
    pieces[7], pieces[8] = pieces[8], pieces[7]
    unigram(tmp_path / "tok" / "tokenizer.json", pieces)
    with pytest.raises(TokenizerError, match="not the one of this dictionary"):
        convert(tmp_path / "hf", tmp_path / "other", tokenizer=tmp_path / "tok")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference.cli import main

    write_hf(tmp_path / "hf")
    command = ["convert", "from-hf", "--input", str(tmp_path / "hf"), "--output", str(tmp_path / "out")]
    assert main([*command, "--arch", "xlm_joint"]) == 2
    assert "--langs" in capsys.readouterr().err
    assert main([*command, "--arch", "xlm_joint", "--langs", "en,hi"]) == 0
    assert "checkpoint_best.pt" in capsys.readouterr().out
