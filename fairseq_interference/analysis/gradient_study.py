"""Measures gradient conflict in a checkpoint: effective batches of every language, by accumulation.

For each draw every language gets two batches, a and b, of other blocks and masks each. Between languages i and j the
cosine is the mean of cos(a_i, b_j) and cos(b_i, a_j); within a language it is cos(a_i, b_i), the paper's En-En control:
what two batches of this size agree on when there is no other language.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch
from torch import Tensor

from fairseq_interference.analysis.gradients import ALL, Group, Measured, cosines, groups_of, measured, summary
from fairseq_interference.analysis.study import ROWS_FILE, Ledger, Row, Study
from fairseq_interference.appended_state import language_of
from fairseq_interference.checkpoint_files import updates_of
from fairseq_interference.criterions.xlm_masked_lm import XlmMaskedLmCriterion
from fairseq_interference.data import dictionary as dictionaries
from fairseq_interference.data.batching import cut
from fairseq_interference.data.blocks import Blocks
from fairseq_interference.data.folders import open_folders
from fairseq_interference.data.masking import keys
from fairseq_interference.data.multilingual import Item, MultilingualDataset
from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.errors import CheckpointError, DataError, DictionaryError, UsageError
from fairseq_interference.evaluation.mlm import symbols_of
from fairseq_interference.languages import parse_codes
from fairseq_interference.stages import file_hash
from fairseq_interference.tasks.xlm_masked_lm import XlmMaskedLmTask

NAME = "gradients"
PathLike = Union[str, Path]
HALVES = ("a", "b")
_DRAW = 0x6D1E


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        sentences: blocks of an effective batch.
        seed: of blocks, masks and dropout.
        max_tokens: of a micro-batch, padding included.
        dropout: as in training, or none.
        keep: where gradients wait for one another: ``cpu``, ``device``, or nowhere, ``recompute``.
    """

    sentences: int = 4096
    seed: int = 1
    max_tokens: int = 8192
    dropout: bool = True
    keep: str = "cpu"


def check_model(loaded: Any) -> None:
    """Raise :class:`CheckpointError` unless a checkpoint is a masked language model of ours."""
    if not isinstance(loaded.task, XlmMaskedLmTask):
        raise CheckpointError(
            "Gradients are those of masked language modelling; this checkpoint was trained for something else.",
            where=loaded.path,
            value=type(loaded.task).__name__,
            allowed="checkpoints of the task xlm_masked_lm",
            next_step="give the pre-trained checkpoint; bring others in with fairseq-interference convert",
        )


def read_blocks(loaded: Any, data: str, split: str, langs: str = "") -> tuple[dict[str, Blocks], list[str]]:
    """Blocks of every language, cut as the checkpoint's training cut them, in the order of its ids; and notes.

    Args:
        loaded: what :func:`fairseq_interference.load` returns.
        data: prepared folder; of shards the first.
        langs: codes; all that the checkpoint knows and the folder has, if empty.

    Raises:
        LanguageError: a language that the checkpoint or the folder does not know. DataError: no such split.
        DictionaryError: another dictionary. UsageError: fewer than two languages.
    """
    known = loaded.languages
    wanted = parse_codes(langs) if langs else known.codes
    for code in wanted:
        known.id(code, "--langs")
    notes = []
    if not langs:
        first = open_folders(data, ",".join(known), check_languages=False).paths[0]
        wanted = [code for code in known if (first / code).is_dir()]
        if missing := [code for code in known if code not in wanted]:
            notes.append(f"no data for: {','.join(missing)}")
    wanted = sorted(wanted, key=known.id)
    if len(wanted) < 2:
        what = "Conflict is between languages: at least two are needed."
        raise UsageError(what, where="--langs, --data", value=",".join(wanted), allowed=",".join(known))
    folders = open_folders(data, ",".join(wanted))
    theirs = [symbol for symbol in dictionaries.symbols_of_file(folders.dictionary) if symbol != "<mask>"]
    if dictionaries.digest(symbols_of(loaded.dictionary)) != dictionaries.digest(theirs):
        what = "This data was binarised with another dictionary than the checkpoint's."
        raise DictionaryError(
            what, where=folders.dictionary, next_step="prepare it with --tokenizer-from that checkpoint"
        )
    prefixes = folders.splits(split, 1)
    if absent := [code for code in wanted if code not in prefixes]:
        raise DataError(f"There is no {split} data for these languages.", where=data, value=",".join(absent))
    task = loaded.cfg.task
    length = min(int(task.tokens_per_sample), int(loaded.model.max_positions())) - 1
    mode, eos = str(task.sample_break_mode), loaded.dictionary.eos()
    return {code: Blocks(TokenFile(prefixes[code]), mode, length, eos) for code in wanted}, notes


