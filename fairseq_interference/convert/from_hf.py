"""transformers' XLM-R and X-MOD into an arch of ours. Needs neither transformers nor a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from fairseq_interference.convert import checkpoint, hf_config, hf_files, names, vocabulary
from fairseq_interference.convert.checkpoint import Converted
from fairseq_interference.data.companions import DICTIONARY
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, LanguageError, TokenizerError, UsageError
from fairseq_interference.languages import LanguageList
from fairseq_interference.stages import stage, write_text

PathLike = Union[str, Path]
SENTENCEPIECE, JSON = "sentencepiece.bpe.model", "tokenizer.json"
# tensors of transformers that hold nothing of their own
IDLE = ("embeddings.position_ids", "lm_head.decoder.bias")
HEADS = ("classifier.", "qa_outputs.", "pooler.")


def convert(
    source: PathLike,
    out: PathLike,
    arch: str,
    languages: Optional[LanguageList] = None,
    tokenizer: Optional[PathLike] = None,
    flags: Iterable[str] = (),
    force: bool = False,
) -> Converted:
    """Convert a folder of ``save_pretrained``.

    Args:
        source: folder with config.json, model.safetensors or pytorch_model.bin, and a tokenizer.
        out: folder to write.
        arch: an arch of ours; XLM-R takes any, X-MOD one with an adapter per language.
        languages: XLM-R: whose components are made; X-MOD: which of its languages, in this order (default: all).
        tokenizer: folder with the tokenizer if ``source`` has none.
        flags: of the arch.
        force: write again if input or settings changed.

    Raises:
        CheckpointError: a kind of model or a setting that has no counterpart, or weights that do not fit.
        TokenizerError, DictionaryError: no tokenizer, or not that of the weights. LanguageError: unknown to X-MOD.
    """
    source, out, flags = Path(source), Path(out), list(flags)
    config = hf_files.read_config(source)
    hf_config.check_readable(config, source / hf_files.CONFIG)
    checkpoint.preset(arch)
    codes = _xmod_codes(config, arch, languages)
    chosen = LanguageList(codes.values()) if codes else languages
    if not chosen:
        raise UsageError("Whose components shall be made?", where="--langs", next_step="give --langs en,hi,…")
    files = _tokenizer_files(Path(tokenizer or source))
    settings = {"from": "hf", "arch": arch, "langs": chosen.codes, "flags": flags}
    weights = {path.name: path for path in hf_files.weight_files(source)}
    inputs = {**weights, **files, hf_files.CONFIG: source / hf_files.CONFIG}
    with stage(out, inputs=inputs, settings=settings, force=force) as folder:
        if folder is None:
            return Converted(out / checkpoint.FILE, done_before=True)
        notes = _write(folder, out, source, config, files, arch, chosen, codes, flags)
    return Converted(out / checkpoint.FILE, tuple(notes))


def _xmod_codes(config: Mapping[str, Any], arch: str, languages: Optional[LanguageList]) -> dict[str, str]:
    """X-MOD's language -> our code, of the languages chosen and in their order; empty for XLM-R."""
    if config["model_type"] != "xmod":
        return {}
    preset = checkpoint.preset(arch)
    if getattr(preset, "lang_parts", None) != "adapter" or preset.adapter_sharing != "language":
        raise UsageError(
            "X-MOD has an adapter per language.", where="--arch", value=arch, allowed="xlm_adpt, xlm_meta_adpt"
        )
    codes = hf_config.our_codes(config.get("languages", ["en_XX"]))
    if languages is None:
        return codes
    theirs = {code: language for language, code in codes.items()}
    unknown = [code for code in languages if code not in theirs]
    if unknown:
        raise LanguageError(
            "X-MOD has no adapter of this language.",
            where="--langs",
            value=",".join(unknown),
            allowed=",".join(theirs),
            next_step="convert without it, then append it: --langs of training, or convert import-lang",
        )
    return {theirs[code]: code for code in languages}


def _tokenizer_files(folder: Path) -> dict[str, Path]:
    found = {name: folder / name for name in (SENTENCEPIECE, JSON) if (folder / name).is_file()}
    if not found:
        raise TokenizerError(
            "There is no tokenizer here.",
            where=folder,
            allowed=f"{SENTENCEPIECE} or {JSON}",
            next_step="give --tokenizer FOLDER (X-MOD: the tokenizer of xlm-roberta-base)",
        )
    return found


