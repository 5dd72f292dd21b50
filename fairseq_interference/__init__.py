"""fairseq-interference: measure and treat interference in multilingual language models.

The package is also the ``--user-dir`` of fairseq. The host imports it with fairseq already loaded, and
everything registers at once. In programs that score files or prepare data no host is loaded, so importing
the package stays cheap; :func:`register` and :func:`load` bring the host in when it is needed.
"""

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

if __name__ != "fairseq_interference":  # the host names a user-dir after its folder, and would import us twice
    raise ImportError(
        f"--user-dir must end in fairseq_interference; this is {__path__[0]}. "
        "`fairseq-interference where` prints the folder of the installed copy."
    )

__version__ = "0.1.0"

_REGISTRIES = ("modules", "criterions", "optim", "models", "tasks")


def register() -> None:
    """Import the host and every module of ours that registers with it. Safe to call again."""
    importlib.import_module("fairseq_interference.compat").install()
    for registry in _REGISTRIES:
        package = importlib.import_module(f"fairseq_interference.{registry}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def load(path: str, **overrides: Any) -> "Loaded":
    """Load a checkpoint of ours (or of the host) in a fresh Python.

    Args:
        path: checkpoint file; dictionary, tokenizer and languages are found beside it.
        overrides: values that replace what the checkpoint's configuration says.

    Returns:
        :class:`fairseq_interference.loading.Loaded`: model in eval mode, task, configuration, languages,
        tokenizer folder.
    """
    register()
    from fairseq_interference.loading import load as load_checkpoint

    return load_checkpoint(path, **overrides)


if "fairseq" in sys.modules:
    register()
