"""What ``evaluate`` says about a result: notes on what is odd in it, and a table for people (per cent)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {"f1": "F1", "em": "EM", "accuracy": "accuracy"}
FEW = 30


def notes(result: dict[str, Any]) -> list[str]:
    """What a reader of the result should know, one line each."""
    found = {"ner": _ner_notes, "pos": _pos_notes, "nli": _nli_notes, "qa": _qa_notes}[result["task"]](result)
    if "paired" in result and result["n"] < FEW:
        found.append(f"{result['n']} examples are few for a bootstrap: its intervals are too narrow")
    return found


def table(result: dict[str, Any]) -> str:
    """Result as a person reads it: per cent."""
    text = {"ner": _ner_table, "pos": _pos_table, "nli": _nli_table, "qa": _qa_table}[result["task"]](result)
    return "\n".join([text, *(_difference(result, metric) for metric in result.get("paired", ()))])


def _difference(result: dict[str, Any], metric: str) -> str:
    row, rules = result["paired"][metric], result["rules"]["paired"]
    first, second, difference, low, high = (
        100 * row[name] for name in ("predictions", "against", "difference", "low", "high")
    )
    scores = f"{NAMES[metric]} {first:.2f} against {second:.2f}"
    draws = f"{rules['resamples']} draws of {rules['unit']}, seed {rules['seed']}"
    return f"{scores}: {difference:+.2f} [{low:+.2f}, {high:+.2f}], p = {row['p']:.2g} ({draws})"


def _counted(counts: Mapping[str, int], texts: Mapping[str, str]) -> list[str]:
    return [f"{counts[name]} {text}" for name, text in texts.items() if counts[name]]


def _pos_notes(result: dict[str, Any]) -> list[str]:
    strange = [tag for tag, count in result["counts"]["per_tag"].items() if not count["gold"]]
    found = _counted(result["counts"], {"untagged": "words have the gold tag _: not scored"})
    return found + ([f"predicted tags that gold does not have: {', '.join(strange)}"] if strange else [])


def _nli_notes(result: dict[str, Any]) -> list[str]:
    return _counted(result["counts"], {"no_majority": "pairs have the gold label -: not scored"})


def _qa_notes(result: dict[str, Any]) -> list[str]:
    texts = {
        "missing": "questions have no prediction: they count as wrong",
        "extra": "predictions have ids that the gold file lacks: left out",
        "no_answer": "questions have no gold answer: the empty answer is right",
        "both_empty": "answers are right with no token left: F1 1, where the official scripts say 0",
        "changed_by_nfc": "scores would be others without NFC (--normal-form none)",
    }
    found = _counted(result["counts"], texts)
    if result["rules"]["extension"]:
        found.append(f"the rules mlqa do not define {result['lang']}: this is our extension (docs/scores.md)")
    return found


def _pos_table(result: dict[str, Any]) -> str:
    metrics, counts = result["metrics"], result["counts"]
    return "\n".join(
        [
            *_rows("tag", metrics["per_tag"], counts["per_tag"]),
            f"token accuracy {100 * metrics['accuracy']:.2f} over {counts['tokens']} words, "
            f"macro F1 {100 * metrics['macro_f1']:.2f}, pos_f1_xtreme {100 * metrics['pos_f1_xtreme']:.2f}",
            f"{result['n']} sentences, language {result['lang'] or 'not given'}",
        ]
    )


def _nli_table(result: dict[str, Any]) -> str:
    metrics, counts = result["metrics"], result["counts"]
    labels = result["rules"]["labels"]
    corner = "gold, predicted"
    width, column = max(len(corner), *map(len, labels)), max(9, *map(len, labels))
    confusion = [f"{corner:<{width}}" + "".join(f" {label:>{column}}" for label in labels)]
    for row in labels:
        cells = "".join(f" {counts['confusion'][row][label]:{column}d}" for label in labels)
        confusion.append(f"{row:<{width}}{cells}")
    return "\n".join(
        [
            *_rows("label", metrics["per_label"], counts["per_label"]),
            *confusion,
            f"accuracy {100 * metrics['accuracy']:.2f}, macro F1 {100 * metrics['macro_f1']:.2f}",
            f"{result['n']} pairs, language {result['lang'] or 'not given'}",
        ]
    )


def _qa_table(result: dict[str, Any]) -> str:
    metrics, rules, lang = result["metrics"], result["rules"], result["lang"] or "not given"
    scores = f"EM {100 * metrics['em']:.2f}, F1 {100 * metrics['f1']:.2f}"
    return f"{scores}\n{result['n']} questions, rules {rules['rules']}, form {rules['normal_form']}, language {lang}"


def _rows(name: str, scores: Mapping[str, Any], counts: Mapping[str, Any]) -> list[str]:
    width = max(8, *map(len, scores))
    lines = [f"{name:<{width}} precision  recall      F1    gold predicted correct"]
    for key, row in scores.items():
        count = counts[key]
        lines.append(
            f"{key:<{width}} {100 * row['precision']:9.2f} {100 * row['recall']:7.2f} {100 * row['f1']:7.2f} "
            f"{count['gold']:7d} {count['predicted']:9d} {count['correct']:7d}"
        )
    return lines


def _ner_notes(result: dict[str, Any]) -> list[str]:
    rules, counts = result["rules"], result["counts"]
    notes = [
        f"{role}: {', '.join(f'{count} x {repair}' for repair, count in sorted(repairs.items()))} (docs/ner.md)"
        for role, repairs in rules["repairs"].items()
        if repairs
    ]
    if any(rules["i_without_b"].values()):
        found = "I- without B-: {gold} in gold, {predictions} in predictions".format(**rules["i_without_b"])
        meaning = "none of them as an entity" if rules["scheme"] == "iob2" else "each as the start of an entity"
        notes.append(f"{found}; --scheme {rules['scheme']} reads {meaning}")
    if not counts["gold"]:
        notes.append("the gold file has no entities: precision, recall and F1 say nothing")
    strange = [kind for kind, count in counts["per_type"].items() if not count["gold"]]
    if strange and counts["gold"]:
        notes.append(f"predicted types that gold does not have: {', '.join(strange)} (see --label-map)")
    return notes


def _ner_table(result: dict[str, Any]) -> str:
    """One row a type, entities in the last columns."""
    metrics, counts = result["metrics"], result["counts"]
    scores = {**metrics["per_type"], "all": metrics}
    lines = _rows("type", scores, {**counts["per_type"], "all": counts})
    lines.append(f"token accuracy {100 * metrics['accuracy']:.2f} over {counts['tokens']} words")
    scheme, lang = result["rules"]["scheme"], result["lang"] or "not given"
    lines.append(f"{result['n']} sentences, scheme {scheme}, language {lang}")
    return "\n".join(lines)
