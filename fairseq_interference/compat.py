"""The one place that wraps the host. Every wrap is a row of :data:`WRAPS` or stands in :func:`install` with its reason.

The logic behind the wraps lives in ``checkpoint_files``, ``host_checks`` and ``stopping``. A wrap whose target
is missing in the installed host is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import os
import signal
import sys
from types import ModuleType, TracebackType
from typing import Any, Callable, Optional

from fairseq_interference import checkpoint_files, host_checks, host_optimizers, validation_log
from fairseq_interference.errors import REQUEUE, InterferenceError, UsageError
from fairseq_interference.stopping import STOPPING, any_rank, end_readers, save_and_leave

Function = Callable[..., Any]


def _load_checkpoint_to_cpu(original: Function) -> Function:
    """torch >= 2.6 refuses foreign classes with a page of advice to switch the check off: name the class instead.

    An older torch runs whatever a pickle says, so the names in the file are checked before it is opened.
    """

    def load_checkpoint_to_cpu(path: Any, *args: Any, **kwargs: Any) -> Any:
        checkpoint_files.allow_classes([checkpoint_files.ALLOWED_CLASS, *checkpoint_files.allowed_by_user()])
        if not checkpoint_files.checks_by_default() and os.path.isfile(path):
            checkpoint_files.refuse_foreign_classes(path)
        try:
            return original(path, *args, **kwargs)
        except checkpoint_files.READ_ERRORS as error:
            named = checkpoint_files.explain(path, error)
            if named is None:
                raise
            raise named from error

    return load_checkpoint_to_cpu


def _load_checkpoint(original: Function) -> Function:
    """An unreadable checkpoint_last.pt is set aside for the newest readable one; then signals are watched.

    It is the host's last call before the loop, so the best-checkpoint metric is checked here too, and the task begins
    its validation.jsonl.
    """

    def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        if cfg.restore_file == "checkpoint_last.pt" and not trainer.checkpoint_suffix:
            _replace_unreadable(os.path.join(cfg.save_dir, cfg.restore_file), trainer)
        loaded = original(cfg, trainer, **kwargs)
        host_checks.check_best_metric(trainer.cfg, trainer)
        validation_log.begin_log(trainer)
        STOPPING.watch()
        STOPPING.training = True
        return loaded

    return load_checkpoint


def _replace_unreadable(path: str, trainer: Any) -> None:
    failure: Optional[InterferenceError] = None
    if trainer.data_parallel_rank == 0:
        try:
            checkpoint_files.replace_unreadable(path)
        except InterferenceError as error:
            failure = error
    if any_rank(trainer, failure is not None):
        raise failure or InterferenceError("Rank 0 cannot read the last checkpoint.", where=path)


def _convert_namespace_to_omegaconf(original: Function) -> Function:
    """`--bf16` selects the TPU path, which dies without torch_xla; flags that cannot run are refused here."""

    def convert_namespace_to_omegaconf(args: Any) -> Any:
        host_checks.check_arguments(args)
        if getattr(args, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
            args.tpu = False
        STOPPING.watch()
        return original(args)

    return convert_namespace_to_omegaconf


def _validate_and_save(original: Function) -> Function:
    """SIGTERM and SIGUSR1 end the loop after the update, with a checkpoint and exit code 75.

    ``--gap-every`` validates here, behind the host's own validation and saving, which know nothing of it.
    """

    validate: Any = getattr(original, "__globals__", {}).get("validate")

    def validate_and_save(cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **kwargs: Any) -> Any:
        if any_rank(trainer, STOPPING.requested is not None):
            save_and_leave(cfg, trainer, task, epoch_itr)
        losses, should_stop = original(cfg, trainer, task, epoch_itr, *args, **kwargs)
        validated = losses[0] is not None or validation_log.validate_between(
            validate, cfg, trainer, task, epoch_itr, cfg.dataset.valid_subset.split(",")
        )  # equal on all ranks; it may have taken long
        if validated and not should_stop and any_rank(trainer, STOPPING.requested is not None):
            save_and_leave(cfg, trainer, task, epoch_itr)
        return losses, should_stop

    return validate_and_save


def _broadcast_object(original: Function) -> Function:
    """Rank 0 sends the checkpoint it has loaded; torch >= 2.6 refuses its configuration and the host's placeholders.

    The configuration travels as plain containers, and the placeholder's class is allowed during the transfer.
    """

    def broadcast_object(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, dict) and type(obj.get("cfg")).__module__.startswith("omegaconf"):
            from omegaconf import OmegaConf

            obj = {**obj, "cfg": OmegaConf.to_container(obj["cfg"], resolve=True, enum_to_str=True)}
        with _placeholders_allowed():
            return original(obj, *args, **kwargs)

    return broadcast_object


def _placeholders_allowed() -> Any:
    import torch
    from fairseq.distributed import utils

    safe_globals = getattr(torch.serialization, "safe_globals", None)
    placeholder = getattr(utils, "_TensorPlaceholder", None)
    if safe_globals is None or placeholder is None:
        return contextlib.nullcontext()
    return safe_globals([placeholder])


def _import_user_module(original: Function) -> Function:
    """The host names one of the two folders only when the package is installed and --user-dir is another copy."""

    def import_user_module(args: Any) -> Any:
        given = os.path.abspath(getattr(args, "user_dir", None) or "")
        loaded = sys.modules.get(os.path.basename(given))
        folders = [os.path.realpath(folder) for folder in getattr(loaded, "__path__", [])]
        if loaded is not None and folders and os.path.realpath(given) not in folders and os.path.isdir(given):
            raise UsageError(
                "--user-dir names one copy of the plug-in, and another copy is loaded already.",
                where="--user-dir",
                value=given,
                allowed=folders[0],
                next_step="fairseq-interference where prints the folder to give",
            )
        return original(args)

    return import_user_module


# module, attribute, wrap; the reason is the wrap's docstring
WRAPS: list[tuple[str, str, Callable[[Function], Function]]] = [
    ("fairseq.checkpoint_utils", "load_checkpoint_to_cpu", _load_checkpoint_to_cpu),
    ("fairseq.checkpoint_utils", "load_checkpoint", _load_checkpoint),
    ("fairseq.distributed.utils", "broadcast_object", _broadcast_object),
    ("fairseq.utils", "import_user_module", _import_user_module),
    *host_optimizers.WRAPS,
]
# globals of the training command, looked up after --user-dir was imported
TRAIN_WRAPS: list[tuple[str, Callable[[Function], Function]]] = [
    ("convert_namespace_to_omegaconf", _convert_namespace_to_omegaconf),
    ("validate_and_save", _validate_and_save),
]


def _wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part, None)
    name = name.split(".")[-1]
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "interference_original"):
        return
    wrapped = functools.wraps(original)(make(original))
    wrapped.interference_original = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def _train_modules() -> list[ModuleType]:
    """``fairseq_cli.train``, also when it runs as ``python -m fairseq_cli.train`` (then it is ``__main__``)."""
    found = [sys.modules.get("fairseq_cli.train"), sys.modules.get("__main__")]
    return [module for module in found if module is not None and hasattr(module, "validate_and_save")]


def install() -> None:
    """Allow what fairseq checkpoints hold, and wrap the host. Safe to call again."""
    # torch >= 2.6: every resume fails without it; the weights-only check stays on
    checkpoint_files.allow_classes([checkpoint_files.ALLOWED_CLASS])
    # the host leaves threads that read ahead: Python aborts the process when one is inside torch at its end
    atexit.unregister(end_readers)
    atexit.register(end_readers)
    for module, name, make in WRAPS:
        try:
            _wrap(importlib.import_module(module), name, make)
        except ModuleNotFoundError:
            continue
    for train in _train_modules():
        for name, make in TRAIN_WRAPS:
            _wrap(train, name, make)
        # the host's commands print a traceback for a user's mistake
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = excepthook


def excepthook(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Print an :class:`InterferenceError` without traceback and exit with its code; others as usual."""
    ours = _ours(error)
    if ours is not None:
        command = os.path.basename(sys.argv[0]) or "fairseq-train"
        print(f"{command}: {ours}", file=sys.stderr, flush=True)
        raise SystemExit(ours.exit_code)
    if getattr(error, "exit_code", None) == REQUEUE and type(error).__name__ == "ProcessExitedException":
        print("all ranks were told to stop and have saved", file=sys.stderr, flush=True)
        raise SystemExit(REQUEUE)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # the shell sees 130
    sys.__excepthook__(kind, error, trace)


def _ours(error: BaseException) -> Optional[InterferenceError]:
    """The error itself, or the one that the host hid behind a bare ``Exception("Cannot load model parameters …")``."""
    cause: Optional[BaseException] = error
    while cause is not None and type(cause) is Exception:
        cause = cause.__cause__ or cause.__context__
    return cause if isinstance(cause, InterferenceError) else None


def keep_freed_memory() -> None:
    """Let glibc keep large blocks that are freed, for the next update: otherwise every update faults its pages in anew.

    Measured on a CPU: 4 to 5 % of an update with a meta step, 1 % of a plain one. Nothing happens elsewhere
    than on glibc, or if a variable MALLOC_… is set.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        most = 2**31 - 1
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(option, most)
