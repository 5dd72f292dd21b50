"""One language's components as a small file, and into another checkpoint with the same body."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from fairseq_interference import __version__
from fairseq_interference.checkpoint_files import READ_ERRORS, explain
from fairseq_interference.convert import checkpoint, names
from fairseq_interference.convert.checkpoint import Converted
from fairseq_interference.data import dictionary as dictionaries
from fairseq_interference.data.companions import DICTIONARY, TOKENIZER, write_companions
from fairseq_interference.data.prepared import LABELS_FILE
from fairseq_interference.errors import CheckpointError, UsageError
from fairseq_interference.languages import check_code
from fairseq_interference.loading import Loaded, load
from fairseq_interference.models._state import CODES_KEY, encode_languages
from fairseq_interference.models.xlm import XLMModel
from fairseq_interference.stages import copy_over, stage

PathLike = Union[str, Path]
FORMAT, KIND = 1, "fairseq-interference language"
# options that the parts depend on beside those of our components
SIZES = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_normalize_before",
    "activation_fn",
)
# our options that say nothing about what the parts compute
IDLE = ("_name", "monolingual", "allow_single_lang", "checkpoint_activations", "meta_adapters", "adapter_dropout")


@dataclass(frozen=True)
class LanguageFile:
    """Content of a file of :func:`export_language`.

    Attributes:
        lang: its code. arch: that it was trained in.
        options: what the parts depend on; must be equal.
        body: hash of the shared weights that the parts were trained with.
        dictionary: hash of the dictionary.
        parts: name with ``{lang}`` for the code -> tensor.
    """

    lang: str
    arch: str
    options: dict[str, Any]
    body: str
    dictionary: str
    parts: dict[str, Tensor]


def body_hash(named: Iterable[tuple[str, Tensor]]) -> str:
    """Hexadecimal blake2b (128 bit) of the shared encoder: names, shapes and values, heads left out.

    Args:
        named: parameters of a model of ours by name.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(named, key=lambda pair: pair[0]):
        if name.startswith("encoder.") and names.language_of(name) is None:
            digest.update(f"{name}\0{tuple(value.shape)}\0".encode())
            digest.update(value.detach().float().contiguous().cpu().numpy().data)
    return digest.hexdigest()


def parts_of(model: Any, lang: str) -> dict[str, Tensor]:
    """A language's parameters by name, with ``{lang}`` for the code."""
    found: dict[str, Tensor] = {}
    for name, value in model.named_parameters():
        owner = names.language_of(name)
        if owner is not None and owner[0] == lang:
            found[owner[1]] = value.detach()
    return found


def _options(model: Any) -> dict[str, Any]:
    own = {name: getattr(model.options, name) for name in model.options.__dataclass_fields__ if name not in IDLE}
    return {**{name: getattr(model.args, name) for name in SIZES}, **own}


def _load(path: PathLike) -> Loaded:
    if not Path(path).is_file():
        raise UsageError("There is no such checkpoint.", where="--checkpoint", value=str(path))
    loaded = load(path)
    if not isinstance(loaded.model, XLMModel):
        raise CheckpointError("This is not a model of ours.", where=path, value=type(loaded.model).__name__)
    if not loaded.languages or not parts_of(loaded.model, loaded.languages[0]):
        raise CheckpointError(
            "This model has no parts of a single language.",
            where=path,
            value=str(getattr(loaded.model.args, "arch", "")),
        )
    return loaded


