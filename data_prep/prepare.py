"""All steps from raw text to data-bin; ``prepare.sh`` is its command line.

Each step is a command of its own (``python -m data_prep.clean …``), printed before it runs. They run in this
process; learning and binarising, which take much memory, are processes of their own.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Optional

from data_prep import binarize, dictionary, report
from data_prep.common import run_main, say
from data_prep.parallel import die_with_parent
from data_prep.plan import Plan, parser, per_language, plan
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import StageError
from fairseq_interference.languages import FILE_NAME as LANGUAGES
from fairseq_interference.languages import LanguageList
from fairseq_interference.stages import copy_over, file_hash, read_done, write_json

#: steps that take much memory: it must not stay with, or be forked from, this process
OWN_PROCESS = ("data_prep.learn_bpe", "data_prep.binarize")


def describe(made: Plan) -> None:
    """Sources per language, and what no rule takes."""
    for lang, sources in made.found.sources.items():
        say(
            f"{lang}: "
            + ", ".join(source.name + ("" if source.format == "text" else f" ({source.format})") for source in sources)
        )
    if made.found.unused:
        say("files that no rule takes: " + ", ".join(made.found.unused))
    if made.found.others:
        say("languages that are there but not asked for: " + ", ".join(made.found.others))


def commands(made: Plan) -> list[str]:
    """The exact commands, in order; those of the host at the end."""
    lines = [shlex.join(["python", "-m", name, *argv]) for _, name, argv in made.steps]
    for lang in made.langs:
        host = binarize.command(made.work / "pieces" / lang, made.dictionary, made.out / lang, made.args.workers)
        lines.append("  # runs: " + shlex.join(host))
    return lines


def run(made: Plan) -> None:
    """Run the steps; the last one in a process of its own."""
    for number, (main, name, argv) in enumerate(made.steps, 1):
        say(f"[{number}/{len(made.steps)}] python -m {name} {shlex.join(argv)}")
        begin = time.monotonic()
        if name == "data_prep.binarize":
            _publish(made)
        if name in OWN_PROCESS:
            _in_own_process(name, argv)
        else:
            main(argv)
        say(f"    {time.monotonic() - begin:.1f} s")


def _in_own_process(name: str, argv: list[str]) -> None:
    """Run a step apart from this process; its own message says what went wrong."""
    command = [sys.executable, "-m", name, *argv]
    done = subprocess.run(command, check=False, preexec_fn=die_with_parent)  # set before it can be left alone
    if done.returncode:
        raise SystemExit(done.returncode)  # the step has said what went wrong


def _check_replaced(made: Plan) -> None:
    """Refuse to change the dictionary under other languages, or one that was not made here."""
    there, listed = made.out / dictionary.DICTIONARY, made.out / LANGUAGES
    if not there.is_file() or file_hash(there) == file_hash(made.dictionary):
        return
    known = LanguageList.read(listed).codes if listed.is_file() else made.langs
    others = [lang for lang in known if lang not in made.langs and (made.out / lang).is_dir()]
    if others:
        raise StageError(
            "Languages that are there would be left with the dictionary of before.",
            where=made.out,
            value=",".join(others),
            next_step=f"prepare them too (--langs {','.join(known)}), or give another --out",
        )
    if not listed.is_file() and not any(read_done(made.out / lang) for lang in known):
        raise StageError("This dictionary was not made here.", where=there, next_step="give another --out")


def _publish(made: Plan) -> None:
    """Put tokenizer and dictionary into data-bin before the languages are binarised with them."""
    made.out.mkdir(parents=True, exist_ok=True)
    if made.args.append:
        return
    _check_replaced(made)
    bare = made.work / "tokenizer.copy"
    shutil.rmtree(bare, ignore_errors=True)
    skipped = shutil.ignore_patterns(".done", "learn.json", "given.dict.txt")
    shutil.copytree(made.tokenizer, bare, ignore=skipped)
    copy_over(bare, made.out / "tokenizer")
    shutil.rmtree(bare)
    copy_over(made.dictionary, made.out / dictionary.DICTIONARY)


def finish(made: Plan) -> None:
    """Write languages.txt and report.json, and show the tables."""
    args = made.args
    old = report.read_json(made.out / report.REPORT)
    tokenizer = Tokenizer.load(made.out / "tokenizer")
    limits = per_language(args.max_lines, made.langs, "--max-lines")
    same = ("seed", "temperature", "bpe_sample", "vocab_size", "valid_lines", "test_lines", "cut_chars")
    settings = {name: getattr(args, name) for name in (*same, "min_chars", "max_chars", "script_share")}
    described = {"kind": tokenizer.kind, "normalization": tokenizer.normalization}
    described.update(pretokenizer=tokenizer.pretokenizer, digest=tokenizer.digest)
    extra = {
        "tokenizer": described,
        "settings": old.get("settings", settings) if args.append else settings,
        "max_lines": {**(old.get("max_lines", {}) if args.append else {}), **limits},
        "unused_files": made.found.unused,
        "vocabulary": old.get("vocabulary", {})
        if args.append
        else report.read_json(made.work / "tokenizer" / "learn.json"),
    }
    built = report.build(made.langs, made.work, made.out, old, **extra)
    made.languages.write(made.out / LANGUAGES)
    write_json(made.out / report.REPORT, built)
    say("")
    say(report.summary(built))
    say(f"data-bin: {made.out}   report: {made.out / report.REPORT}")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    args = parser().parse_args(argv)
    made = plan(args)
    describe(made)
    if args.dry_run:
        print("\n".join(commands(made)))
        say("dry run: nothing was written; inputs and options are valid")
        return 0
    run(made)
    finish(made)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
