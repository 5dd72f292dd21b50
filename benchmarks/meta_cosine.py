"""How near each setting's meta gradient is to that of ``paper`` + ``central``, on a model that is being trained.

    python benchmarks/meta_cosine.py --checkpoint FILE --data DIR --langs xa,xb [--batches 20] [--set KEY=VALUE]

Every setting starts from the checkpoint (weights, moments, rate), takes the same training batches and dropout,
and is compared on each with the reference: mean cosine and median relative error of the gradient for phi.
``another validation batch`` is the reference itself with other held-out blocks: what a single batch can say at all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import sys
from pathlib import Path
from typing import Any

import fairseq  # noqa: F401  (the registries fill when the host is there)
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairseq_interference
from fairseq_interference import launch
from fairseq_interference.optim import bilevel
from fairseq_interference.optim.cosines import cosine

CONFIG = Path(__file__).resolve().parents[1] / "run/configs/study/meta.yaml"
REFERENCE = "paper + central"
ANOTHER = "another validation batch"
CENTRAL = ["meta-order=paper", "meta-estimator=central"]
SETTINGS: dict[str, list[str]] = {
    REFERENCE: CENTRAL,
    ANOTHER: CENTRAL,
    "one_sided (default)": [],
    "exact": ["meta-estimator=exact"],
    "half validation": ["meta-val-batch-fraction=0.5"],
    "half cross": ["meta-cross-batch-fraction=0.5"],
    "half both": ["meta-val-batch-fraction=0.5", "meta-cross-batch-fraction=0.5"],
    "quarter both": ["meta-val-batch-fraction=0.25", "meta-cross-batch-fraction=0.25"],
    "direct term alone": ["meta-terms=direct"],
    "inner rule sgd, whole rate": ["meta-inner-rule=sgd", "meta-inner-lr=x1"],
    "inner rule adam, whole rate": ["meta-inner-lr=x1"],
}


class Gradients:
    """Keeps the meta gradients that the trainers take, for the cosines."""

    def __init__(self) -> None:
        self.last: Any = None
        original = bilevel.meta_gradient

        def spy(*args: Any, **kwargs: Any) -> Any:
            self.last = original(*args, **kwargs)
            return self.last

        bilevel.meta_gradient = spy


def make_trainer(settings: list[str], args: argparse.Namespace) -> Any:
    """Task, trainer and training batches of a setting, the checkpoint loaded."""
    import fairseq_cli.train as train
    from fairseq import options, tasks
    from fairseq.trainer import Trainer

    always = [f"langs={args.langs}", "arch=xlm_meta_adpt", "adapter-dim=32", "optimizer=meta_adapter", *args.set]
    config = launch.override(launch.read_config(CONFIG), [*always, *settings, f"data={args.data}", "save-dir=unused"])
    command = launch.train_command(config, gpus=0)[1:]
    parser = options.get_training_parser()
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, command))
    task = tasks.setup_task(cfg.task)
    task._recorded = True  # nothing is written
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    batches = trainer.get_train_iterator(1).next_epoch_itr(shuffle=True)
    return task, trainer, list(itertools.islice(batches, args.batches))


def gradients_of(name: str, caught: Gradients, args: argparse.Namespace) -> list[list[torch.Tensor]]:
    """The meta gradient of each batch, from the checkpoint."""
    task, trainer, batches = make_trainer(SETTINGS[name], args)
    task.meta.validation.seed += name == ANOTHER
    found = []
    for number, batch in enumerate(batches):
        trainer.load_checkpoint(str(args.checkpoint))
        trainer.set_num_updates(trainer.get_num_updates() + number)  # other dropout, other held-out blocks
        trainer.train_step([batch])
        found.append(caught.last.total)
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--langs", required=True)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    fairseq_interference.register()
    torch.set_num_threads(1)
    caught, report = Gradients(), {}
    right = gradients_of(REFERENCE, caught, args)
    for name in list(SETTINGS)[1:]:
        found = gradients_of(name, caught, args)
        cosines = [cosine(x, y) for x, y in zip(found, right)]
        gaps = [bilevel.norm(torch._foreach_sub(x, y)) / bilevel.norm(y) for x, y in zip(found, right)]
        error = statistics.median(gaps)
        report[name] = {"cosine": statistics.fmean(cosines), "sd": statistics.stdev(cosines), "error": error}
        print(
            f"  {name:<28} cosine {report[name]['cosine']:7.4f} ± {report[name]['sd']:.4f}   error {error:.2e}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps({"settings": {k: str(v) for k, v in vars(args).items()}, **report}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
