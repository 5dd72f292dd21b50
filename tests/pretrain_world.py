"""Small data folders for the pre-training tests, and the task and trainer on them, in this process."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a busy machine is not a failure
settings.load_profile("patient")

WORDS = [f"w{number}" for number in range(60)]
FIRST = 4  # the ids below are <s> <pad> </s> <unk>
NETWORK = [
    "--encoder-layers",
    "1",
    "--encoder-embed-dim",
    "16",
    "--encoder-ffn-embed-dim",
    "32",
    "--encoder-attention-heads",
    "2",
    "--tokens-per-sample",
    "32",
    "--max-positions",
    "32",
]
RUN = [
    "--optimizer",
    "adam",
    "--lr",
    "0.001",
    "--weight-decay",
    "0.1",
    "--batch-size",
    "4",
    "--no-progress-bar",
    "--log-interval",
    "1",
    "--num-workers",
    "0",
]
TASK = ["--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm"]


def write_tokens(prefix: Path, sentences: Sequence[Sequence[int]]) -> None:
    """Write a memory-mapped file with the host's own builder; ``</s>`` is appended."""
    import torch
    from fairseq.data import indexed_dataset

    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for sentence in sentences:
        builder.add_item(torch.tensor([*sentence, 2]))
    builder.finalize(f"{prefix}.idx")


def sentences(count: int, seed: int, longest: int = 9) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(FIRST, FIRST + len(WORDS)) for _ in range(rng.randint(2, longest))] for _ in range(count)]


def write_dictionary(path: Path, words: Sequence[str] = WORDS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word} {len(words) - number}\n" for number, word in enumerate(words)), encoding="utf-8")


def data_folder(folder: Path, sizes: Mapping[str, int], valid: Optional[Mapping[str, int]] = None) -> Path:
    """dict.txt and one folder a language with ``sizes`` training sentences; ``valid`` defaults to 8 each."""
    write_dictionary(folder / "dict.txt")
    for number, (code, count) in enumerate(sizes.items()):
        write_tokens(folder / code / "train", sentences(count, number))
        held_out = 8 if valid is None else valid.get(code, 0)
        if held_out:
            write_tokens(folder / code / "valid", sentences(held_out, 100 + number))
    return folder


def configuration(data: object, save_dir: object, *flags: object, arch: str = "xlm_adpt_tiny") -> Any:
    """What ``fairseq-train`` would make of these flags."""
    import fairseq_cli.train as train
    from fairseq import options

    from fairseq_interference import compat

    compat.install()  # wraps the training command too, now that it is imported
    arguments = [str(data), *TASK, "--arch", arch, "--cpu", "--save-dir", str(save_dir), *NETWORK, *RUN]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [*arguments, *map(str, flags)])
    return train.convert_namespace_to_omegaconf(args)


def build(data: object, save_dir: object, *flags: object, arch: str = "xlm_adpt_tiny") -> tuple[Any, Any]:
    """Task and trainer, before any data is loaded."""
    import torch
    from fairseq import tasks
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer

    cfg = configuration(data, save_dir, *flags, arch=arch)
    metrics.reset()
    np.random.seed(cfg.common.seed)
    torch.manual_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    return task, Trainer(cfg, task, model, criterion)


def train_here(data: object, save_dir: object, *flags: object, arch: str = "xlm_adpt_tiny") -> None:
    """``fairseq-train`` in this process, from flags to the last checkpoint."""
    import fairseq_cli.train as train
    from fairseq import checkpoint_utils

    for name in ("best", "last_val_loss"):  # the host keeps the best score on the function
        if hasattr(checkpoint_utils.save_checkpoint, name):
            delattr(checkpoint_utils.save_checkpoint, name)
    train.main(configuration(data, save_dir, *flags, arch=arch))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint under torch's weights-only check, with argparse.Namespace as the only class."""
    import argparse

    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def snapshot(trainer: Any) -> dict[str, dict[str, Any]]:
    """Language -> clones of its weights and moments (masters where there are any)."""
    from fairseq_interference.appended_state import language_of

    optimizer = trainer.optimizer
    masters = getattr(optimizer, "fp32_params", None) or optimizer.params
    found: dict[str, Any] = {}
    for number, parameter in enumerate(masters):
        entry = {"weight": parameter.detach().clone()}
        state = optimizer.optimizer.state.get(parameter, {})
        entry.update({name: copy.deepcopy(value) for name, value in state.items()})
        found.setdefault(str(language_of(parameter)), {})[number] = entry
    return found


def moved(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Languages ("None": shared) of which a weight or a moment is not what it was."""
    import torch

    def differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return one.keys() != other.keys() or any(
            not torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in one
        )

    return {code for code in before if any(differs(before[code][n], after[code][n]) for n in before[code])}


def make_task(data: object, save_dir: object, *flags: object) -> Any:
    """The task alone, from ``--flag value`` pairs; much faster than going through the host's parser."""
    from omegaconf import OmegaConf

    from fairseq_interference.tasks.xlm_masked_lm import XlmMaskedLmConfig, XlmMaskedLmTask

    values: dict[str, Any] = {"seed": 1, "update_freq": [1], "train_subset": "train", "dataset_impl": None}
    values.update({"data": str(data), "save_dir": str(save_dir), "tokens_per_sample": 32})
    pairs = zip(flags[::2], flags[1::2])
    values.update({str(flag)[2:].replace("-", "_"): value for flag, value in pairs})
    values.pop("max_positions", None)
    if isinstance(values["update_freq"], int):
        values["update_freq"] = [values["update_freq"]]
    cfg = OmegaConf.merge(OmegaConf.structured(XlmMaskedLmConfig), values)
    XlmMaskedLmConfig.check(cfg)
    return XlmMaskedLmTask.setup_task(cfg)
