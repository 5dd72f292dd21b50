"""Start the host's commands as a user does: one process, or several ranks over gloo on one CPU machine.

``torchrun … fairseq-train --cpu`` trains independent copies without a word, so every rank is started here with
the flags that make the host use gloo (``--distributed-no-spawn`` and a loopback address with a free port).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

REPOSITORY = Path(__file__).resolve().parent.parent
USER_DIR = REPOSITORY / "fairseq_interference"


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child: this checkout first, one thread, host warnings quiet."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [env.get("PYTHONPATH")])])
    env.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"})
    env.update(extra)
    return env


def host_command(name: str) -> list[str]:
    """``fairseq-train`` and its siblings, next to the Python that runs the tests."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.exists() else [sys.executable, "-m", f"fairseq_cli.{name.split('-', 1)[1]}"]


@dataclass
class Finished:
    """A process that has ended: exit code and everything that it printed."""

    returncode: int
    log: str


def run_command(
    command: Sequence[object], *, cwd: Optional[Path] = None, timeout: float = 400, check: bool = True, **env: str
) -> Finished:
    """Run one command. With ``check`` a non-zero exit fails the test with the end of the log."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stdout[-6000:]}")
    return Finished(done.returncode, done.stdout)


def train(*args: object, check: bool = True, timeout: float = 400, cwd: Optional[Path] = None, **env: str) -> Finished:
    """The literal ``fairseq-train … --user-dir fairseq_interference --cpu`` in one process."""
    command = [*host_command("fairseq-train"), *args, "--user-dir", USER_DIR, "--cpu"]
    return run_command(command, cwd=cwd, timeout=timeout, check=check, **env)


def rank_flags(rank: int, ranks: int, port: int) -> list[str]:
    """The flags that make ``fairseq-train --cpu`` rank ``rank`` of ``ranks``."""
    return [
        *("--distributed-world-size", str(ranks), "--distributed-rank", str(rank)),
        *("--distributed-init-method", f"tcp://127.0.0.1:{port}", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]


def train_ranks(
    args: Sequence[object], *, logs: Path, ranks: int = 2, timeout: float = 400, check: bool = True, **env: str
) -> list[Finished]:
    """``fairseq-train`` on ``ranks`` processes over gloo.

    Args:
        args: data folder and flags, without ``--cpu``, ``--user-dir`` and the ``--distributed-*`` flags.
        logs: folder for ``rank0.log`` …
        timeout: seconds; a rank that is still running then is killed and the test fails.

    Returns:
        Exit code and log of every rank, rank 0 first. Rank 0 shows ``ranks`` times the batch size of one process.
    """
    logs.mkdir(parents=True, exist_ok=True)
    port = free_port()
    children: list[subprocess.Popen[bytes]] = []
    for rank in range(ranks):
        flags = [*map(str, args), "--user-dir", str(USER_DIR), "--cpu", *rank_flags(rank, ranks, port)]
        with open(logs / f"rank{rank}.log", "wb") as stream:
            command = [*host_command("fairseq-train"), *flags]
            children.append(
                subprocess.Popen(command, env=environment(**env), stdout=stream, stderr=subprocess.STDOUT)
            )
    finished = _wait(children, logs, timeout)
    if check:
        for rank, result in enumerate(finished):
            assert result.returncode == 0, f"rank {rank} ended with {result.returncode}\n{result.log[-6000:]}"
    return finished


def _wait(children: list[subprocess.Popen[bytes]], logs: Path, timeout: float) -> list[Finished]:
    """Wait for all; when one fails the others get ten seconds, since they may wait for it for ever."""
    deadline = time.monotonic() + timeout
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if any(child.poll() not in (None, 0) for child in children):
            deadline = min(deadline, time.monotonic() + 10)
        time.sleep(0.05)
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
    read = [(logs / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace") for rank in range(len(children))]
    return [Finished(child.returncode, text) for child, text in zip(children, read)]
