"""The house rules: import arrows, pure places, registered names, declared options."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path

import ddp
import pytest

PACKAGE = ddp.REPOSITORY / "fairseq_interference"
# cli -> evaluation, analysis, convert -> tasks -> models, criterions, optim -> modules, data -> languages, errors
RANKS = {
    "cli": 5,
    "finetune": 5,
    **dict.fromkeys(("evaluation", "analysis", "convert", "launch", "loading"), 4),
    "tasks": 3,
    **dict.fromkeys(("models", "criterions", "optim"), 2),
    **dict.fromkeys(("modules", "data"), 1),
    **dict.fromkeys(("compat", "checkpoint_files", "host_checks", "host_optimizers", "stopping"), 0),
    **dict.fromkeys(("appended_state", "processes", "validation_log"), 0),
    **dict.fromkeys(("stages", "languages", "errors"), 0),
}
# scorers are plain functions on lists without any host: tasks report with them while they train
PURE = ("evaluation.metrics",)
RANKS.update(dict.fromkeys(PURE, 1))
ARCHS = [
    f"xlm_{name}{size}" for name in ("mono", "joint", "ffn", "attn", "adpt", "share_adpt") for size in ("", "_tiny")
]
EXPECTED = {
    "archs": ARCHS,
    "tasks": ["xlm_masked_lm", "xlm_nli", "xlm_qa", "xlm_tagging"],
    "criterions": ["l0_masked_lm", "xlm_masked_lm", "xlm_nli", "xlm_qa", "xlm_tagging"],
    "optimizers": ["meta_adapter", "surgery"],
}


def sources(folder):
    return sorted(folder.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ddp.REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Dotted names of ours that a file imports, inside functions too; ``from package import name`` gives both."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name):
    """The folder or file of the package that a dotted name lies in; None for the package itself and other packages."""
    parts = name.split(".")
    if parts[0] != "fairseq_interference":
        return None
    pure = [name for name in PURE if ".".join(parts[1:]).startswith(name)]
    return pure[0] if pure else parts[1] if len(parts) > 1 and parts[1] in RANKS else None


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_import_arrows(path):
    here = room(module_name(path))
    if here is None:  # __init__ and __main__ of the package
        return
    for name in imported(path):
        there = room(name)
        if there is None or there == here:
            continue
        assert RANKS[there] <= RANKS[here], f"{here} must not import {name}"


def test_every_room_has_a_rank():
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms - {"__init__", "__main__"} <= set(RANKS)


def test_data_preparation_knows_no_model():
    """Arrows into the package end at languages, errors, stages and the pure readers."""
    allowed = ("languages", "errors", "stages", "data", *PURE)
    for path in sources(ddp.REPOSITORY / "data_prep"):
        assert all(room(name) in (None, *allowed) for name in imported(path)), path


def modules_of(*patterns):
    found = [path for pattern in patterns for path in ddp.REPOSITORY.glob(pattern) if path.suffix == ".py"]
    return sorted({module_name(path) for path in found if path.name != "__main__.py"})


FREE_OF_HOST = modules_of(
    "fairseq_interference/modules/*.py",
    "fairseq_interference/optim/bilevel.py",
    "fairseq_interference/optim/cosines.py",
    "fairseq_interference/analysis/gradient*s.py",
    "fairseq_interference/optim/gradient_surgery.py",
    "fairseq_interference/evaluation/metrics*.py",
    "fairseq_interference/evaluation/records.py",
    "fairseq_interference/evaluation/report*.py",
    "fairseq_interference/data/readers/*.py",
    "data_prep/**/*.py",
)
FREE_OF_TORCH = [
    *("fairseq_interference.errors", "fairseq_interference.languages", "fairseq_interference.stages"),
    "fairseq_interference.data.tokenizer",
    *(f"fairseq_interference.data.{name}" for name in ("aligned_text", "alignment", "qa_windows", "answers")),
]


@pytest.mark.parametrize(
    ("modules", "banned"), [(FREE_OF_HOST, ("fairseq",)), (FREE_OF_TORCH, ("fairseq", "torch"))], ids=["host", "torch"]
)
def test_pure_places(modules, banned):
    """Imported in a fresh interpreter they bring no host in; the first that does is named."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    bad = [b for b in {banned!r} if b in sys.modules]\n"
        "    assert not bad, f'{name} imports {bad}'\n"
    )
    ddp.run_command([sys.executable, "-c", code])


def test_importing_the_package_is_cheap():
    code = "import sys, fairseq_interference; print('HEAVY', sorted({'fairseq', 'torch', 'numpy'} & set(sys.modules)))"
    assert "HEAVY []" in ddp.run_command([sys.executable, "-c", code]).log


