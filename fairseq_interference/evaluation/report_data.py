"""Records -> the tables of a report: what stands together, in which order, under which name."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.records import Record
from fairseq_interference.evaluation.report_cells import PRETRAIN_METRICS, TASK_METRICS, Cell, Repeat, Table

KINDS = ("pretrain", "within-language", "zero-shot")
GroupKey = tuple[str, str, str, tuple[str, ...], str]  # kind, benchmark, split, source, rules
ARCH_ORDER = ("mono", "joint", "ffn", "attn", "adpt", "share_adpt", "meta_adpt", "madx")
# Metrics of which a group gets the first that its records hold, and rules that may differ within a table: whose
# language parts were used is said below it; perplexity per character may be compared across dictionaries.
TABLES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("perplexity_per_token",), ("parts",)),
    (("perplexity_per_character",), ("parts", "dictionary", "dictionary_size")),
    (("accuracy",), ("parts",)),
    (tuple(TASK_METRICS), ("parts",)),
    (("em",), ("parts",)),
)


def _is_zero_shot(record: Record) -> bool:
    return bool(record["run"]["setting"] == "zero-shot")


def rules_of(record: Record, ignored: Collection[str]) -> str:
    rules = record["evaluation"]["rules"]
    if isinstance(rules, str):
        return rules
    shown = {name: rule for name, rule in rules.items() if name not in ignored and rule is not None}
    if all(isinstance(rule, (str, int, float)) for rule in shown.values()):
        return ", ".join(f"{name}: {rule}" for name, rule in sorted(shown.items()))
    return json.dumps(shown, sort_keys=True, ensure_ascii=False)


def language_order(records: Iterable[Record]) -> tuple[str, ...]:
    """Languages as the run with most of them numbers them, then the others; the same order everywhere."""
    records = list(records)
    longest: list[str] = max((r["run"]["languages"] for r in records), key=len, default=[])
    rest = {r["evaluation"]["language"] for r in records} - set(longest)
    return (*longest, *sorted(rest))


def _arch_rank(column: str) -> tuple[int, str]:
    name = column.split(" ")[0]
    name = name[4:] if name.startswith("xlm_") else name
    name = name[:-5] if name.endswith("_tiny") else name
    return (ARCH_ORDER.index(name) if name in ARCH_ORDER else len(ARCH_ORDER), column)


def arch_order(records: Iterable[Record]) -> list[str]:
    """Archs of ``records`` in the order that every table and figure keeps."""
    return sorted({record["run"]["arch"] for record in records}, key=_arch_rank)


class _Columns:
    """Names of columns: the arch, with the pre-training languages where the arch alone would be ambiguous."""

    def __init__(self, records: Iterable[Record]) -> None:
        lists: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for record in records:
            lists[record["run"]["arch"]].add(tuple(record["run"]["languages"]))
        self._ambiguous = {
            arch
            for arch, found in lists.items()
            if sum(len(x) > 1 for x in found) > 1 or len({len(x) > 1 for x in found}) > 1
        }

    def name(self, record: Record, source: Sequence[str]) -> str:
        arch, languages = record["run"]["arch"], list(record["run"]["languages"])
        if len(languages) == 1:
            own = list(source) if source else [record["evaluation"]["language"]]
            return str(arch) if languages == own else f"{arch} ({languages[0]})"
        return f"{arch} ({','.join(languages)})" if arch in self._ambiguous else str(arch)


def _metric_of(records: Sequence[Record], known: Iterable[str]) -> list[str]:
    """The first of the metrics that any of the records holds, or nothing."""
    held = (name for name in known if any(r["evaluation"]["metrics"].get(name) is not None for r in records))
    return [name for name in [next(held, None)] if name is not None]


def repeat_of(record: Record) -> Repeat:
    """What may differ between the values of one cell: the seed, and the seed of pre-training if recorded."""
    pretrain = record["run"]["config"].get("pretrain_seed")
    return record["run"]["seed"], pretrain if isinstance(pretrain, int) else None


def _cell(records: Sequence[Record], metric: str, where: str) -> Cell:
    by_repeat: dict[Repeat, Record] = {}
    for record in records:
        other = by_repeat.setdefault(repeat_of(record), record)
        if other is not record:
            raise DataError(
                "Two runs would be counted in one cell with the same seed.",
                where=where,
                value=f"{other['run']['id']} and {record['run']['id']}",
                next_step="move one of them to another results folder",
            )
    order = sorted(by_repeat, key=lambda repeat: (repeat[0], repeat[1] or 0))
    values = {repeat: by_repeat[repeat]["evaluation"]["metrics"].get(metric) for repeat in order}
    held = [repeat for repeat in order if values[repeat] is not None]
    return Cell(tuple(float(values[repeat]) for repeat in held), tuple(held))


def _groups(records: Iterable[Record], ignored: Collection[str]) -> dict[GroupKey, list[Record]]:
    """(kind, benchmark, split, source, rules) -> records. A source's own score is in both kinds of table."""
    groups: dict[GroupKey, list[Record]] = defaultdict(list)
    for record in records:
        evaluation, trained = record["evaluation"], tuple(record["run"]["train_langs"])
        head, rules = (evaluation["benchmark"], evaluation["split"]), rules_of(record, ignored)
        if record["run"]["setting"] == "pretrain":
            groups[("pretrain", *head, (), rules)].append(record)
            continue
        if trained == (evaluation["language"],):
            groups[("within-language", *head, (), rules)].append(record)
        groups[("zero-shot", *head, trained, rules)].append(record)
    return {
        key: found
        for key, found in groups.items()
        if key[0] != "zero-shot" or len(key[3]) > 1 or any(map(_is_zero_shot, found))
    }


