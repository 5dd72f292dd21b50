"""Shared by all tests: filters for the host's warnings, real data, the registered plug-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import hypothesis
import pytest

# What is ignored stays so in child processes, and tests send these: a shell ignores them for jobs in the background.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# A shared machine may be slow: time says nothing about correctness. CI draws the same examples every time.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
hypothesis.settings.load_profile("tests")

REPOSITORY = Path(__file__).resolve().parent.parent
USER_DIR = REPOSITORY / "fairseq_interference"

# Warnings that the host or a library raises and that nothing of ours can avoid. One reason each.
HOST_WARNINGS = [
    # fairseq.modules scripts its activation functions at import
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning",
    # the host turns flags into its configuration with hydra's old names
    "ignore:hydra.experimental.initialize\\(\\) is no longer experimental:UserWarning",
    "ignore:hydra.experimental.compose\\(\\) is no longer experimental:UserWarning",
    r"ignore:\s*The version_base parameter is not specified:UserWarning",
    "ignore:In 'config'. Usage of deprecated keyword in package header:UserWarning",
    r"ignore:\s*'config' is validated against ConfigStore schema with the same name:UserWarning",
    r"ignore:\s*The strict flag in the compose API is deprecated:UserWarning",
    # said when Python compiles the host and a library for the first time
    "ignore:invalid escape sequence:DeprecationWarning",
    r'ignore:"is( not)?" with a literal:SyntaxWarning',
    # the host's train_step asks torch.cuda for its autocast
    r"ignore:`torch\.cuda\.amp\.autocast:FutureWarning",
]


def pytest_configure(config: pytest.Config) -> None:
    for line in HOST_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("INTERFERENCE_REAL_DATA"):
        return
    skip = pytest.mark.skip(reason="INTERFERENCE_REAL_DATA names no folder with real data")
    for item in items:
        if "real_data" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real multilingual data; the test is skipped where there is none."""
    folder = os.environ.get("INTERFERENCE_REAL_DATA")
    if not folder:
        pytest.skip("INTERFERENCE_REAL_DATA names no folder with real data")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"INTERFERENCE_REAL_DATA={folder} is not a folder")
    return path


@pytest.fixture(scope="session")
def plugin() -> object:
    """The package with compat installed and every name registered."""
    import fairseq_interference

    fairseq_interference.register()
    return fairseq_interference


@pytest.fixture(scope="session")
def user_dir() -> Path:
    """What to give to ``--user-dir``."""
    return USER_DIR


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two cores are shared by all tests; torch is only touched where a test has loaded it."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    yield


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Arguments and results of every meta gradient that is taken."""
    from fairseq_interference.optim import bilevel

    found: list[Any] = []
    original = bilevel.meta_gradient

    def spy(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        names = ("train_loss", "val_loss", "theta", "phi")
        found.append(({**dict(zip(names, args)), **kwargs}, result))
        return result

    monkeypatch.setattr(bilevel, "meta_gradient", spy)
    yield found
