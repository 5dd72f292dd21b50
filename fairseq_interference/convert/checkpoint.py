"""Write a checkpoint of ours around weights from elsewhere: the folder holds all that :func:`load` looks for."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch
from fairseq import tasks, utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.options import get_training_parser, parse_args_and_arch
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_interference.convert.names import EMBED, OUTPUT
from fairseq_interference.data.companions import DICTIONARY, write_companions
from fairseq_interference.errors import UsageError
from fairseq_interference.languages import FILE_NAME as LANGUAGES
from fairseq_interference.languages import LanguageList
from fairseq_interference.models.xlm import XLMModel

logger = logging.getLogger(__name__)
PathLike = Union[str, Path]
FILE = "checkpoint_best.pt"  # the host resumes from checkpoint_last.pt, and there is no optimizer to resume with
SEED = "1"


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote.

    Attributes:
        path: the checkpoint.
        notes: what a user should know, in words.
        done_before: the same was written already, nothing was done.
    """

    path: Path
    notes: tuple[str, ...] = ()
    done_before: bool = False


def preset(arch: str) -> argparse.Namespace:
    """Options that an arch of ours sets.

    Raises:
        UsageError: not an arch of ours.
    """
    ours = sorted(name for name, kind in ARCH_MODEL_REGISTRY.items() if issubclass(kind, XLMModel))
    if arch not in ours:
        raise UsageError("Unknown arch.", where="--arch", value=arch, allowed=", ".join(ours))
    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def configuration(
    data: PathLike, arch: str, languages: Sequence[str], options: Mapping[str, Any], flags: Iterable[str] = ()
) -> Any:
    """The host's configuration of a checkpoint of the task ``xlm_masked_lm``.

    Args:
        data: folder with dict.txt and languages.txt.
        arch: registered name.
        languages: codes in the order of their ids.
        options: the model's, by name; they win over the arch's preset.
        flags: of the arch, as on the command line; they win over ``options``.
    """
    command = [str(data), "--task", "xlm_masked_lm", "--arch", arch, "--langs", ",".join(languages), "--seed", SEED]
    command += ["--allow-single-lang"] if len(languages) == 1 and not preset(arch).monolingual else []
    off = {name: value for name, value in options.items() if value is False}
    for name, value in options.items():
        if value is not False:
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    args = parse_args_and_arch(get_training_parser(), [*command, *flags])
    for name, value in off.items():  # a switch can only be turned on by its flag
        setattr(args, name, value)
    return _as_configuration(args)


def _as_configuration(args: argparse.Namespace) -> Any:
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(args)


def build(cfg: Any) -> Any:
    """The model of a configuration, drawn with its seed, in eval mode."""
    task = tasks.setup_task(cfg.task)
    utils.set_torch_seed(cfg.common.seed)
    return task.build_model(cfg.model, from_checkpoint=True).eval()


def set_option(cfg: Any, name: str, value: Any) -> None:
    """Replace an option wherever the configuration holds it: the task's, and the model's namespace of all flags."""
    for section in (cfg.task, cfg.model):
        if isinstance(section, argparse.Namespace):
            if hasattr(section, name):
                setattr(section, name, value)
        elif name in section:
            with open_dict(section):
                section[name] = value


def save(path: PathLike, cfg: Any, weights: Mapping[str, Tensor], data: PathLike) -> None:
    """Write one checkpoint without optimizer state; ``data`` is the folder that it will lie in."""
    set_option(cfg, "data", str(data))
    container = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    history = {"criterion_name": "None", "optimizer_name": "None", "lr_scheduler_state": {}, "num_updates": 0}
    state = {
        "args": None,
        "cfg": container,
        "model": dict(weights),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": None, "previous_training_time": 0.0},
        "last_optimizer_state": None,
    }
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def write(
    folder: Path,
    final: PathLike,
    arch: str,
    languages: LanguageList,
    weights: dict[str, Tensor],
    options: Mapping[str, Any],
    flags: Iterable[str] = (),
    tokenizer: Optional[Path] = None,
    may_lack: str = "",
) -> None:
    """Build ``arch``, load ``weights`` strictly, write the checkpoint and its companions into ``folder``.

    Args:
        folder: holds dict.txt already.
        final: name that the folder will get.
        weights: of a shared encoder in the host's names, also those of 2019; and of parts of ours.
        tokenizer: folder of a :class:`fairseq_interference.data.tokenizer.Tokenizer`.
        may_lack: tensors whose names begin so start fresh if ``weights`` has none of them.

    Raises:
        CheckpointError: weights that are missing, unexpected or of another shape.
    """
    languages.write(folder / LANGUAGES)
    cfg = configuration(folder, arch, languages, options, flags)
    model = build(cfg)
    if may_lack and not any(name.startswith(may_lack) for name in weights):
        fresh = {name: value for name, value in model.state_dict().items() if name.startswith(may_lack)}
        output = {OUTPUT: weights[EMBED]} if not model.args.untie_weights_roberta else {}  # the tied one is not fresh
        weights = {**weights, **fresh, **output}
    model.load_state_dict(weights)
    save(folder / FILE, cfg, model.state_dict(), final)
    for note in write_companions(folder, languages, folder / DICTIONARY, tokenizer):
        logger.warning("%s", note)
