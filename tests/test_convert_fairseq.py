"""``convert from-fairseq-xlmr``: a public folder of the host into every arch, with the same hidden states and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, label
from convert_world import close, save_fairseq, tokens, write_fairseq
from test_models_checkpoints import old_names

from fairseq_interference.errors import CheckpointError, DictionaryError, LanguageError, TokenizerError, UsageError
from fairseq_interference.languages import LanguageList

pytestmark = pytest.mark.usefixtures("plugin")
ARCHS = [case for case in CASES if case.full_size > 64]


def convert(source: Path, out: Path, arch: str = "xlm_adpt", langs: str = "en,hi", *flags: str) -> Any:
    from fairseq_interference.convert.fairseq_xlmr import convert

    return convert(source, out, arch, LanguageList(code for code in langs.split(",") if code), flags)


@torch.no_grad()
def same(ours: Any, host: Any, languages: int = 1) -> None:
    ids, mask = tokens(host.encoder.sentence_encoder.embed_tokens.num_embeddings)
    scores, extra = host(ids, return_all_hiddens=True)
    for lang in range(languages):
        found, more = ours(ids, lang_id=torch.full((len(ids),), lang), return_all_hiddens=True)
        close(found, scores, mask, 1e-4)
        for mine, theirs in zip(more["inner_states"], extra["inner_states"]):
            close(mine.transpose(0, 1), theirs.transpose(0, 1), mask, 1e-5)


@pytest.mark.parametrize("case", ARCHS, ids=label)
def test_hidden_states_are_those_of_the_host(tmp_path: Path, case: Any) -> None:
    import fairseq_interference

    host = write_fairseq(tmp_path / "xlmr")
    langs = "to" if case.arch == "xlm_mono" else "en,to"
    found = convert(tmp_path / "xlmr", tmp_path / "out", case.arch, langs)
    assert found.path == tmp_path / "out" / "checkpoint_best.pt" and found.notes == ()
    loaded = fairseq_interference.load(str(found.path))
    assert loaded.languages.codes == langs.split(",") and not loaded.notes
    same(loaded.model, host, len(loaded.languages))


def test_a_checkpoint_of_todays_host(tmp_path: Path) -> None:
    """It holds ``cfg`` in the place of ``args``."""
    import fairseq_interference

    host = write_fairseq(tmp_path / "xlmr", encoder_attention_heads=2)
    path = tmp_path / "xlmr" / "model.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "args": None, "cfg": {"model": vars(state["args"]), "task": {"_name": "masked_lm"}}}, path)
    same(fairseq_interference.load(str(convert(tmp_path / "xlmr", tmp_path / "out").path)).model, host, 2)


@pytest.mark.parametrize("old", [False, True], ids=["today", "2019"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
def test_names_and_precision_of_the_public_files(tmp_path: Path, old: bool, half: bool) -> None:
    """XLM-R was published in 2019, in half precision, with a Namespace."""
    import fairseq_interference

    host = write_fairseq(tmp_path / "xlmr")
    host = host.half().float() if half else host
    state = {name: value.half() if half else value for name, value in host.state_dict().items()}
    args = host.args
    del args.max_source_positions, args.layernorm_embedding
    save_fairseq(tmp_path / "xlmr" / "model.pt", args, old_names(state) if old else state)
    loaded = fairseq_interference.load(str(convert(tmp_path / "xlmr", tmp_path / "out").path))
    assert all(p.dtype == torch.float32 for p in loaded.model.parameters())
    same(loaded.model, host, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_normalize_before": True, "layernorm_embedding": False},
        {"activation_fn": "relu", "encoder_attention_heads": 2, "dropout": 0.3},
        {"untie_weights_roberta": True},
    ],
    ids=["pre-norm", "relu", "untied"],
)
def test_other_encoders_of_the_host(tmp_path: Path, options: dict[str, Any]) -> None:
    import fairseq_interference

    host = write_fairseq(tmp_path / "xlmr", **options)
    loaded = fairseq_interference.load(str(convert(tmp_path / "xlmr", tmp_path / "out").path))
    same(loaded.model, host)
    assert loaded.model.args.dropout == options.get("dropout", 0.1)


def test_every_piece_keeps_its_id_and_mask_is_the_last(tmp_path: Path) -> None:
    import fairseq_interference
    from fairseq_interference.data.tokenizer import Tokenizer

    host = write_fairseq(tmp_path / "xlmr")
    loaded = fairseq_interference.load(str(convert(tmp_path / "xlmr", tmp_path / "out").path))
    assert loaded.dictionary.symbols == host.encoder.dictionary.symbols
    assert loaded.dictionary.index("<mask>") == len(loaded.dictionary) - 1 == loaded.task.mask_idx
    tokenizer = Tokenizer.load(loaded.tokenizer_dir)
    assert (tokenizer.kind, tokenizer.normalization) == ("sentencepiece", "none")
    processor = tokenizer.backend._processor
    for text in ("Anna sees the river", "mulo ka Sabi", "<mask> walks"):
        theirs = [n + 1 if n > 2 else 3 for part in text.split("<mask>") for n in processor.encode(part)]
        ids = [loaded.dictionary.index(piece) for piece in tokenizer.encode_line(text, "en", special=True)]
        assert [n for n in ids if n != loaded.task.mask_idx] == theirs


def test_flags_of_the_arch_and_a_second_call(tmp_path: Path) -> None:
    import fairseq_interference
    from fairseq_interference.cli import main

    write_fairseq(tmp_path / "xlmr")
    command = [
        "convert",
        "from-fairseq-xlmr",
        "--input",
        str(tmp_path / "xlmr"),
        "--arch",
        "xlm_adpt",
        "--langs",
        "en,hi",
    ]
    command += ["--output", str(tmp_path / "out")]
    assert main([*command, "--", "--adapter-dim", "5"]) == 0
    loaded = fairseq_interference.load(str(tmp_path / "out" / "checkpoint_best.pt"))
    assert loaded.model.sentence_encoder.layers[0].attn_adapter.adapters.of(0).down.out_features == 5
    before = (tmp_path / "out" / "checkpoint_best.pt").stat().st_mtime_ns
    assert main([*command, "--", "--adapter-dim", "5"]) == 0
    assert (tmp_path / "out" / "checkpoint_best.pt").stat().st_mtime_ns == before
    assert main(command) == 1, "other settings, without --force"
    assert main([*command, "--force"]) == 0


def test_heads_are_left_out_and_named(tmp_path: Path) -> None:
    host = write_fairseq(tmp_path / "xlmr")
    host.register_classification_head("xnli", num_classes=3)
    save_fairseq(tmp_path / "xlmr" / "model.pt", host.args, host.state_dict())
    assert convert(tmp_path / "xlmr", tmp_path / "out").notes == ("heads left out: xnli",)


def test_without_a_sentencepiece_model(tmp_path: Path) -> None:
    import fairseq_interference

    write_fairseq(tmp_path / "xlmr")
    (tmp_path / "xlmr" / "sentencepiece.bpe.model").unlink()
    found = convert(tmp_path / "xlmr", tmp_path / "out")
    assert "sentencepiece" in found.notes[0]
    assert fairseq_interference.load(str(found.path)).tokenizer_dir is None


def drop_last_line(folder: Path) -> None:
    lines = (folder / "dict.txt").read_text(encoding="utf-8").split("\n")
    (folder / "dict.txt").write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")


def double_a_line(folder: Path) -> None:
    lines = (folder / "dict.txt").read_text(encoding="utf-8").split("\n")
    (folder / "dict.txt").write_text("\n".join([lines[0], *lines]), encoding="utf-8")


def other_pieces(folder: Path) -> None:
    lines = (folder / "dict.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (folder / "dict.txt").write_text("".join(f"x{n} 1\n" for n in range(len(lines))), encoding="utf-8")


def cut(folder: Path) -> None:
    (folder / "model.pt").write_bytes((folder / "model.pt").read_bytes()[:2000])


def xmod(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    state["model"]["encoder.sentence_encoder.layers.0.adapter_modules.en_XX.fc1.weight"] = torch.zeros(2, 2)
    torch.save(state, folder / "model.pt")


def no_dictionary(folder: Path) -> None:
    (folder / "dict.txt").unlink()


def no_encoder(folder: Path) -> None:
    torch.save({"weights": 1}, folder / "model.pt")


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (drop_last_line, DictionaryError, "not that of these weights"),
        (double_a_line, DictionaryError, "twice"),
        (other_pieces, TokenizerError, "not the one of this dictionary"),
        (cut, CheckpointError, "cut short"),
        (xmod, CheckpointError, "X-MOD"),
        (no_dictionary, UsageError, "dict.txt"),
        (no_encoder, CheckpointError, "not a checkpoint of the host"),
    ],
)
def test_broken_folders_are_refused_by_name(tmp_path: Path, spoil: Any, error: Any, said: str) -> None:
    """Fault C1: a file that is cut short is named, whatever format it is in."""
    write_fairseq(tmp_path / "xlmr")
    spoil(tmp_path / "xlmr")
    with pytest.raises(error, match=said):
        convert(tmp_path / "xlmr", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_arch_and_too_many_languages(tmp_path: Path) -> None:
    write_fairseq(tmp_path / "xlmr")
    with pytest.raises(UsageError, match="xlm_adpt"):
        convert(tmp_path / "xlmr", tmp_path / "out", "roberta_base")
    with pytest.raises(UsageError, match="--langs"):
        convert(tmp_path / "xlmr", tmp_path / "out", "xlm_adpt", "")
    with pytest.raises(LanguageError, match="one language"):
        convert(tmp_path / "xlmr", tmp_path / "out", "xlm_mono")