def _write(
    folder: Path,
    out: Path,
    source: Path,
    config: Mapping[str, Any],
    files: Mapping[str, Path],
    arch: str,
    languages: LanguageList,
    codes: dict[str, str],
    flags: list[str],
) -> list[str]:
    weights, options, notes = our_weights(hf_files.read_weights(source), config, codes, source)
    _write_vocabulary(folder, files, weights[names.EMBED].shape[0])
    if not any(name.startswith(names.LM_HEAD) for name in weights):
        notes.append("no masked-LM head in the input: it starts fresh")
    checkpoint.write(
        folder, out, arch, languages, weights, options, flags, folder / "tokenizer", may_lack=names.LM_HEAD
    )
    return notes


def our_weights(
    theirs: Mapping[str, Tensor], config: Mapping[str, Any], codes: dict[str, str], where: object
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Weights in our names, options of our model, and what was left out in words.

    Raises:
        CheckpointError: tensors that have no place here, all listed.
    """
    weights = {names.VERSION: torch.tensor([names.TODAY])}
    strangers: list[str] = []
    heads: set[str] = set()
    token_types: Optional[Tensor] = None
    for full, value in theirs.items():
        name = full[len(names.BASE) :] if full.startswith(names.BASE) else full
        ours = names.to_ours(name)
        adapters = names.adapter_to_ours(name, codes)
        if name in IDLE:
            continue
        if name == names.TOKEN_TYPES:
            token_types = value
        elif ours is not None:
            weights[ours] = value
        elif adapters is not None:
            weights.update(dict.fromkeys(adapters, value))
        elif name.startswith(HEADS):
            heads.add(name.split(".")[0])
        else:
            strangers.append(full)
    if strangers or names.EMBED not in weights or names.POSITIONS not in weights:
        raise CheckpointError(
            "The weights are not those of XLM-R or X-MOD.",
            where=where,
            value="unexpected: " + ", ".join(strangers) if strangers else "embeddings are missing",
        )
    notes = [f"heads left out: {', '.join(sorted(heads))}"] if heads else []
    notes += _fold_token_types(weights, token_types)
    return weights, {**hf_config.encoder_options(config), **_output(weights, config, where)}, notes


def _fold_token_types(weights: dict[str, Tensor], table: Optional[Tensor]) -> list[str]:
    """Every token has type 0: its vector goes into the positions."""
    if table is None:
        return []
    if bool(table[0].any()):
        weights[names.POSITIONS] = weights[names.POSITIONS].float() + table[0].float()
    rest = bool(table[1:].any()) if len(table) > 1 else False
    return [f"token types 1 to {len(table) - 1} left out: every token has type 0 here"] if rest else []


def _output(weights: dict[str, Tensor], config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Whether the output embeddings are the input's, and that the head's activation is what transformers has."""
    bias = f"{names.LM_HEAD}bias"
    if bias not in weights:
        weights.pop(names.OUTPUT, None)
        return {"untie_weights_roberta": False}
    if hf_config.encoder_options(config)["activation_fn"] != "gelu":
        raise CheckpointError(
            "transformers' masked-LM head has gelu whatever the encoder has; the host's has the encoder's.",
            where=where,
            value=f"hidden_act {config.get('hidden_act')}",
            allowed="gelu",
        )
    output = weights.get(names.OUTPUT)
    tied = output is None or config.get("tie_word_embeddings", True) or torch.equal(output, weights[names.EMBED])
    if tied:
        weights[names.OUTPUT] = weights[names.EMBED]
    return {"untie_weights_roberta": not tied}


def _write_vocabulary(folder: Path, files: Mapping[str, Path], rows: int) -> None:
    """``dict.txt`` with the tokenizer's ids, and ``tokenizer/``; both forms of a tokenizer must agree."""
    pieces = {SENTENCEPIECE: vocabulary.pieces_of_sentencepiece, JSON: vocabulary.pieces_of_json}
    read = {name: list(pieces[name](path)) for name, path in files.items()}
    first = next(iter(files))
    text = vocabulary.dictionary_text(read[first], rows, files[first])
    write_text(folder / DICTIONARY, text)
    dictionary = vocabulary.read_dictionary(folder / DICTIONARY)
    vocabulary.check_rows(dictionary, rows, files[first])
    for name, path in files.items():
        vocabulary.check_pieces(dictionary, read[name], path)
    kind = "sentencepiece" if first == SENTENCEPIECE else "huggingface"
    Tokenizer.create(folder / "tokenizer", kind, files[first], normalization="none", pretokenizer="none")
