"""The host's traps: safe loading, resuming, half precision, signals, damaged checkpoints, refusals at start."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import ddp
import pytest
import torch

from fairseq_interference import checkpoint_files, compat, host_checks, host_optimizers
from fairseq_interference.errors import CheckpointError, HostError, UnsafeCheckpointError, UsageError

MODEL = [
    *("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "roberta_base", "--encoder-layers", 1),
    *("--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--encoder-attention-heads", 2),
    *("--tokens-per-sample", 32, "--batch-size", 8, "--num-workers", 0, "--seed", 1),
    *("--optimizer", "adam", "--lr", 1e-3, "--log-format", "simple", "--log-interval", 1),
]


class Command:
    """Runs a command when unpickled: what a malicious checkpoint does."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


def host_state(**more):
    """The least that the host accepts as a checkpoint of a current version."""
    state = {
        "args": None,
        "cfg": {"task": {"_name": "masked_lm", "data": "gone"}, "model": argparse.Namespace(arch="roberta")},
        "model": {"weight": torch.arange(4.0)},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 7}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": {0: {"step": 7, "exp_avg": torch.zeros(4)}}, "param_groups": []},
    }
    return {**state, **more}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A binarised corpus of 240 lines for the host's own masked_lm."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join("abcdefgh"[(i * 3 + j * j) % 8] for j in range(4 + i % 9)) for i in range(240)]
    for split, part in (("train", lines), ("valid", lines[:40])):
        (folder / f"{split}.txt").write_text("\n".join(part) + "\n")
    ddp.run_command(
        [
            *ddp.host_command("fairseq-preprocess"),
            *("--only-source", "--workers", 1, "--destdir", folder / "bin"),
            *("--trainpref", folder / "train.txt", "--validpref", folder / "valid.txt"),
        ]
    )
    return folder / "bin"


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """Save folder after the literal ``fairseq-train … --bf16 --cpu`` of three updates."""
    folder = tmp_path_factory.mktemp("bf16")
    ddp.train(corpus, *MODEL, "--bf16", "--max-update", 3, "--save-dir", folder, "--keep-best-checkpoints", 1)
    return folder


@pytest.fixture(scope="module")
def loader(plugin):
    from fairseq import checkpoint_utils

    return checkpoint_utils.load_checkpoint_to_cpu


# --- loading -----------------------------------------------------------------------------------------------------


def test_namespace_is_all_that_is_allowed(plugin):
    """Allowing more classes weakens the check for every program that imports the plug-in."""
    code = (
        "import fairseq, torch; before = set(torch.serialization.get_safe_globals());"
        "import fairseq_interference; after = set(torch.serialization.get_safe_globals());"
        "print('ADDED', sorted(getattr(x[0] if isinstance(x, tuple) else x, '__qualname__') for x in after - before))"
    )
    out = ddp.run_command([sys.executable, "-c", code]).log
    assert "ADDED ['Namespace']" in out


def test_current_checkpoint_loads_with_the_check_on(loader, tmp_path):
    torch.save(host_state(), tmp_path / "c.pt")
    state = loader(str(tmp_path / "c.pt"))
    assert torch.equal(state["model"]["weight"], torch.arange(4.0))
    assert torch.load(tmp_path / "c.pt", weights_only=True)["cfg"]["model"].arch == "roberta"


@pytest.mark.parametrize("zipped", [True, False])
def test_old_namespace_checkpoint_loads(loader, tmp_path, zipped):
    """XLM-R and its age: no cfg, everything in an argparse.Namespace, also in the format before torch 1.6."""
    args = argparse.Namespace(
        arch="roberta_large", task="multilingual_masked_lm", criterion="masked_lm", data="/old", lr=[0.1], min_lr=1e-9
    )
    state = {**host_state(args=args), "cfg": None}
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=zipped)
    loaded = loader(str(tmp_path / "old.pt"))
    assert loaded["args"].arch == "roberta_large" and loaded["cfg"].task.data == "/old"


@pytest.mark.parametrize("zipped", [True, False])
def test_command_in_a_checkpoint_does_not_run(loader, tmp_path, zipped):
    proof = tmp_path / "ran"
    bad = tmp_path / "bad.pt"
    torch.save(host_state(extra=Command(f"touch {proof}")), bad, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnsafeCheckpointError) as caught:
        loader(str(bad))
    assert not proof.exists()
    text = str(caught.value)
    assert "posix.system" in text and str(bad) in text and checkpoint_files.ALLOW_VARIABLE in text


