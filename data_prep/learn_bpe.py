"""Learn one sub-word vocabulary for all languages, on text sampled with a temperature.

    python -m data_prep.learn_bpe --bpe subword-nmt --vocab-size 32000 --out WORK/tokenizer --text en=F hi=F

The libraries themselves learn: subword-nmt (from the counts of words) or sentencepiece (unigram, identity
normalisation, so that joiners survive). Writes a tokenizer folder and ``learn.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from data_prep.common import add_force, parse_memory, run_main, say
from fairseq_interference.data.pretokenize import PRETOKENIZERS
from fairseq_interference.data.text import NORMALIZATIONS
from fairseq_interference.data.tokenizer import SEPARATOR, Tokenizer, without_separator
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.stages import stage, write_json

KINDS = ("subword-nmt", "sentencepiece")
#: what learning takes, in bytes: per character of the different words, and per word while they are counted.
#: Rarer words than fit into --memory are left out: they hardly change the vocabulary.
BYTES_A_CHAR = 230
BYTES_A_WORD = 350
#: sentencepiece sorts all places of the text, 14 bytes each
BYTES_A_PLACE = 16
#: sentencepiece's result depends on the number of its threads: it is the same for any --workers
THREADS = 4


@dataclass(frozen=True)
class Options:
    """What is learnt."""

    kind: str = "subword-nmt"
    vocab_size: int = 32000
    temperature: float = 1.43
    sample: int = 1_000_000
    seed: int = 1
    normalization: str = "nfc"
    pretokenizer: str = "moses"
    memory: int = 512 << 20

    def validate(self) -> Options:
        """Return self, or raise UsageError."""
        if self.kind not in KINDS:
            raise UsageError("Unknown sub-word library.", where="--bpe", value=self.kind, allowed=", ".join(KINDS))
        if self.vocab_size < 16:
            raise UsageError("Vocabulary too small.", where="--vocab-size", value=self.vocab_size, allowed=">= 16")
        if not 1 <= self.temperature <= 100:
            raise UsageError("Out of range.", where="--temperature", value=self.temperature, allowed="1 (as is) .. 100")
        if self.sample < 1:
            raise UsageError("Nothing to learn from.", where="--bpe-sample", value=self.sample, allowed=">= 1")
        return self


def shares(lines: Mapping[str, int], temperature: float) -> dict[str, float]:
    """P_i proportional to share_i^(1/T)."""
    total = sum(lines.values())
    raised = {lang: (number / total) ** (1 / temperature) for lang, number in lines.items()}
    whole = sum(raised.values())
    return {lang: value / whole for lang, value in raised.items()}


def sample_sizes(lines: Mapping[str, int], temperature: float, limit: int) -> dict[str, int]:
    """Lines that are taken of each language: at most ``limit`` in all, at least one each."""
    budget = min(limit, sum(lines.values()))
    return {lang: max(1, int(share * budget)) for lang, share in shares(lines, temperature).items()}


def count_lines(path: Path) -> int:
    """LFs in a file."""
    with open(path, "rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def sampled(path: Path, lines: int, wanted: int, seed: int) -> Iterator[str]:
    """Exactly ``wanted`` lines of a file of ``lines``: whole passes, and a remainder spread evenly over the file."""
    whole, rest = divmod(wanted, lines)
    state = (seed * 7919) % lines
    with open(path, "rb") as stream:
        for raw in stream:
            state += rest
            repeat = whole
            if state >= lines:
                state -= lines
                repeat += 1
            if repeat:
                line = raw.decode("utf-8").rstrip("\n")
                for _ in range(repeat):
                    yield line


def _fitting(
    texts: Mapping[str, Path], lines: Mapping[str, int], taken: Mapping[str, int], size: int
) -> dict[str, int]:
    """Lines of each language, fewer in proportion if they take more than ``size`` bytes."""
    wanted = sum(taken[lang] * path.stat().st_size / lines[lang] for lang, path in texts.items())
    factor = min(1.0, size / wanted)
    return {lang: max(1, int(number * factor)) for lang, number in taken.items()}


def _word_counts(
    texts: Mapping[str, Path], lines: Mapping[str, int], taken: Mapping[str, int], options: Options
) -> list[tuple[str, int]]:
    """Words of the sample and how often they occur, most frequent first; ties in an order without meaning."""
    words: Counter[str] = Counter()
    spaced = options.kind == "subword-nmt"
    most_words, characters = options.memory // BYTES_A_WORD, options.memory // BYTES_A_CHAR
    for lang, path in texts.items():
        for number, line in enumerate(sampled(path, lines[lang], taken[lang], options.seed), 1):
            if spaced and SEPARATOR in line:
                line = without_separator(line)
            words.update(line.split(" "))
            if number % 20_000 == 0 and len(words) > most_words:
                words = Counter(dict(_most(words, most_words // 2, 8 * characters)))
    del words[""]
    most = _most(words, len(words), characters)
    if len(most) < len(words):
        say(f"note: of {len(words)} different words the {len(most)} most frequent are learnt from (--memory)")
    return most


def _most(words: Mapping[str, int], limit: int, characters: int) -> list[tuple[str, int]]:
    ordered = sorted(words.items(), key=lambda item: (-item[1], zlib.crc32(item[0].encode("utf-8")), item[0]))
    kept = 0
    for word, _ in ordered[:limit]:
        characters -= len(word)
        if characters < 0:
            break
        kept += 1
    return ordered[: max(1, kept)]


def learn_subword_nmt(ordered: Sequence[tuple[str, int]], vocab_size: int, codes: Path) -> int:
    """Let subword-nmt learn from counts of words; returns the number of merges."""
    from subword_nmt.learn_bpe import learn_bpe

    characters = {(character, False) for word, _ in ordered for character in word[:-1]}
    characters |= {(word[-1], True) for word, _ in ordered}
    if len(characters) >= vocab_size:
        raise UsageError(
            f"The text has {len(characters)} characters (inside and at the end of words): there is no room for merges.",
            where="--vocab-size",
            value=vocab_size,
            allowed=f"> {len(characters)}",
        )
    if not any(len(word) > 1 for word, _ in ordered):
        raise DataError("No word has two characters: there is nothing to merge.", where="--bpe subword-nmt")
    source = io.StringIO("".join(f"{word} {count}\n" for word, count in ordered))
    with open(codes, "w", encoding="utf-8") as out, _quiet():
        learn_bpe(source, out, vocab_size, is_dict=True, total_symbols=True)
    merges = count_lines(codes) - 1
    if not merges:
        what = "No two characters follow each other twice: the text is too small to learn merges from."
        raise DataError(what, where="--bpe subword-nmt", next_step="give more text, or a vocabulary: --tokenizer-from")
    return merges


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's own remarks off stderr unless it is a terminal; what matters is said by us."""
    if sys.stderr.isatty():
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def learn_sentencepiece(words: Iterable[tuple[str, int]], vocab_size: int, model: Path) -> int:
    """Let sentencepiece learn a unigram model from counts of words; returns the number of pieces it has.

    The text decides what is possible: a smaller vocabulary is accepted, a too small one is an error.
    """
    import sentencepiece

    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=written,
            vocab_size=vocab_size,
            model_type="unigram",
            normalization_rule_name="identity",
            hard_vocab_limit=False,
            character_coverage=0.9999,
            max_sentence_length=1 << 20,
            shuffle_input_sentence=False,
            num_threads=THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        message = str(error)
        found = re.search(r"required_chars.*?(\d+) vs (\d+)", message)
        if found is not None:
            raise UsageError(
                f"The text needs {found[2]} characters: there is no room for pieces.",
                where="--vocab-size",
                value=vocab_size,
                allowed=f"> {found[2]}",
            ) from None
        raise DataError("sentencepiece could not learn from this text.", value=message[-300:]) from None
    model.write_bytes(written.getvalue())
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return int(processor.get_piece_size())