# --- registries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_registered_names_are_ours(plugin, kind):
    """On the host's main branch a name that is taken silently keeps the old class."""
    from fairseq_interference.cli.list_names import registered

    assert set(EXPECTED[kind]) <= set(registered(kind))


def registered_literals():
    """Names given to a ``register_*`` decorator of the host as literals: kind, name, file."""
    for folder in ("models", "tasks", "criterions", "optim"):
        for path in sources(PACKAGE / folder):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("register_"):
                    for argument in node.args:
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            yield node.func.id[len("register_") :], argument.value, path.name


def test_every_decorated_name_is_ours(plugin):
    from fairseq import models, registry, tasks

    registries = {
        "model": models.MODEL_REGISTRY,
        "model_architecture": {**models.ARCH_MODEL_REGISTRY, **models.MODEL_REGISTRY},
        "task": tasks.TASK_REGISTRY,
        "criterion": registry.REGISTRIES["criterion"]["registry"],
        "optimizer": registry.REGISTRIES["optimizer"]["registry"],
    }
    found = [entry for entry in registered_literals() if entry[0] in registries]
    assert found
    for kind, name, file in found:
        module = registries[kind][name].__module__
        assert module.startswith("fairseq_interference."), f"{file}: {kind} {name} is {module}'s"


def test_files_of_registries_register_something():
    """The host imports every file of tasks/ and models/; helpers live elsewhere or begin with an underscore."""
    registering = {file for _, _, file in registered_literals()}
    for folder in ("models", "tasks", "criterions"):
        for path in (PACKAGE / folder).glob("[a-z]*.py"):
            assert path.name in registering, f"{folder}/{path.name} registers nothing"


# --- options -----------------------------------------------------------------------------------------------------


def our_dataclasses():
    """Dataclasses of our registered classes: the flags that select the class, and the dataclass."""
    from fairseq import registry, tasks

    from fairseq_interference.cli.list_names import registered

    for name in registered("tasks"):
        yield ["--task", name], tasks.TASK_DATACLASS_REGISTRY.get(name)
    for kind, flag in (("criterion", "--criterion"), ("optimizer", "--optimizer")):
        for name in registered(f"{kind}s"):
            yield [flag, name], registry.REGISTRIES[kind]["dataclass_registry"].get(name)


def parser_for(flags):
    from fairseq import options

    parser = options.get_training_parser()
    options.parse_args_and_arch(parser, input_args=["data", "--arch", "roberta_base", *flags], parse_known=True)
    return parser


def is_interpolated(field):
    return isinstance(field.default, str) and field.default.startswith("${")


def test_declared_fields_reach_the_parser(plugin, monkeypatch):
    """A flag that is declared twice is dropped without a word: the help text must be ours."""
    monkeypatch.setattr(sys, "argv", ["fairseq-train"])
    for flags, declared in our_dataclasses():
        if declared is None:
            continue
        actions = parser_for(flags)._option_string_actions
        for field in dataclasses.fields(declared):
            flag = "--" + field.name.replace("_", "-")
            if field.name in ("_name", "data") or is_interpolated(field):
                continue
            assert flag in actions, f"{flags}: {flag} is not in the parser"
            described = (field.metadata or {}).get("help")
            assert described, f"{flags}: {flag} has no help"
            assert (actions[flag].help or "").startswith(described[:30]), f"{flags}: {flag} belongs to another owner"


def test_no_switch_is_on_by_default(plugin):
    """The host turns a bool that defaults to True into a flag that switches it off."""
    for flags, declared in our_dataclasses():
        if declared is not None:
            on = [field.name for field in dataclasses.fields(declared) if field.default is True]
            assert not on, f"{flags}: {on}"


# --- the repository ----------------------------------------------------------------------------------------------


def test_scripts_end_lines_with_lf_and_begin_safely():
    scripts = [*ddp.REPOSITORY.glob("run/*.sh"), *ddp.REPOSITORY.glob("data_prep/*.sh"), ddp.REPOSITORY / ".ci/run"]
    for path in scripts:
        text = path.read_bytes()
        assert b"\r" not in text, path
        if not text.startswith(b"# shellcheck shell=bash\n"):  # sourced, never started
            assert text.startswith(b"#!/usr/bin/env bash\n") and b"set -euo pipefail" in text, path


def test_torch_is_pinned_as_it_can_be_had():
    """A plain torch would bring a CUDA build of several gigabytes."""
    lines = Path(ddp.REPOSITORY / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines and any(line.startswith("numpy==1.") for line in lines)