def test_command_would_have_run_without_the_check(tmp_path):
    """The test above proves something only if the pickle is armed."""
    proof = tmp_path / "ran"
    torch.save(Command(f"touch {proof}"), tmp_path / "bad.pt")
    torch.load(tmp_path / "bad.pt", weights_only=False)
    assert proof.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4 in the checkpoint:UserWarning")
def test_plain_pickle_with_a_computed_name_is_refused(loader, tmp_path):
    """Protocol 4 looks names up on its stack; nothing that torch writes does."""
    proof = tmp_path / "ran"
    (tmp_path / "p.pt").write_bytes(pickle.dumps(Command(f"touch {proof}"), protocol=4))
    assert checkpoint_files.foreign_classes(tmp_path / "p.pt") == ["posix.system"]
    with pytest.raises(CheckpointError):
        loader(str(tmp_path / "p.pt"))
    assert not proof.exists()


def test_user_can_vouch_for_a_class(loader, tmp_path, monkeypatch):
    import fractions

    torch.save(host_state(extra=fractions.Fraction(1, 3)), tmp_path / "f.pt")
    with pytest.raises(UnsafeCheckpointError, match=r"fractions\.Fraction"):
        loader(str(tmp_path / "f.pt"))
    monkeypatch.setenv(checkpoint_files.ALLOW_VARIABLE, "fractions.Fraction")
    saved = list(torch.serialization.get_safe_globals())
    try:
        assert loader(str(tmp_path / "f.pt"))["extra"] == fractions.Fraction(1, 3)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(saved)


def test_names_are_checked_before_opening_on_an_old_torch(loader, tmp_path, monkeypatch):
    """torch < 2.6 runs what a pickle says: the scan must refuse before the file is loaded."""
    monkeypatch.setattr(checkpoint_files, "checks_by_default", lambda: False)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("the file was opened"))
    torch.save(host_state(extra=Command("true")), tmp_path / "bad.pt")
    with pytest.raises(UnsafeCheckpointError):
        loader(str(tmp_path / "bad.pt"))


