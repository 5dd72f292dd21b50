"""A public XLM-R folder of the host (``model.pt``, ``dict.txt``, ``sentencepiece.bpe.model``) into an arch of ours."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

from torch import Tensor

from fairseq_interference.convert import checkpoint, names, vocabulary
from fairseq_interference.convert.checkpoint import Converted
from fairseq_interference.data.companions import DICTIONARY
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, TokenizerError, UsageError
from fairseq_interference.languages import LanguageList
from fairseq_interference.stages import stage

PathLike = Union[str, Path]
MODEL, SENTENCEPIECE = "model.pt", "sentencepiece.bpe.model"
# options of the host's encoder that must travel, beside the sizes that are read from the weights
KEPT = ("encoder_attention_heads", "activation_fn", "pooler_activation_fn", "encoder_normalize_before")
RATES = ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout")


def _read(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Weights in the names of today's host, and the model's options."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    what, allowed = "This is not a checkpoint of the host.", "keys model, and args or cfg"
    try:
        state = load_checkpoint_to_cpu(str(path))
    except (KeyError, AttributeError, TypeError) as error:  # the host upgrades what it takes for an old checkpoint
        raise CheckpointError(what, where=path, value=str(error), allowed=allowed) from None
    args = state.get("args") or (state.get("cfg") or {}).get("model")
    if args is None or "model" not in state:
        raise CheckpointError(what, where=path, value=", ".join(map(str, state)), allowed=allowed)
    weights = {_today(name): value for name, value in state["model"].items()}
    if names.EMBED not in weights:
        raise CheckpointError("This is not a roberta or XLM-R encoder.", where=path, value=f"no {names.EMBED}")
    if any(".adapter_modules." in name for name in weights):
        raise CheckpointError(
            "This is X-MOD in the host's form.", where=path, next_step="convert from-hf with transformers' form of it"
        )
    return weights, args


def _today(name: str) -> str:
    """XLM-R was published in the names of 2019."""
    if name.startswith("decoder."):
        name = "encoder." + name[len("decoder.") :]
    return name.replace(".emb_layer_norm.", ".layernorm_embedding.")


def _option(args: Any, name: str) -> Any:
    return getattr(args, name, None) if isinstance(args, Namespace) else args.get(name)


def encoder_options(weights: Mapping[str, Tensor], args: Any) -> dict[str, Any]:
    """Options of our model for the host's encoder: sizes from the weights, the rest from its options.

    Args:
        weights: in today's names.
        args: the checkpoint's Namespace or configuration; what it lacks is the host's preset of its arch.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY

    full = Namespace(**{name: _option(args, name) for name in (*KEPT, *RATES) if _option(args, name) is not None})
    ARCH_CONFIG_REGISTRY.get(_option(args, "arch"), ARCH_CONFIG_REGISTRY["roberta"])(full)
    rows, dim = weights[names.POSITIONS].shape
    layers = {int(name[len(names.ENCODER) :].split(".")[1]) for name in weights if f"{names.ENCODER}layers." in name}
    shared = f"{names.ENCODER}layers.0.fc1.weight"
    return {
        "encoder_layers": len(layers),
        "encoder_embed_dim": dim,
        "encoder_ffn_embed_dim": weights[shared].shape[0],
        "max_positions": rows - 2,  # the table begins behind <pad>
        "layernorm_embedding": f"{names.ENCODER}layernorm_embedding.weight" in weights,
        "untie_weights_roberta": _is_untied(weights),
        **{name: getattr(full, name) for name in (*KEPT, *RATES)},
    }


def _is_untied(weights: Mapping[str, Tensor]) -> bool:
    output = weights.get(names.OUTPUT)
    return output is not None and not bool((output == weights[names.EMBED]).all())


def convert(
    source: PathLike,
    out: PathLike,
    arch: str,
    languages: LanguageList,
    flags: Iterable[str] = (),
    force: bool = False,
) -> Converted:
    """Convert a folder; see :mod:`fairseq_interference.convert.fairseq_xlmr`.

    Args:
        source: folder; ``sentencepiece.bpe.model`` may be missing, then no tokenizer travels.
        out: folder to write; made by this call or a former one.
        arch: an arch of ours; its components start at identity, its sizes are those of the weights.
        languages: whose components are made.
        flags: of the arch, such as ``--adapter-dim 64``.
        force: write again if input or settings changed.

    Raises:
        CheckpointError, DictionaryError, TokenizerError: named, for each file.
        StageError: the folder holds something else.
    """
    source, out, flags = Path(source), Path(out), list(flags)
    if not languages:
        raise UsageError("Whose components shall be made?", where="--langs", next_step="give --langs en,hi,…")
    files = {name: source / name for name in (MODEL, DICTIONARY, SENTENCEPIECE)}
    for name in (MODEL, DICTIONARY):
        if not files[name].is_file():
            raise UsageError("A file of the folder is missing.", where="--input", value=str(files[name]))
    checkpoint.preset(arch)
    settings = {"from": "fairseq-xlmr", "arch": arch, "langs": languages.codes, "flags": flags}
    inputs = {name: path for name, path in files.items() if path.is_file()}
    with stage(out, inputs=inputs, settings=settings, force=force) as folder:
        if folder is None:
            return Converted(out / checkpoint.FILE, done_before=True)
        notes = _write(folder, out, files, arch, languages, flags)
    return Converted(out / checkpoint.FILE, tuple(notes))


def _write(
    folder: Path, out: Path, files: Mapping[str, Path], arch: str, languages: LanguageList, flags: list[str]
) -> list[str]:
    weights, args = _read(files[MODEL])
    dictionary = vocabulary.read_dictionary(files[DICTIONARY])
    vocabulary.check_rows(dictionary, weights[names.EMBED].shape[0], files[DICTIONARY])
    notes = drop_heads(weights)
    options = encoder_options(weights, args)
    (folder / DICTIONARY).write_bytes(files[DICTIONARY].read_bytes())
    tokenizer: Optional[Path] = None
    if files[SENTENCEPIECE].is_file():
        tokenizer = folder / "tokenizer"
        Tokenizer.create(tokenizer, "sentencepiece", files[SENTENCEPIECE], normalization="none", pretokenizer="none")
        notes += _check_cover(dictionary, files[SENTENCEPIECE])
    else:
        notes.append(f"no {SENTENCEPIECE}: text must be encoded by hand")
    checkpoint.write(folder, out, arch, languages, weights, options, flags, tokenizer)
    return notes


def drop_heads(weights: dict[str, Tensor]) -> list[str]:
    """Take heads of fine-tuning out; returns a note that names them."""
    heads = sorted({name.split(".")[1] for name in weights if name.startswith("classification_heads.")})
    for name in [name for name in weights if name.startswith("classification_heads.")]:
        del weights[name]
    return [f"heads left out: {', '.join(heads)}"] if heads else []


def _check_cover(dictionary: Any, model: Path) -> list[str]:
    """A note of pieces that the dictionary lacks.

    Raises:
        TokenizerError: most of them.
    """
    pieces = vocabulary.pieces_of_sentencepiece(model)
    unknown = [piece for piece in pieces if piece not in dictionary]
    if len(unknown) > len(pieces) // 2:
        raise TokenizerError(
            "The sentencepiece model is not the one of this dictionary.",
            where=model,
            value=f"{len(unknown)} of {len(pieces)} pieces are unknown",
        )
    return [f"{len(unknown)} pieces of {model.name} are not in {DICTIONARY} and become <unk>"] if unknown else []