def sizes(blocks: Mapping[str, Blocks], sentences: int) -> tuple[dict[str, int], list[str]]:
    """Blocks of a batch of each language: what was asked for, or half of what there is; and notes.

    Raises:
        DataError: a language with fewer than two blocks.
    """
    found, notes = {}, []
    for code, part in blocks.items():
        found[code] = min(sentences, len(part) // 2)
        if len(part) < 2:
            raise DataError("Two batches need two blocks.", where=f"{part.file.prefix}.bin", value=len(part))
        if found[code] < sentences:
            notes.append(
                f"{code} has {len(part)} blocks: batches of {found[code]}, not {sentences}; every draw sees all of them"
            )
    return found, notes


class Gradients:
    """Gradients of one checkpoint.

    Args:
        loaded: its parameters and mode are changed.
        blocks: language -> its blocks.
        counts: language -> blocks of a batch.
    """

    def __init__(self, loaded: Any, blocks: Mapping[str, Blocks], counts: Mapping[str, int], plan: Plan) -> None:
        self.model, self.plan, self.counts = loaded.model.float(), plan, counts
        self.model.train(plan.dropout)
        self.criterion = XlmMaskedLmCriterion(loaded.task)
        self.device = next(self.model.parameters()).device
        self.ids = {code: loaded.languages.id(code) for code in blocks}
        self.dataset = MultilingualDataset(
            loaded.languages, blocks, loaded.task.masking(), loaded.dictionary.bos(), seed=plan.seed, temperature=1.0
        )
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        for _, parameter in named:
            parameter.requires_grad_(language_of(parameter) is None)
        self.shared = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.groups = groups_of(name for name, _ in self.shared)

    def items(self, draw: int, code: str, half: str) -> list[Item]:
        """Blocks of a batch; a and b of a draw have none in common."""
        part, count = self.dataset.blocks[self.ids[code]], self.counts[code]
        assert part is not None
        rng = np.random.default_rng([self.plan.seed, _DRAW, zlib.crc32(code.encode()), draw])
        chosen = rng.choice(len(part), 2 * count, replace=False)
        first = HALVES.index(half) * count
        return [Item(n, self.ids[code], (int(n), draw), part[int(n)]) for n in chosen[first : first + count]]

    def micro_batches(self, draw: int, code: str, half: str) -> Iterator[dict[str, Any]]:
        """A batch in parts, masked as in training, sorted by length."""
        items = sorted(self.items(draw, code, half), key=lambda item: len(item.tokens))
        lengths = np.array([len(item.tokens) + 1 for item in items])
        for rows in cut(np.arange(len(items)), lengths, self.plan.max_tokens, None):
            yield _moved(self.dataset.collater([items[int(row)] for row in rows]), self.device)

    def gradient(self, draw: int, code: str, half: str) -> list[Optional[Tensor]]:
        """Gradient of the summed loss of a batch, aligned with ``shared``; None where the loss reaches no parameter."""
        key = int(keys(self.plan.seed, draw, zlib.crc32(code.encode()), HALVES.index(half))[0])
        torch.manual_seed(key >> 1)  # dropout, the same when it is computed again
        self.model.zero_grad(set_to_none=True)
        for sample in self.micro_batches(draw, code, half):
            torch.autograd.backward(self.criterion.losses(self.model, sample)[0].sum())
        found = [parameter.grad for _, parameter in self.shared]
        self.model.zero_grad(set_to_none=True)
        if self.plan.keep == "cpu" and self.device.type != "cpu":
            found = [None if gradient is None else gradient.cpu() for gradient in found]
        return found

    def crossed(self, draw: int, tell: Callable[[str], None]) -> dict[tuple[str, str], dict[Group, Optional[float]]]:
        """(i, j) -> cosines between a_i and b_j.

        At most L + 1 gradients are held (2 with ``recompute``); 2 L are computed (L + L^2 with ``recompute``).
        """
        found = {}
        if self.plan.keep == "recompute":
            for one in self.ids:
                a = self._measured(draw, one, "a", tell)
                for other in self.ids:
                    found[one, other] = cosines(a, self._measured(draw, other, "b", tell), self.groups)
            return found
        kept = {code: self._measured(draw, code, "a", tell) for code in self.ids}
        for other in self.ids:
            b = self._measured(draw, other, "b", tell)
            for one, a in kept.items():
                found[one, other] = cosines(a, b, self.groups)
        return found

    def _measured(self, draw: int, code: str, half: str, tell: Callable[[str], None]) -> Measured:
        tell(f"{code} ({half})")
        return measured(self.gradient(draw, code, half))

    def rows(self, draw: int, tell: Callable[[str], None]) -> list[Row]:
        """Rows of a draw: one, other, layer, component, cosine; within a language first, then between two."""
        crossed, codes = self.crossed(draw, tell), list(self.ids)
        pairs = [(code, code) for code in codes]
        pairs += [(one, other) for number, one in enumerate(codes) for other in codes[number + 1 :]]
        return [
            {
                "one": one,
                "other": other,
                "layer": group.layer,
                "component": group.component,
                "cosine": _mean(crossed[one, other][group], crossed[other, one][group]),
            }
            for one, other in pairs
            for group in self.groups
        ]


def _mean(*values: Optional[float]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _moved(sample: Any, device: torch.device) -> Any:
    if torch.is_tensor(sample):
        return sample.to(device)
    return {name: _moved(value, device) for name, value in sample.items()} if isinstance(sample, dict) else sample


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"gradients: {text}", file=sys.stderr, flush=True)


def compute(
    checkpoints: Sequence[PathLike],
    data: str,
    out: PathLike,
    *,
    langs: str = "",
    split: str = "train",
    draws: int = 5,
    plan: Optional[Plan] = None,
    cpu: bool = False,
    force: bool = False,
) -> Study:
    """Measure every checkpoint in every draw; what ``out`` holds already is not measured again.

    Args:
        checkpoints: of one run or several, in any order.
        data: prepared folder that has the text.
        out: folder of the study.
        langs, split: see :func:`read_blocks`.
        cpu: not on a GPU.
        force: begin anew where the settings differ.
    """
    from fairseq_interference import load

    plan, settings, languages = plan or Plan(), None, None
    pairs: list[Row] = []
    batches: list[Row] = []
    series, hashes = in_order(checkpoints), []
    for path, label, update in series:
        loaded = load(str(path))
        check_model(loaded)
        blocks, notes = read_blocks(loaded, data, split, langs)
        counts, few = sizes(blocks, plan.sentences)
        for note in [*notes, *few]:
            say(f"{label}: {note}")
        if settings is None:
            settings = {"data": data, "split": split, "languages": list(blocks), **_of_plan(plan), **_of_text(blocks)}
            ledger, languages = Ledger(Path(out) / NAME / ROWS_FILE, settings, force), list(blocks)
        elif list(blocks) != languages:
            what = "These checkpoints do not have the same languages."
            raise UsageError(what, where=path, value=",".join(blocks), next_step="give --langs that all of them know")
        if torch.cuda.is_available() and not cpu:
            loaded.model.cuda()
        hashes.append(file_hash(path)[:16])
        study: Optional[Gradients] = None
        for draw in range(draws):
            rows = ledger.get(f"{hashes[-1]} {draw}")
            if rows is None:
                study = study or Gradients(loaded, blocks, counts, plan)
                tell = partial(_tell, f"{label}: draw {draw + 1} of {draws}")
                rows = ledger.add(f"{hashes[-1]} {draw}", study.rows(draw, tell))
            pairs += [{"checkpoint": label, "update": update, "draw": draw, **row} for row in rows]
        batches += [
            {"checkpoint": label, "lang": code, "blocks": len(part), "batch": counts[code]}
            for code, part in blocks.items()
        ]
    found = summary(pairs)
    overall = [row for row in found if row["layer"] is None and row["component"] == ALL]
    shown = {"checkpoints": [label for _, label, _ in series], "draws": draws, **(settings or {})}
    tables = {"summary": overall, "layers": found, "pairs": pairs, "batches": batches}
    return Study(NAME, {**shown, "hashes": hashes}, tables)


def _tell(where: str, what: str) -> None:
    say(f"{where}, {what}")


def _of_plan(plan: Plan) -> dict[str, Any]:
    """What the numbers depend on; where gradients wait is not among it."""
    return {name: value for name, value in asdict(plan).items() if name != "keep"}


def _of_text(blocks: Mapping[str, Blocks]) -> dict[str, Any]:
    return {"tokens": [len(part.file.tokens) for part in blocks.values()]}


def in_order(checkpoints: Sequence[PathLike]) -> list[tuple[Path, str, Optional[int]]]:
    """File, name and number of updates of each checkpoint, by folder and update; of equal ones of a folder the first.

    Raises:
        CheckpointError: no such file. UsageError: one is given twice.
    """
    paths = [Path(path) for path in checkpoints]
    for path in paths:
        if not path.is_file():
            raise CheckpointError("There is no such checkpoint.", where=path)
    labels = labels_of(paths)
    folders = list(dict.fromkeys(path.resolve().parent for path in paths))
    found = [(path, labels[path], updates_of(path)) for path in paths]
    found.sort(key=lambda entry: (folders.index(entry[0].resolve().parent), entry[2] or 0))
    kept: dict[Any, tuple[Path, str, Optional[int]]] = {}
    for path, label, update in found:
        first = kept.setdefault((path.resolve().parent, update), (path, label, update))
        if first[0] != path:
            say(f"{label} is left out: {first[1]} is of the same update, {update}")
    return list(kept.values())


def labels_of(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for every checkpoint: folder and file, with as many folders as tell them apart."""
    parts = {path: path.resolve().parts for path in paths}
    for depth in range(2, max(map(len, parts.values())) + 1):
        found = {path: "/".join(some[-depth:]) for path, some in parts.items()}
        if len(set(found.values())) == len(paths):
            return found
    raise UsageError("A checkpoint is given twice.", where="--checkpoint", value=", ".join(map(str, paths)))