def export_language(path: PathLike, lang: str, out: PathLike) -> LanguageFile:
    """Write one language's components into a file.

    Args:
        path: checkpoint of ours with language-specific parts.
        lang: a code of its languages.
        out: file to write.

    Raises:
        LanguageError: unknown language. CheckpointError: a model without such parts.
    """
    loaded = _load(path)
    loaded.languages.id(lang, "--lang")
    if Path(out).is_dir():
        raise UsageError("This is a folder.", where="--output", value=str(out))
    model = loaded.model
    found = LanguageFile(
        lang,
        str(getattr(model.args, "arch", "")),
        _options(model),
        body_hash(model.named_parameters()),
        dictionaries.digest(loaded.dictionary.symbols),
        {name: value.clone() for name, value in parts_of(model, lang).items()},
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(out.name + ".tmp")
    torch.save({"kind": KIND, "format": FORMAT, "release": __version__, **vars(found)}, temporary)
    temporary.replace(out)
    return found


def read_language(path: PathLike) -> LanguageFile:
    """Read a file of :func:`export_language`. Only tensors and plain values are ever loaded from it.

    Raises:
        CheckpointError: missing, damaged, of another format, or with keys missing.
    """
    if not Path(path).is_file():
        raise UsageError("There is no such file.", where="--input", value=str(path))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except READ_ERRORS as error:
        raise explain(path, error) or CheckpointError("This file cannot be read.", where=path) from None
    kind = content.get("kind") if isinstance(content, Mapping) else type(content).__name__
    if kind != KIND:
        raise CheckpointError("This is not a file of one language.", where=path, value=str(kind), allowed=KIND)
    if content.get("format") != FORMAT:
        raise CheckpointError("Another format.", where=path, value=str(content.get("format")), allowed=FORMAT)
    missing = sorted(set(LanguageFile.__dataclass_fields__) - set(content))
    if missing:
        raise CheckpointError("Keys are missing.", where=path, value=", ".join(missing))
    check_code(content["lang"], path)
    return LanguageFile(**{name: content[name] for name in LanguageFile.__dataclass_fields__})


def import_language(path: PathLike, file: PathLike, out: PathLike, force: bool = False) -> Converted:
    """Write a checkpoint that has the language of ``file``: appended to the list, or its parts replaced.

    Args:
        path: checkpoint of ours with the same structure.
        file: of :func:`export_language`.
        out: folder to write; the checkpoint given stays as it is.
        force: take parts that were trained with another body or dictionary; write again if the input changed.

    Raises:
        CheckpointError: another structure (always), or another body or dictionary (without ``force``).
    """
    path, out = Path(path), Path(out)
    found = read_language(file)
    loaded = _load(path)
    notes = _check(found, loaded, path, force)
    inputs = {"checkpoint": path, "language": Path(file)}
    with stage(out, inputs=inputs, settings={"import": found.lang, "force": force}, force=force) as folder:
        if folder is None:
            return Converted(out / checkpoint.FILE, done_before=True)
        known = found.lang in loaded.languages
        notes.append(f"{found.lang}: " + ("its parts are replaced" if known else "appended to the languages"))
        _write(folder, out, path, found, loaded)
    return Converted(out / checkpoint.FILE, tuple(notes))


def _check(found: LanguageFile, loaded: Loaded, where: object, force: bool) -> list[str]:
    """Notes of what ``force`` lets pass."""
    here = _options(loaded.model)
    differ = sorted(name for name in {*here, *found.options} if here.get(name) != found.options.get(name))
    template = parts_of(loaded.model, loaded.languages[0])
    shapes = {name: tuple(value.shape) for name, value in template.items()}
    given = {name: tuple(value.shape) for name, value in found.parts.items()}
    wrong = [f"{name} {found.options.get(name)!r} (here {here.get(name)!r})" for name in differ]
    wrong += (
        [name for name in sorted({*shapes, *given}) if shapes.get(name) != given.get(name)][:20] if not wrong else []
    )
    if wrong:
        raise CheckpointError(
            "The parts are of another structure.", where=where, value=f"{found.arch}: " + ", ".join(wrong)
        )
    other = []
    if found.body != body_hash(loaded.model.named_parameters()):
        other.append("shared weights")
    if found.dictionary != dictionaries.digest(loaded.dictionary.symbols):
        other.append("dictionary")
    if other and not force:
        raise CheckpointError(
            f"The parts of {found.lang} were trained with other {' and '.join(other)}.",
            where=where,
            value=found.body,
            next_step="give the checkpoint that they fit, or --force to take them as a start for more training",
        )
    return [f"{found.lang} was trained with other {' and '.join(other)}"] if other else []


def _write(folder: Path, out: Path, path: Path, found: LanguageFile, loaded: Loaded) -> None:
    languages, labels = loaded.languages.extended([found.lang]), path.parent / LABELS_FILE
    dictionary = Path(str(_task_option(loaded.cfg, "data"))) / DICTIONARY  # where load() has found it
    weights = dict(loaded.model.state_dict())
    for name, value in found.parts.items():
        weights[name.replace(names.ANY, found.lang)] = value
    weights[CODES_KEY] = encode_languages(languages)
    if _task_option(loaded.cfg, "langs"):
        checkpoint.set_option(loaded.cfg, "langs", ",".join(languages))
    checkpoint.set_option(loaded.cfg, "companions", None)  # they lie beside the new checkpoint
    checkpoint.save(folder / checkpoint.FILE, loaded.cfg, weights, out)
    write_companions(folder, languages, dictionary, loaded.tokenizer_dir or folder / TOKENIZER)
    if labels.is_file():
        copy_over(labels, folder / LABELS_FILE)


def _task_option(cfg: Any, name: str) -> Optional[Any]:
    return cfg.task.get(name) if hasattr(cfg.task, "get") else getattr(cfg.task, name, None)