def _table(key: GroupKey, found: Sequence[Record], metric: str, rows: tuple[str, ...], columns: _Columns) -> Table:
    kind, benchmark, split, source, rules = key
    if len(source) == 1:  # a monolingual model that was only tried on its own language cannot transfer
        tried = {columns.name(r, source) for r in found if len(r["run"]["languages"]) > 1 or _is_zero_shot(r)}
        found = [record for record in found if columns.name(record, source) in tried]
    by_cell: dict[tuple[str, str], list[Record]] = defaultdict(list)
    mono = set()
    for record in found:
        column = columns.name(record, source)
        by_cell[record["evaluation"]["language"], column].append(record)
        if len(record["run"]["languages"]) == 1:
            mono.add(column)
    where = f"{benchmark} {split}, {kind}"
    cells = {pair: _cell(group, metric, f"{where}, {pair[0]}, {pair[1]}") for pair, group in by_cell.items()}
    names = tuple(sorted({column for _, column in by_cell}, key=_arch_rank))
    pretrained = {pair: ",".join(group[0]["run"]["languages"]) for pair, group in by_cell.items()}
    return Table(
        kind, benchmark, split, source, metric, rules, rows, names, cells, frozenset(mono), pretrained, tuple(found)
    )


def check_vocabulary(records: Iterable[Record]) -> None:
    """Runs of one study share a dictionary.

    Raises:
        DataError: pre-training records of several dictionaries; names a run of each.
    """
    runs: dict[str, str] = {}
    for record in records:
        rules = record["evaluation"]["rules"]
        if record["run"]["setting"] == "pretrain" and isinstance(rules, dict) and "dictionary" in rules:
            runs.setdefault(str(rules["dictionary"]), str(record["run"]["id"]))
    if len(runs) > 1:
        raise DataError(
            "These runs have different dictionaries: their perplexities per token mean nothing together.",
            where="rules.dictionary",
            value=", ".join(f"{run}: {digest}" for digest, run in sorted(runs.items())),
            next_step="prepare the runs of a study with one dictionary (prepare.sh --append or --tokenizer-from), "
            "or give --own-vocab to compare them per character",
        )


def build_tables(records: Sequence[Record]) -> list[Table]:
    """Tables of the finished records: pre-training, within-language, then zero-shot per source.

    A language measured in one table of a benchmark has its row in all of them.

    Raises:
        DataError: two runs fall into one cell with the same seed.
    """
    done = [record for record in records if record["status"] == "done"]
    order, columns = language_order(done), _Columns(done)
    measured: dict[tuple[bool, str], set[str]] = defaultdict(set)
    for record in done:
        pretrain = record["run"]["setting"] == "pretrain"
        measured[pretrain, record["evaluation"]["benchmark"]].add(record["evaluation"]["language"])
    tables = []
    for known, ignored in TABLES:
        for key, found in sorted(_groups(done, ignored).items(), key=lambda item: (KINDS.index(item[0][0]), *item[0])):
            rows = tuple(lang for lang in order if lang in measured[key[0] == "pretrain", key[1]])
            if (key[0] == "pretrain") == (known[0] in PRETRAIN_METRICS):
                tables += [_table(key, found, metric, rows, columns) for metric in _metric_of(found, known)]
    return tables
