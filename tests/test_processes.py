"""Trainings as children: exit codes, signals, and a forked training that is the one of the printed command."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import ddp
import pytest
import torch
from pretrain_world import data_folder, read_checkpoint

from fairseq_interference import processes

FORK = """
import sys
import fairseq_interference
from fairseq_interference import processes
fairseq_interference.register()
for end in ("SystemExit(75)", "SystemExit()", "SystemExit('words')", "ValueError('broken')", "KeyboardInterrupt()"):
    import fairseq_cli.train
    def cli_main(end=end):
        print("arguments", sys.argv[1:], flush=True)
        raise eval(end)
    fairseq_cli.train.cli_main = cli_main
    print(end, "->", processes.run([["fairseq-train", "DATA"]], fork=True)[0], flush=True)
command = ["fairseq-train", "nowhere", "--task", "xlm_masked_lm", "--arch", "xlm_joint_tiny", "--langs", "aa,bb"]
command += ["--batch-size", "4", "--cpu"]
del sys.modules["fairseq_cli.train"]
print("no data ->", processes.run([command, command], fork=True)[0])
"""


def test_a_failed_process_ends_the_others() -> None:
    assert processes.run([[sys.executable, "-c", "raise SystemExit(3)"], [sys.executable, "-c", "pass"]])[0] == 3
    assert processes.run([[sys.executable, "-c", "pass"]])[0] == 0


WORK = """
import os, signal, sys, time
from fairseq_interference import processes

def work(command):
    if command[1] == "wait":
        signal.signal(signal.SIGTERM, lambda *_: (print("told to end", flush=True), sys.exit(0)))
        print("waiting", flush=True)
        time.sleep(60)
    sys.exit(int(command[1]))

print(processes.run([["x", "0"], ["x", "4"]], fork=True, work=work)[0], flush=True)
waiting = processes.Forked(["x", "wait"], work)
time.sleep(1)
processes._end([waiting], patience=0)
print("ended with", waiting.poll())
"""


def test_a_fork_with_work_of_its_own_is_told_to_end(tmp_path: Path) -> None:
    """It may have children, which a kill would leave behind."""
    said = ddp.run_command([sys.executable, "-c", WORK], cwd=tmp_path).log
    assert said.split() == ["4", "waiting", "told", "to", "end", "ended", "with", "0"]


PEAK = """
import sys
import fairseq_interference
from fairseq_interference import processes
fairseq_interference.register()
import fairseq_cli.train
for size in (400, 1):
    fairseq_cli.train.cli_main = lambda: bytearray(b"x") * (size << 20)
    print(processes.run([["fairseq-train"]], fork=True)[1] >> 20)
"""


def test_the_peak_is_that_of_these_processes(tmp_path: Path) -> None:
    said = ddp.run_command([sys.executable, "-c", PEAK], cwd=tmp_path).log
    large, small = (int(line) for line in said.split("\n")[-3:] if line.isdigit())
    assert large >= small + 350 > 350, said


def test_a_forked_command_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    said = ddp.run_command([sys.executable, "-c", FORK], cwd=tmp_path).log
    for line in (
        "SystemExit(75) -> 75",
        "SystemExit() -> 0",
        "SystemExit('words') -> 1",
        "ValueError('broken') -> 1",
        "KeyboardInterrupt() -> 130",
        "no data -> 1",
    ):
        assert line in said, said
    assert "\nwords\n" in said and "ValueError: broken" in said and "arguments ['DATA']" in said
    last = said.split("KeyboardInterrupt() -> 130")[1]
    assert "nowhere" in last and "Traceback" not in last


LATE = """
import os, signal, sys, threading, time
import fairseq_interference
from fairseq_interference import processes
fairseq_interference.register()
import fairseq_cli.train
def cli_main():
    print("training", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(300)
fairseq_cli.train.cli_main = cli_main
try:
    with processes.leaving_when_told():
        if sys.argv[1] == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.Signals[sys.argv[1]]))
        timer.start()
        raise SystemExit(processes.run([["fairseq-train"]] * 2, fork=True)[0])
except KeyboardInterrupt:
    raise SystemExit(130)
"""


@pytest.mark.parametrize(("told", "code"), [("SIGTERM", 75), ("SIGHUP", 75), ("SIGINT", 130), ("before", 75)])
def test_who_is_told_to_stop_alone_tells_the_trainings(tmp_path: Path, told: str, code: int) -> None:
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LATE, told], cwd=ddp.REPOSITORY, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert time.monotonic() - begin < 200 and done.stdout.count("training") == (0 if told == "before" else 2)


@pytest.mark.slow
def test_a_stopped_launch_goes_on_to_what_the_printed_command_gives(tmp_path: Path) -> None:
    data = data_folder(tmp_path / "data", {"aa": 150, "bb": 60})
    flags = ["log-interval=1", "max-update=40", "max-epoch=100", "save-interval-updates=0"]
    command = [sys.executable, "-m", "fairseq_interference.launch", "--config", "run/configs/tiny/adpt.yaml"]
    command += ["--data", str(data), "--save-dir", str(tmp_path / "stopped"), "--set", "langs=aa,bb", *flags]
    with subprocess.Popen(
        command,
        cwd=ddp.REPOSITORY,
        env=ddp.environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        said = [printed]
        for line in process.stdout:
            said.append(line)
            if "num_updates=3," in line:
                process.send_signal(signal.SIGTERM)
                break
        said.append(process.stdout.read())
        assert process.wait(60) == 75, "".join(said)
    updates = read_checkpoint(tmp_path / "stopped" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert 3 <= updates < 40
    ddp.run_command(command, cwd=ddp.REPOSITORY, CUDA_VISIBLE_DEVICES="")
    words = shlex.split(printed.removeprefix("+ "))
    assert words[0] == "fairseq-train"
    words[words.index("--save-dir") + 1] = str(tmp_path / "straight")
    ddp.run_command([*ddp.host_command("fairseq-train"), *words[1:]], cwd=ddp.REPOSITORY, CUDA_VISIBLE_DEVICES="")
    pair = [read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("straight", "stopped")]
    assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])
