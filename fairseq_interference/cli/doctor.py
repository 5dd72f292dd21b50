"""``doctor``: what is installed and whether it can run; each line ok, warning or problem with the remedy."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fairseq_interference.cli.where import user_dir

HELP = "check Python, torch, fairseq, extras, cores, memory and write access"

HOSTS = ("fairseq", "ve-fairseq", "fairseq-fixed", "fairseq-built", "fairseq-light")
EXTRAS = {
    "plot": ["matplotlib"],
    "hf": ["transformers", "safetensors"],
    "indic": ["indicnlp"],
    "slurm": ["submitit"],
    "dev": ["pytest", "hypothesis", "mypy", "seqeval", "conllu"],
}
TRIED_PYTHONS = ((3, 9), (3, 10), (3, 11), (3, 12))
REQUIRED = ("sacremoses", "subword_nmt", "sentencepiece", "scipy", "yaml", "regex", "tqdm")
OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Line:
    """One finding: what was looked at, the verdict, what was found, and what to do about it."""

    topic: str
    verdict: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':20}remedy: {self.remedy}" if self.remedy else ""
        return f"{self.verdict:8} {self.topic:10} {self.found}{remedy}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", default=".", metavar="FOLDER", help="folder that must be writable (default: here)")


def check_python() -> Line:
    """Version of Python and where it is."""
    found = f"{platform.python_version()} ({sys.executable})"
    major, minor = (int(number) for number in platform.python_version_tuple()[:2])
    if (major, minor) not in TRIED_PYTHONS:
        return Line("python", WARNING, found, "no build of fairseq is known for it: use Python 3.11")
    return Line("python", OK, found)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _major(version: str) -> int:
    number = re.match(r"\d+", version)
    return int(number.group()) if number else 0


def check_numpy() -> Line:
    """Version of numpy; the host breaks with numpy 2."""
    version = _version("numpy")
    if not version:
        return Line("numpy", PROBLEM, "not installed", "pip install 'numpy<2'")
    if _major(version) >= 2:
        return Line("numpy", PROBLEM, version, "fairseq needs numpy.compat: pip install 'numpy<2'")
    return Line("numpy", OK, version)


def check_torch() -> Iterator[Line]:
    """torch is imported in this process: nothing else tells whether it works."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        yield Line("torch", PROBLEM, f"cannot be imported: {error}", "pip install -c constraints.txt torch")
        return
    yield Line("torch", OK, f"{torch.__version__} ({Path(torch.__file__).parent})")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        yield Line("cuda", OK, f"{len(names)} device(s): {', '.join(names)}")
    elif torch.version.cuda and shutil.which("nvidia-smi"):
        yield Line("cuda", WARNING, "torch sees no device", "check the driver: nvidia-smi")
    else:
        yield Line("cuda", OK, "none; training runs on the CPU (add --cpu, no --fp16)")


def check_host(folder: Path) -> Iterator[Line]:
    """Which fairseq would be imported from where, how many distributions claim the name, and who shadows it.

    Args:
        folder: working directory; a folder ``fairseq`` in it is imported before the installed package.
    """
    installed = [f"{name} {_version(name)}" for name in HOSTS if _version(name)]
    if not installed:
        yield Line("fairseq", PROBLEM, "no distribution installed", "pip install -e . -c constraints.txt")
    elif len(installed) > 1:
        names = " ".join(name.split()[0] for name in installed)
        remedy = f"they overwrite each other's files: pip uninstall {names}, then pip install -e . -c constraints.txt"
        yield Line("fairseq", PROBLEM, f"{len(installed)} distributions: {', '.join(installed)}", remedy)
    if (folder / "fairseq").is_dir():
        remedy = "start from another folder, or rename it: Python may import it instead of the installed package"
        yield Line("fairseq", WARNING, f"a folder {folder / 'fairseq'} is in the working directory", remedy)
    code = "import fairseq; print(fairseq.__file__ or list(fairseq.__path__)); print(fairseq.__version__)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Line("fairseq", PROBLEM, f"cannot be imported: {last}", "reinstall it, or remove what shadows it")
    elif len(installed) == 1:
        file, version = done.stdout.strip().splitlines()[-2:]
        yield Line("fairseq", OK, f"{installed[0]} (imports as {version} from {file})")


def check_plugin() -> Line:
    """Every name registers."""
    here = user_dir()  # the package that runs, not one that lies in the working directory
    code = f"import sys; sys.path.insert(0, {str(here.parent)!r}); import fairseq_interference as f; f.register(); "
    code += "print(f.__version__, f.__path__[0])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Line("plug-in", PROBLEM, last, "pip install -e . -c constraints.txt in the checkout")
    said = done.stdout.strip().splitlines()[-1]
    other = Path("fairseq_interference").resolve()
    if (other / "__init__.py").is_file() and other != here:
        remedy = f"the console uses {here}: give that as --user-dir, or install the copy here (pip install -e .)"
        return Line("plug-in", WARNING, f"{said}; another copy is in the working directory: {other}", remedy)
    return Line("plug-in", OK, said)


def check_packages() -> Iterator[Line]:
    """Packages that are required, then those of each extra."""
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        yield Line("packages", PROBLEM, f"missing: {', '.join(missing)}", "pip install -e . -c constraints.txt")
    else:
        yield Line("packages", OK, ", ".join(REQUIRED))
    for extra, modules in EXTRAS.items():
        absent = [name for name in modules if importlib.util.find_spec(name) is None]
        if absent:
            yield Line("extra", OK, f"[{extra}] not there ({', '.join(absent)}); pip install -e '.[{extra}]' adds it")
        else:
            yield Line("extra", OK, f"[{extra}] is there")


def check_write(folder: Path) -> Line:
    """Whether files can be written in ``folder``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Line("write", PROBLEM, f"{folder}: {error.strerror}", "change to a folder that you may write to")
    free = shutil.disk_usage(folder).free / 2**30
    if free < 2:
        return Line("write", WARNING, f"{folder}: {free:.1f} GiB free", "checkpoints fill that soon: free some space")
    return Line("write", OK, f"{folder}: {free:.0f} GiB free")


def _available_memory() -> float:
    """Bytes that can be had without swapping, or 0 where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024.0
    except OSError:
        pass
    return 0.0


def check_machine() -> Iterator[Line]:
    """Cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Line("cores", OK, str(cores))
    memory = _available_memory() / 2**30
    if not memory:
        yield Line("memory", OK, "unknown")
    elif memory < 2:
        yield Line("memory", WARNING, f"{memory:.1f} GiB available", "close other programs; tiny models need 2 GiB")
    else:
        yield Line("memory", OK, f"{memory:.1f} GiB available")


def examine(folder: Path, working: Path) -> Iterator[Line]:
    """All findings, in order. ``folder`` must be writable; ``working`` is the working directory."""
    yield check_python()
    yield check_numpy()
    yield from check_torch()
    yield from check_host(working)
    yield check_plugin()
    yield from check_packages()
    yield check_write(folder)
    yield from check_machine()


def run(args: argparse.Namespace) -> int:
    """Print every line; 1 if one of them is a problem."""
    problems = 0
    for line in examine(Path(args.write).resolve(), Path.cwd()):
        print(line, flush=True)
        problems += line.verdict == PROBLEM
    print(f"{problems} problem(s)" if problems else "no problems")
    return 1 if problems else 0
