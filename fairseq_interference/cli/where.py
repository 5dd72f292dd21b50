"""``where``: the folder to give to ``--user-dir``."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "print the folder to give to --user-dir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def user_dir() -> Path:
    """The folder of the package that runs; once it is imported the host refuses a copy elsewhere."""
    return Path(__file__).resolve().parent.parent


def run(args: argparse.Namespace) -> int:
    print(user_dir())
    return 0
