"""``check``: configurations and data before anything is trained. All problems are printed together."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq_interference.errors import DONE, FAILED, InterferenceError, UsageError
from fairseq_interference.languages import CODE, RESERVED, LanguageList, parse_codes
from fairseq_interference.stages import file_hash, input_of

HELP = "check configurations and prepared data before anything is trained"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
MIN_FREE = 2 * 10**9  # a tiny run's checkpoints take a few MB, a paper-size one about 0.5 GB each


@dataclass
class Findings:
    """Lines of the listing: what is fine, what deserves a look, what would fail."""

    fine: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def catch(self, error: InterferenceError) -> None:
        self.problems.append(str(error))


def check_dictionary(path: Path, found: Findings) -> Optional[bytes]:
    """Content of a dict.txt; every malformed line is a problem, so is a Git-LFS pointer."""
    if not path.is_file():
        found.problems.append(f"{path}: there is no dictionary; data_prep/prepare.sh or fairseq-preprocess writes it")
        return None
    content = path.read_bytes()
    if content.startswith(b"version https://git-lfs"):
        found.problems.append(f"{path}: a Git-LFS pointer, not the file; next: git lfs pull")
        return content
    seen: dict[str, int] = {}
    for number, line in enumerate(content.decode("utf-8", errors="replace").rstrip("\n").split("\n"), 1):
        overwrite = line.endswith(" #fairseq:overwrite")
        piece, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not piece or not count.isdigit():
            found.problems.append(f"{path}:{number}: not 'piece count': {line[:60]!r}")
        elif piece in SPECIAL and not overwrite:
            found.problems.append(f"{path}:{number}: the special symbol {piece} is the host's own")
        elif piece in seen and not overwrite:
            found.problems.append(f"{path}:{number}: {piece!r} stands in line {seen[piece]} already")
        seen.setdefault(piece, number)
    if not seen:
        found.problems.append(f"{path}: the dictionary is empty")
    return content


def _language_folders(data: Path, found: Findings) -> list[str]:
    names = []
    for path in sorted(data.iterdir()):
        if not path.is_dir() or path.name in RESERVED:
            continue
        if not CODE.fullmatch(path.name):
            found.notes.append(f"{path}: not a language code, ignored")
        elif not any(path.glob("*.idx")):
            found.notes.append(f"{path}: holds no binarised text, ignored")
        else:
            names.append(path.name)
    return names


def check_language(data: Path, lang: str, dictionary: Optional[bytes], found: Findings) -> None:
    """Files of one language: train must be there and not empty, its dictionary the common one."""
    folder = data / lang
    if not folder.is_dir():
        found.problems.append(f"{folder}: no folder for language {lang}")
        return
    for kind in ("bin", "idx"):
        path = folder / f"train.{kind}"
        if not path.is_file():
            found.problems.append(f"{path}: missing")
        elif path.stat().st_size == 0:
            found.problems.append(f"{path}: empty; a language without text cannot be trained")
    if not (folder / "valid.idx").is_file():
        found.notes.append(f"{folder}: no validation text; {lang} is left out of the macro average")
    encoded = input_of(folder, "dictionary")
    if dictionary is not None and encoded is not None and encoded != file_hash(data / "dict.txt"):
        found.problems.append(f"{folder}: was binarised with another dictionary than {data / 'dict.txt'}")
    own = folder / "dict.txt"
    if dictionary is not None and own.is_file() and own.read_bytes() != dictionary:
        found.problems.append(f"{own}: is not the dictionary of {data / 'dict.txt'}; binarise {lang} with that one")


def check_tokenizer(data: Path, found: Findings) -> None:
    """The tokenizer folder loads; without one new text cannot be encoded with the checkpoint alone."""
    if not (data / "tokenizer").is_dir():
        found.notes.append(f"{data}: no tokenizer/; nothing that encodes new text will travel with the checkpoint")
        return
    from fairseq_interference.data.tokenizer import Tokenizer

    try:
        Tokenizer.load(data / "tokenizer")
    except InterferenceError as error:
        found.catch(error)


def check_data(data: Path, langs: Optional[Iterable[str]], found: Findings) -> None:
    """One data folder (a shard): dictionary, languages.txt, the languages asked for, the tokenizer."""
    before = len(found.problems)
    if not data.is_dir():
        found.problems.append(f"{data}: there is no such data folder; next: data_prep/prepare.sh --out …")
        return
    dictionary = check_dictionary(data / "dict.txt", found)
    folders = _language_folders(data, found)
    listed = None
    if (data / "languages.txt").is_file():
        try:
            listed = LanguageList.read(data / "languages.txt")
        except InterferenceError as error:
            found.catch(error)
    else:
        found.notes.append(f"{data}: no languages.txt; ids come from the order of --langs")
    wanted = list(langs) if langs is not None else (listed.codes if listed is not None else folders)
    for lang in wanted:
        if listed is not None and lang not in listed:
            found.problems.append(f"{data / 'languages.txt'}: {lang} is not among {','.join(listed.codes)}")
        check_language(data, lang, dictionary, found)
    if not wanted:
        found.problems.append(f"{data}: holds no language")
    check_tokenizer(data, found)
    if len(found.problems) == before:
        found.fine.append(f"{data}: {len(wanted)} languages ({','.join(wanted)}), one dictionary")


def check_space(folder: Path, found: Findings) -> None:
    """Free space and write access where checkpoints will go."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < MIN_FREE:
        found.problems.append(f"{folder}: {free / 1e9:.1f} GB free, less than {MIN_FREE / 1e9:.0f} GB")
    if not os.access(place, os.W_OK):
        found.problems.append(f"{folder}: cannot be written")


def check_config(path: Path, data: Optional[str], found: Findings) -> None:
    """One configuration: YAML, keys, and every flag as the host's own parser knows it; then its data."""
    import fairseq_interference.launch as launch

    try:
        config: Any = launch.read_config(path)
    except InterferenceError as error:
        found.catch(error)
        return
    for shard in (data or config.data).split(os.pathsep):
        check_data(Path(shard), config.langs, found)
    check_space(Path(config.save_dir), found)
    try:
        launch.check_flags(config)
    except InterferenceError as error:
        found.catch(error)
    else:
        found.fine.append(f"{path}: every flag is known to {config.arch}, {config.task}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", nargs="+", default=[], metavar="YAML", help="configurations of run/configs")
    parser.add_argument("--data", metavar="DIR", help="prepared data (replaces the one that a configuration names)")
    parser.add_argument("--langs", metavar="xx,yy", help="languages that must be in --data (default: all it lists)")


def run(args: argparse.Namespace) -> int:
    """Check configurations and data; prints all problems at once."""
    if not args.config and not args.data:
        raise UsageError("There is nothing to check.", allowed="--config YAML …, --data DIR, or both")
    found = Findings()
    for config in args.config:
        check_config(Path(config), args.data, found)
    if args.data and not args.config:
        langs = None if args.langs is None else parse_codes(args.langs)
        for shard in args.data.split(os.pathsep):
            check_data(Path(shard), langs, found)
    for kind, lines in (("ok", found.fine), ("note", found.notes), ("PROBLEM", found.problems)):
        for line in dict.fromkeys(lines):
            print(f"{kind:<8} {line}")
    print(f"{len(set(found.problems))} problems" if found.problems else "nothing is in the way")
    return FAILED if found.problems else DONE
