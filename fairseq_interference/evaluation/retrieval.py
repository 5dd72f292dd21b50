"""Sentence retrieval without training: does a sentence find its translation by the cosine of mean hidden states?

As the Tatoeba task of XTREME (Hu et al. 2020), with three rules of our own: ``<s>`` and ``</s>`` do not enter the mean,
since they are the same in every sentence and weigh most in short ones; equal texts are one candidate; the model runs in
float64, so that the result does not depend on what shares a batch. The rules are part of every result.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_interference.data.readers.parallel import parse_columns, read_parallel
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import DONE, DataError, UsageError
from fairseq_interference.evaluation.hidden import hidden_states, layer_number, layers_of, route, tokenizer_of
from fairseq_interference.evaluation.metrics_retrieval import retrieval_scores
from fairseq_interference.languages import check_code

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

PathLike = Union[str, Path]
MIDDLE, ALL = "middle", "all"
DIRECTIONS = ("source_to_target", "target_to_source")
METRICS = ("accuracy", *DIRECTIONS)


class Side(NamedTuple):
    """The different texts of one side: vectors (K, S, C) in K layers, text of each pair (N,), number of pieces and of
    unknown ones, and whose language-specific parts read them (see :class:`~.hidden.Route`)."""

    vectors: NDArray[np.float64]
    of_pair: NDArray[np.int64]
    pieces: int
    unknown: int
    parts: str


def parse_langs(text: str) -> tuple[str, str]:
    """``en,sw``: languages of --source and --target; they may be the same.

    Raises:
        UsageError: not two. LanguageError: not a code.
    """
    codes = [check_code(part.strip(), "--langs") for part in text.split(",") if part.strip()]
    if len(codes) != 2:
        what = "Retrieval goes between two languages, that of --source and that of --target."
        raise UsageError(what, where="--langs", value=text, allowed="two codes, as en,sw")
    return codes[0], codes[1]


def parse_layers(text: str, layers: int) -> list[int]:
    """Layers that ``--layer`` names, from 0; the first is the one that counts.

    Without a choice it is the middle one, rounded up (4 of 8, 6 of 12): last layers turn back to the words of their
    language, and a layer that was chosen by its score on the same file would flatter the model.

    Raises:
        UsageError: not ``middle``, ``all``, or numbers of layers.
    """
    middle = (layers + 1) // 2
    if text == ALL:
        return [middle, *(layer for layer in range(layers + 1) if layer != middle)]
    found = []
    for part in text.split(","):
        try:
            number = middle if part.strip() == MIDDLE else int(part)
        except ValueError:
            allowed = f"{MIDDLE}, {ALL}, or numbers as 0,4,-1"
            raise UsageError("This is no layer.", where="--layer", value=text, allowed=allowed) from None
        found.append(layer_number(number, layers, "--layer"))
    return list(dict.fromkeys(found))


def _side(
    loaded: Loaded,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    lang: str,
    layers: Sequence[int],
    fallback_lang: Optional[str],
    batch_size: Optional[int],
) -> Side:
    where = route(loaded, lang, fallback_lang, "--langs")
    dictionary = loaded.dictionary
    order: dict[str, int] = {}
    of_pair = [order.setdefault(text, len(order)) for text in texts]
    ids = [[dictionary.index(piece) for piece in tokenizer.encode_line(text, lang)] for text in order]
    means = hidden_states(loaded, ids, where.lang_id, layers, mean=True, batch_size=batch_size)
    every = [number for row in ids for number in row]
    vectors = torch.stack(means, dim=1).numpy()  # K x S x C
    return Side(vectors, np.array(of_pair), len(every), every.count(dictionary.unk()), where.parts)


def retrieve(
    loaded: Loaded,
    pairs: Sequence[tuple[str, str]],
    langs: tuple[str, str],
    *,
    layer: str = MIDDLE,
    fallback_lang: Optional[str] = None,
    batch_size: Optional[int] = None,
) -> dict[str, Any]:
    """Retrieval accuracy of parallel sentences.

    Args:
        loaded: what :func:`fairseq_interference.load` returns; its model is put back into its precision.
        pairs: a sentence and its translation. A pair with nothing on one side is left out and counted.
        langs: their languages.
        layer: see :func:`parse_layers`.
        fallback_lang: language whose parts serve one that the checkpoint does not know.
        batch_size: most sentences in a batch; the result does not depend on it.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~.metrics_retrieval.retrieval_scores`; ``lang`` is that of the
        target side. ``metrics`` also has ``per_layer`` and ``best_layer``.

    Raises:
        DataError: no pair with text on both sides. TokenizerError: no tokenizer.
        LanguageError, UsageError: a language or layer that the model does not have.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError("At least 1.", where="--batch-size", value=batch_size)
    tokenizer, count = tokenizer_of(loaded), layers_of(loaded)
    layers = parse_layers(layer, count)
    cleaned = [(tokenizer.clean(one), tokenizer.clean(other)) for one, other in pairs]
    kept = [pair for pair in cleaned if all(pair)]
    if not kept:
        raise DataError("No pair has text on both sides.", value=f"{len(pairs)} pairs")
    weights = next(loaded.model.parameters()).dtype
    loaded.model.double()
    try:
        source, target = (
            _side(loaded, tokenizer, [pair[side] for pair in kept], langs[side], layers, fallback_lang, batch_size)
            for side in (0, 1)
        )
    finally:
        loaded.model.to(weights)
    both = np.stack([source.of_pair, target.of_pair], axis=1)
    scores = {k: retrieval_scores(a, b, both) for k, a, b in zip(layers, source.vectors, target.vectors)}
    return {
        "task": "retrieval",
        "lang": langs[1],
        "n": len(kept),
        "rules": {**_rules(langs, layers[0], count), "parts": target.parts, "source_parts": source.parts},
        "metrics": _metrics(scores, layers[0]),
        "counts": {
            "left_out": len(pairs) - len(kept),
            "ties": scores[layers[0]]["ties"],
            "candidates": {name: side.vectors.shape[1] for name, side in zip(("source", "target"), (source, target))},
            "tokens": {"source": source.pieces, "target": target.pieces},
            "unknown": {"source": source.unknown, "target": target.unknown},
        },
    }


def _rules(langs: tuple[str, str], layer: int, layers: int) -> dict[str, Any]:
    return {
        "source_lang": langs[0],
        "layer": layer,
        "layers": layers,
        "pooling": "mean over tokens, without <s> and </s>",
        "similarity": "cosine, float64",
        "ties": "share of the best candidates that are right",
        "duplicates": "equal texts are one candidate, right if the file has the pair",
    }


def _metrics(scores: dict[int, dict[str, Any]], layer: int) -> dict[str, Any]:
    per_layer = {str(k): {name: scores[k][name] for name in METRICS} for k in sorted(scores)}
    best = max(sorted(scores), key=lambda k: float(scores[k]["accuracy"]))
    return {**per_layer[str(layer)], "per_layer": per_layer, "best_layer": best}


# --- evaluate --task retrieval -----------------------------------------------------------------------------------


def add_retrieval_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``evaluate --task retrieval``; ``--json`` is the verb's own."""
    group = parser.add_argument_group("--task retrieval")
    group.add_argument("--checkpoint", metavar="FILE", help="any checkpoint with a tokenizer beside it")
    add_text_arguments(group)
    group.add_argument("--langs", metavar="xx,yy", help="languages of source and target")
    group.add_argument("--max-lines", type=int, metavar="N", help="only the first N pairs")
    group.add_argument("--batch-size", type=int, metavar="N", help="most sentences in a batch (changes no score)")
    group.add_argument("--fallback-lang", metavar="CODE", help="language whose parts serve an unknown language")
    group.add_argument("--cpu", action="store_true", help="stay on the CPU")


def add_text_arguments(group: Any) -> None:
    """Flags that say what is compared, for the verb and for run/evaluate.sh."""
    group.add_argument("--source", metavar="FILE", help="one sentence a line; without --target both sides, with TAB")
    group.add_argument("--target", metavar="FILE", help="the translation of each line of --source")
    group.add_argument("--columns", metavar="A,B", help="columns of both sides in one file (default: it has two)")
    group.add_argument("--layer", default=MIDDLE, help="layer, list of layers, or all; 0: embeddings [%(default)s]")


def pairs_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The pairs that ``--source --target --columns --max-lines`` name."""
    if args.max_lines is not None and args.max_lines < 1:
        raise UsageError("At least 1.", where="--max-lines", value=args.max_lines)
    columns = None if args.columns is None else parse_columns(args.columns)
    return [pair[:2] for pair in read_parallel(args.source, args.target, columns=columns, most=args.max_lines)]


def run_retrieval(args: argparse.Namespace) -> int:
    """``evaluate --task retrieval``: prints a table, or one object with ``--json``."""
    from fairseq_interference import load

    for flag in ("checkpoint", "source", "langs"):
        if not getattr(args, flag):
            raise UsageError(f"--task retrieval needs --{flag}.", where=f"--{flag}")
    if args.lang:
        raise UsageError("Retrieval has two languages.", where="--lang", value=args.lang, allowed="--langs xx,yy")
    langs, pairs = parse_langs(args.langs), pairs_of(args)
    loaded = load(args.checkpoint)
    if torch.cuda.is_available() and not args.cpu:
        loaded.model.cuda()
    result = retrieve(
        loaded, pairs, langs, layer=args.layer, fallback_lang=args.fallback_lang, batch_size=args.batch_size
    )
    for note in _notes(result):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False) if args.json else _table(result))
    return DONE


def _notes(result: dict[str, Any]) -> list[str]:
    counts, metrics, rules = result["counts"], result["metrics"], result["rules"]
    found = [f"{counts['left_out']} pairs have no text on one side: left out"] if counts["left_out"] else []
    for side, lang, parts in (
        ("source", rules["source_lang"], rules["source_parts"]),
        ("target", result["lang"], rules["parts"]),
    ):
        if parts != "own":
            whose = "it has no parts of any" if parts == "none" else f"it was read with those of {parts}"
            found.append(f"{lang} was not among the languages of the checkpoint: {whose}")
        if counts["unknown"][side] > counts["tokens"][side] / 10:
            share = 100 * counts["unknown"][side] / counts["tokens"][side]
            found.append(f"{share:.0f} % of the pieces of {lang} are unknown to the dictionary")
    if len(metrics["per_layer"]) > 1:
        found.append("the best layer was found on this very text: choose one on other text before you report it")
    return found


def _table(result: dict[str, Any]) -> str:
    rules, metrics, lang = result["rules"], result["metrics"], result["lang"]
    there, back = f"{rules['source_lang']} to {lang}", f"{lang} to {rules['source_lang']}"
    lines = [f"layer  accuracy  {there:>10}  {back:>10}"]
    for layer, row in metrics["per_layer"].items():
        cells = (f"{100 * row[name]:>{width}.2f}" for name, width in (("accuracy", 8), *((d, 10) for d in DIRECTIONS)))
        mark = " *" if int(layer) == rules["layer"] else ""
        lines.append(f"{layer:>5}  " + "  ".join(cells) + mark)
    counts = result["counts"]["candidates"]
    lines.append(f"{result['n']} pairs; {counts['source']} different sentences in {rules['source_lang']}, ")
    lines[-1] += f"{counts['target']} in {lang}; * the layer that counts, of {rules['layers']}"
    return "\n".join(lines)