def learn(texts: Mapping[str, Path], out: Path, options: Options, force: bool = False) -> bool:
    """Run the stage; False if it was done before. ``texts``: language -> tokenised training text."""
    inputs = {f"{lang} text": path for lang, path in texts.items()}
    settings = {**vars(options), "languages": list(texts)}
    with stage(out, inputs=inputs, settings=settings, force=force) as folder:
        if folder is None:
            return False
        lines = {lang: count_lines(path) for lang, path in texts.items()}
        taken = sample_sizes(lines, options.temperature, options.sample)
        if options.kind == "sentencepiece":
            taken = _fitting(texts, lines, taken, options.memory // BYTES_A_PLACE)
        say("lines for the vocabulary: " + ", ".join(f"{lang} {taken[lang]} of {lines[lang]}" for lang in texts))
        words = _word_counts(texts, lines, taken, options)
        if options.kind == "subword-nmt":
            file, key = folder / "bpe.codes", "merges"
            learnt = learn_subword_nmt(words, options.vocab_size, file)
            size = learnt + len({c for word, _ in words for c in word[:-1]}) + len({word[-1] for word, _ in words})
        else:
            file, key = folder / "sentencepiece.model", "pieces"
            size = learnt = learn_sentencepiece(words, options.vocab_size, file)
        if size < options.vocab_size:
            say(f"warning: the text is small: the vocabulary has about {size} pieces instead of {options.vocab_size}")
        Tokenizer.create(
            folder, options.kind, file, normalization=options.normalization, pretokenizer=options.pretokenizer
        )
        report = {"lines": lines, "sampled": taken, key: learnt, "size": size, "asked": options.vocab_size}
        write_json(folder / "learn.json", report)
    return True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Flags of :class:`Options` that prepare.sh shares."""
    parser.add_argument("--bpe", default="subword-nmt", help=" or ".join(KINDS))
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--temperature", type=float, default=1.43, help="P_i ~ share^(1/T); 1 takes the text as it is")
    parser.add_argument("--bpe-sample", type=int, default=1_000_000, help="lines that the vocabulary is learnt from")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.learn_bpe", description=__doc__.split("\n")[0])
    parser.add_argument("--text", nargs="+", required=True, metavar="LANG=FILE")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="512M", help="of learning: rare words that do not fit are left out")
    parser.add_argument("--normalization", choices=NORMALIZATIONS, default="nfc", help="what the text went through")
    parser.add_argument("--tokenizer", choices=PRETOKENIZERS, default="moses", help="what the text went through")
    add_options(parser)
    add_force(parser)
    args = parser.parse_args(argv)
    texts = {lang: Path(path) for lang, _, path in (pair.partition("=") for pair in args.text)}
    options = Options(
        kind=args.bpe,
        vocab_size=args.vocab_size,
        temperature=args.temperature,
        sample=args.bpe_sample,
        seed=args.seed,
        normalization=args.normalization,
        pretokenizer=args.tokenizer,
        memory=parse_memory(args.memory),
    ).validate()
    learn(texts, args.out, options, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