@pytest.mark.parametrize("zipped", [True, False])
def test_scan_accepts_what_torch_writes(tmp_path, zipped):
    kinds = (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
    values = [torch.zeros(2, dtype=kind) for kind in kinds]
    state = host_state(extra=[*values, torch.nn.Parameter(torch.ones(1)), torch.Size([1]), {1, 2}, torch.float32])
    torch.save(state, tmp_path / "t.pt", _use_new_zipfile_serialization=zipped)
    assert checkpoint_files.foreign_classes(tmp_path / "t.pt") == []


@pytest.mark.parametrize("size", [0, 2000])
def test_damaged_checkpoint_is_a_named_error(loader, tmp_path, size):
    path = tmp_path / "cut.pt"
    torch.save(host_state(big=torch.zeros(5000)), path)
    os.truncate(path, size)
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        loader(str(path))


# --- an unreadable last checkpoint (C1) --------------------------------------------------------------------------


def save(path, updates):
    history = [{"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": updates}]
    torch.save(host_state(optimizer_history=history, pad=torch.zeros(9000)), path)


@pytest.mark.parametrize("size", [0, 20_000])
def test_newest_readable_replaces_the_last(tmp_path, caplog, size):
    save(tmp_path / "checkpoint_1_9.pt", 9)
    save(tmp_path / "checkpoint_best.pt", 4)  # younger file, fewer updates
    save(tmp_path / "checkpoint_last.pt", 12)
    os.truncate(tmp_path / "checkpoint_last.pt", size)
    with caplog.at_level("WARNING"):
        assert checkpoint_files.replace_unreadable(tmp_path / "checkpoint_last.pt")
    assert checkpoint_files.updates_of(tmp_path / "checkpoint_last.pt") == 9
    assert (tmp_path / "checkpoint_last.pt.unreadable").stat().st_size == size
    assert "checkpoint_1_9.pt" in caplog.text and "cannot be read" in caplog.text
    assert not checkpoint_files.replace_unreadable(tmp_path / "checkpoint_last.pt")


def test_one_flipped_byte_counts_as_unreadable(tmp_path):
    save(tmp_path / "checkpoint_last.pt", 12)
    with open(tmp_path / "checkpoint_last.pt", "r+b") as stream:
        stream.seek(20_000)
        stream.write(b"\x55\xaa\x55")
    assert not checkpoint_files.is_readable(tmp_path / "checkpoint_last.pt")


@pytest.mark.parametrize("text", ["version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "# words\n"])
def test_text_is_no_checkpoint(tmp_path, text):
    """Torch would advise to switch its check off."""
    last = tmp_path / "checkpoint_last.pt"
    last.write_text(text)
    with pytest.raises(CheckpointError, match="no other readable"):
        checkpoint_files.replace_unreadable(last)
    save(tmp_path / "checkpoint_1_9.pt", 9)
    assert checkpoint_files.replace_unreadable(last) and checkpoint_files.updates_of(last) == 9


def test_nothing_readable_is_an_error_and_changes_nothing(tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"")
    for _ in range(2):  # the second start must not begin anew either
        with pytest.raises(CheckpointError, match="no other readable"):
            checkpoint_files.replace_unreadable(tmp_path / "checkpoint_last.pt")
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_unsafe_checkpoint_is_not_called_unreadable(tmp_path):
    torch.save(host_state(extra=Command("true")), tmp_path / "checkpoint_last.pt")
    assert checkpoint_files.is_readable(tmp_path / "checkpoint_last.pt")


# --- through the real command ------------------------------------------------------------------------------------


def updates(log):
    return [int(line.split("num_updates ")[1].split()[0]) for line in log.splitlines() if "num_updates " in line]


def test_bf16_trains_on_a_cpu_and_every_file_is_plain(trained):
    names = sorted(path.name for path in trained.glob("*.pt"))
    assert "checkpoint_last.pt" in names and len(names) >= 3
    for name in names:
        assert checkpoint_files.foreign_classes(trained / name) == []
        assert torch.load(trained / name, weights_only=True)["optimizer_history"][-1]["num_updates"] == 3


def test_bf16_resumes(corpus, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    done = ddp.train(corpus, *MODEL, "--bf16", "--max-update", 5, "--save-dir", tmp_path / "run")
    assert "(epoch 1 @ 3 updates)" in done.log and max(updates(done.log)) == 5


@pytest.mark.slow
def test_damaged_last_checkpoint_is_replaced_in_training(corpus, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    os.truncate(tmp_path / "run" / "checkpoint_last.pt", 20_000)
    done = ddp.train(corpus, *MODEL, "--bf16", "--max-update", 4, "--save-dir", tmp_path / "run")
    assert "cannot be read: kept as checkpoint_last.pt.unreadable" in done.log
    assert "@ 3 updates" in done.log and max(updates(done.log)) == 4


def test_unknown_metric_is_refused_before_training(corpus, tmp_path):
    done = ddp.train(
        corpus, *MODEL, "--max-update", 3, "--save-dir", tmp_path, "--best-checkpoint-metric", "f1", check=False
    )
    assert done.returncode == 2
    assert "No such validation metric." in done.log and "loss, ppl" in done.log
    assert "Traceback" not in done.log and not updates(done.log)


@pytest.mark.slow
def test_known_metric_leaves_the_run_as_it_is(corpus, tmp_path):
    """The check runs validation batches; weights must be those of a run without it."""
    for name, metric in (("a", "loss"), ("b", "ppl")):
        ddp.train(corpus, *MODEL, "--max-update", 3, "--save-dir", tmp_path / name, "--best-checkpoint-metric", metric)
    first, second = (torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)["model"] for name in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_fp16_without_cuda_is_one_line(corpus, tmp_path):
    done = ddp.train(corpus, *MODEL, "--fp16", "--max-update", 1, "--save-dir", tmp_path, check=False)
    ours = [line for line in done.log.splitlines() if line.startswith("fairseq-train: ")]
    assert done.returncode == 2 and len(ours) == 1 and "--bf16" in ours[0] and "Traceback" not in done.log


def saved_at(log):
    """The update after which a signal was obeyed."""
    return int(log.split("saving after update ")[1].split()[0])


@pytest.fixture
def start(corpus):
    """Start a training run that ends only when told to; whatever still runs is killed after the test."""
    children = []

    def begin(folder, log, *more):
        command = [*ddp.host_command("fairseq-train"), corpus, *MODEL, "--save-dir", folder, "--user-dir", ddp.USER_DIR]
        command += ["--cpu", "--max-update", 100_000, "--no-epoch-checkpoints", "--disable-validation", *more]
        with open(log, "wb") as stream:
            child = subprocess.Popen(
                [str(part) for part in command], env=ddp.environment(), stdout=stream, stderr=subprocess.STDOUT
            )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()


def wait_for_update(children, logs):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and all(child.poll() is None for child in children):
        if all("num_updates" in log.read_text(errors="replace") for log in logs):
            return
        time.sleep(0.05)
    pytest.fail("\n".join(log.read_text(errors="replace")[-3000:] for log in logs))


def finish(children):
    return [child.wait(timeout=120) for child in children]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_signal_finishes_the_update_and_saves(start, tmp_path, number):
    log = tmp_path / "log"
    child = start(tmp_path / "run", log)
    wait_for_update([child], [log])
    child.send_signal(number)
    assert finish([child]) == [75]
    text = log.read_text()
    assert signal.Signals(number).name in text and "Traceback" not in text
    assert checkpoint_files.updates_of(tmp_path / "run" / "checkpoint_last.pt") == saved_at(text)


READ_AHEAD = """
import sys, torch
from fairseq_interference import compat
compat.install()
from fairseq.data.iterators import BufferedIterator

class Source:
    def __len__(self): return 10**6
    def __iter__(self):
        while True:
            yield torch.rand(1000, 1000).sort().values.sum()

next(BufferedIterator(5, Source()))
sys.exit(75)
"""


def test_the_exit_code_survives_a_thread_that_reads_ahead():
    """Python aborted such a process ("terminate called without an active exception") now and then."""
    done = subprocess.run([sys.executable, "-c", READ_AHEAD], env=ddp.environment(), capture_output=True, text=True)
    assert done.returncode == 75, done.stderr


@pytest.mark.slow
def test_signal_resume_equals_the_straight_run(start, corpus, tmp_path):
    log = tmp_path / "log"
    child = start(tmp_path / "a", log)
    wait_for_update([child], [log])
    child.terminate()
    assert finish([child]) == [75]
    reached = saved_at(log.read_text()) + 4
    more = ["--disable-validation", "--no-epoch-checkpoints", "--max-update", reached]
    for name in "ab":
        ddp.train(corpus, *MODEL, *more, "--save-dir", tmp_path / name)
    first, second = (torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)["model"] for name in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_signal_to_one_rank_stops_both(start, tmp_path):
    port = ddp.free_port()
    logs = [tmp_path / "0", tmp_path / "1"]
    children = [start(tmp_path / "run", logs[rank], *ddp.rank_flags(rank, 2, port)) for rank in range(2)]
    wait_for_update(children, logs[:1])
    children[1].send_signal(signal.SIGUSR1)
    codes = finish(children)
    text = logs[0].read_text()
    assert codes == [75, 75], text
    assert "another rank was told to stop" in text
    assert checkpoint_files.updates_of(tmp_path / "run" / "checkpoint_last.pt") == saved_at(text)


@pytest.mark.slow
def test_two_ranks_see_twice_the_batch(corpus, tmp_path):
    args = [corpus, *MODEL, "--max-update", 2, "--save-dir", tmp_path / "run"]
    finished = ddp.train_ranks(args, logs=tmp_path)
    assert "bsz 16" in finished[0].log


def test_other_copy_of_the_plugin_is_named(plugin, tmp_path):
    """U1: the installed package is loaded and --user-dir is a checkout at another place."""
    from fairseq import utils

    other = tmp_path / "fairseq_interference"
    other.mkdir()
    with pytest.raises(UsageError) as caught:
        utils.import_user_module(argparse.Namespace(user_dir=str(other)))
    assert str(other) in str(caught.value) and plugin.__path__[0] in str(caught.value)


# --- checks of arguments, errors without traceback ---------------------------------------------------------------


def test_break_mode_eos_with_numpy_2_is_refused(monkeypatch):
    monkeypatch.delattr(host_checks.numpy, "compat", raising=False)
    monkeypatch.setattr(host_checks.numpy, "__version__", "2.1.0")
    with pytest.raises(HostError, match=r"numpy 2\.1\.0"):
        host_checks.check_arguments(argparse.Namespace(sample_break_mode="eos", cpu=True))
    host_checks.check_arguments(argparse.Namespace(sample_break_mode="none", cpu=True))


def test_host_has_what_break_mode_eos_needs():
    host_checks.check_arguments(argparse.Namespace(sample_break_mode="eos", cpu=True))


def test_amp_without_cuda_says_that_it_does_nothing(caplog):
    with caplog.at_level("WARNING"):
        host_checks.check_arguments(argparse.Namespace(amp=True, cpu=True))
    assert "--amp has no effect" in caplog.text


def test_named_error_behind_the_hosts_own(capsys):
    try:
        try:
            raise CheckpointError("languages differ", value="xx")
        except CheckpointError:
            raise Exception("Cannot load model parameters from checkpoint") from None
    except Exception as error:
        with pytest.raises(SystemExit) as left:
            compat.excepthook(type(error), error, None)
    assert left.value.code == 1 and "languages differ" in capsys.readouterr().err


def test_other_errors_keep_their_traceback(capsys):
    compat.excepthook(ValueError, ValueError("host"), None)
    assert "ValueError: host" in capsys.readouterr().err


def test_install_twice_wraps_once(plugin):
    from fairseq import checkpoint_utils

    before = checkpoint_utils.load_checkpoint
    compat.install()
    assert checkpoint_utils.load_checkpoint is before
    assert not hasattr(before.interference_original, "interference_original")


# --- gradients ---------------------------------------------------------------------------------------------------


def amp_optimizer(plugin, lr=0.5):
    """The host's --amp wrapper around SGD, with a scaler that works on the CPU."""
    from fairseq.optim.amp_optimizer import AMPOptimizer
    from fairseq.optim.sgd import SGD
    from omegaconf import OmegaConf

    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    inner = SGD(argparse.Namespace(lr=[lr], momentum=0.0, weight_decay=0.0), [parameter])
    wrapper = AMPOptimizer.__new__(AMPOptimizer)  # its constructor wants CUDA
    wrapper.cfg = OmegaConf.create({})
    wrapper.fp32_optimizer = inner
    wrapper._grad_scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wrapper.min_loss_scale = 1e-4
    return wrapper, parameter


def test_amp_unscales_once(plugin):
    optimizer, parameter = amp_optimizer(plugin)
    optimizer.backward((parameter * torch.tensor([3.0, 5.0])).sum())
    optimizer.clip_grad_norm(0.0)
    assert torch.equal(parameter.grad, torch.tensor([3.0, 5.0]))
    host_optimizers.unscale_grads(optimizer)  # a second call changes nothing
    assert torch.equal(parameter.grad, torch.tensor([3.0, 5.0]))
    optimizer.step()
    assert torch.equal(parameter.data, torch.tensor([1.0 - 1.5, -2.0 - 2.5]))


def test_amp_unscales_without_clipping(plugin):
    optimizer, parameter = amp_optimizer(plugin)
    optimizer.backward((parameter * 2.0).sum())
    host_optimizers.optimizer_step(optimizer)
    assert torch.equal(parameter.data, torch.tensor([0.0, -3.0]))


def test_amp_skips_an_update_that_is_not_finite(plugin):
    optimizer, parameter = amp_optimizer(plugin)
    optimizer.backward((parameter * float("inf")).sum())
    optimizer.clip_grad_norm(1.0)
    host_optimizers.optimizer_step(optimizer)
    assert torch.equal(parameter.data, torch.tensor([1.0, -2.0]))
    assert optimizer.scaler.get_scale() == 4.0


def test_amp_without_any_gradient_does_not_step(plugin):
    optimizer, parameter = amp_optimizer(plugin)
    host_optimizers.optimizer_step(optimizer)
    assert torch.equal(parameter.data, torch.tensor([1.0, -2.0]))


def test_bf16_masters_get_true_gradients(plugin):
    """The masters see gradient / sample_size, not the raw sum."""
    from fairseq.optim.fp16_optimizer import FP16Optimizer
    from fairseq.optim.sgd import SGD
    from omegaconf import OmegaConf

    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    cfg = OmegaConf.create(
        {
            "common": {"bf16": True, "fp16_scale_window": 1, "fp16_no_flatten_grads": True},
            "optimization": {"update_freq": [1]},
            "optimizer": {},
        }
    )
    masters = FP16Optimizer.build_fp32_params(cfg.optimizer, [parameter], flatten=False)
    inner = SGD(argparse.Namespace(lr=[1.0], momentum=0.0, weight_decay=0.0), masters)
    optimizer = FP16Optimizer(cfg, [parameter], inner, masters)
    optimizer.zero_grad()
    optimizer.backward((parameter * 4.0).sum())
    optimizer.multiply_grads(1 / 8)
    host_optimizers.unscale_grads(optimizer)
    assert torch.equal(masters[0].grad, torch.tensor([0.5, 0.5]))


def test_old_torch_version_strings():
    assert checkpoint_files.checks_by_default() == (tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6))


def test_where_the_wraps_are_listed():
    """Each wrap carries its reason as a docstring."""
    makers = [make for *_, make in compat.WRAPS] + [make for _, make in compat.TRAIN_WRAPS]
    assert all(make.__doc__ for make in makers)
    assert Path(compat.__file__).name == "compat.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_freed_memory_is_kept() -> None:
    """Tensors of the same sizes, again and again, fault no pages in after the first time."""
    script = """
import resource, torch
from fairseq_interference import compat
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        some = [torch.ones(size) for size in (10_000_000, 3_000_000)]
        del some
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = faults()
compat.keep_freed_memory()
faults()
print(first, faults())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 10
