"""Training commands side by side: a signal goes to all of them, and the failure of one ends the others."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NoReturn, Optional, Protocol

from fairseq_interference.errors import FAILED, REQUEUE

TOLD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # requests to stop
TICK = 0.05  # seconds between two looks at a process


class Process(Protocol):
    """What is needed of a child process; :class:`subprocess.Popen` has it."""

    def poll(self) -> Optional[int]: ...
    def wait(self, timeout: Optional[float] = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


Work = Callable[[list[str]], object]


class Forked:
    """``fairseq-train`` as a copy of this process, which has imported the host already: that is most of a start.

    Not for accelerators, which do not survive a fork once they were asked anything.

    Args:
        command: the command as it would be typed; the first word is not looked at.
        work: what is done with the command instead of training. It may have children of its own, and is therefore told
            to end, never killed.
    """

    def __init__(self, command: Sequence[str], work: Optional[Work] = None) -> None:
        self.command, self.work = list(command), work
        self.returncode: Optional[int] = None
        self.peak = 0  # resident bytes, known at its end
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(self.command, work or _train)

    def poll(self) -> Optional[int]:
        if self.returncode is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.peak = _bytes(used.ru_maxrss)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self.command, timeout or 0.0)
            time.sleep(TICK)
        return code

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL if self.work is None else signal.SIGTERM)


def _bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else maxrss * 1024


def _become(command: list[str], work: Work) -> NoReturn:
    """Do the work with ``command`` as the arguments of this process, then end it as Python would."""
    code = FAILED
    try:
        for number in TOLD:  # the launcher's handlers are not the training's
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        code = _exit_code_of(command, work)
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _train(command: list[str]) -> None:
    from fairseq_cli.train import cli_main

    from fairseq_interference import register

    register()  # wraps the command, which is new here
    cli_main()


def _exit_code_of(command: list[str], work: Work) -> int:
    sys.argv = command
    logging.getLogger().handlers.clear()  # the host sets its own log up as its command is imported
    try:
        try:
            work(command)
        except Exception:
            sys.excepthook(*sys.exc_info())
            return FAILED
        except KeyboardInterrupt:
            sys.excepthook(*sys.exc_info())
            return 128 + signal.SIGINT
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return FAILED
    return 0


def run(commands: Sequence[Sequence[str]], fork: bool = False, work: Optional[Work] = None) -> tuple[int, int]:
    """Run commands side by side until all have ended well or one has failed.

    Args:
        commands: one per process.
        fork: they are all ``fairseq-train``; start them as copies of this process.
        work: with ``fork``: what the copies do instead.

    Returns:
        The first exit code that is not 0, else 0; and the most memory that one process has held, in bytes
        (if they are not forks: one of all that this process has ever started).
    """
    start: Any = functools.partial(Forked, work=work) if fork else subprocess.Popen
    processes: list[Process] = []
    with _forwarding(processes) as told:
        for command in commands:
            processes.append(start(list(command)))
            for number in told:  # it came before this process could get it
                processes[-1].send_signal(number)
        while True:
            codes = [process.poll() for process in processes]
            failed = next((code for code in codes if code), None)
            if failed is not None:
                _end(processes)
                if failed == -signal.SIGTERM and told:
                    failed = REQUEUE  # told to stop before it could listen
                return failed if failed > 0 else 128 - failed, _peak(processes)
            if all(code == 0 for code in codes):
                return 0, _peak(processes)
            time.sleep(TICK)


def _peak(processes: Sequence[Process]) -> int:
    if all(isinstance(process, Forked) for process in processes):
        return max(process.peak for process in processes if isinstance(process, Forked))
    return _bytes(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


@contextlib.contextmanager
def _handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Have the requests to stop handled; one that is ignored (``nohup``) stays so."""
    asked = [number for number in TOLD if signal.getsignal(number) != signal.SIG_IGN]
    old = {number: signal.signal(number, handler) for number in asked}
    try:
        yield
    finally:
        for number, former in old.items():
            signal.signal(number, former)


def leaving_when_told() -> contextlib.AbstractContextManager[None]:
    """Where nothing is to be saved, a request to stop ends this process with 75: run it again."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(REQUEUE)

    return _handling(leave)


@contextlib.contextmanager
def _forwarding(processes: Sequence[Process]) -> Iterator[list[int]]:
    """Pass requests to stop on; yields what was passed on so far. The end of the terminal is such a request."""
    told: list[int] = []

    def forward(number: int, frame: Any) -> None:
        told.append(signal.SIGTERM if number == signal.SIGHUP else number)
        _send(processes, told[-1])

    with _handling(forward):
        try:
            yield told
        except KeyboardInterrupt:
            _send(processes, signal.SIGINT)  # unless it came from the terminal they do not know
            _end(processes)
            raise


def _send(processes: Sequence[Process], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _end(processes: Sequence[Process], patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()) if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
