"""What is true of a world: typology, endings, and the similarity of every pair, asked and reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_prep.synthetic.concepts import Inventory
from data_prep.synthetic.config import SPLITS, LanguageSpec, WorldConfig
from data_prep.synthetic.lexicon import Lexicon
from data_prep.synthetic.scripts import LETTERS, SIGNS, VIRAMA, write

FORMAT = 1
ORDER_PROPERTIES = ("order", "adjective", "adposition")


def lexicon_table(config: WorldConfig, inventory: Inventory, lexicon: Lexicon) -> str:
    """Tab-separated: concept, class, concept whose word it shares, hypernym, antonym, then phonemes per language."""
    lines = ["\t".join(["concept", "class", "alias", "hypernym", "antonym", *config.codes])]
    classes = [(kind, concepts) for kind, concepts in inventory.classes.items()]
    classes.append(("name", list(inventory.alias)))
    for kind, concepts in classes:
        for concept in concepts:
            relations = [table.get(concept, "") for table in (inventory.alias, inventory.parent, inventory.antonym)]
            words = [lexicon.roots[code][concept] for code in config.codes]
            lines.append("\t".join([concept, kind, *relations, *words]))
    return "\n".join(lines) + "\n"


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / len(flags), 4) if flags else 0.0


def _used_affixes(spec: LanguageSpec, inventory: Inventory) -> list[str]:
    affixes = [affix for affix in inventory.classes["affix"] if not affix.startswith("a:name.")]
    if spec.morphology == "isolating":
        return []
    stacked = [affix for affix in affixes if "." not in affix]
    return stacked if spec.morphology == "suffixing" else [affix for affix in affixes if affix not in stacked]


def pair_truth(
    config: WorldConfig, inventory: Inventory, lexicon: Lexicon, one: LanguageSpec, other: LanguageSpec
) -> dict[str, Any]:
    """Similarity of two languages: every value is a share between 0 and 1."""
    words = [concept for kind, members in inventory.classes.items() if kind != "affix" for concept in members]
    left, right = lexicon.roots[one.code], lexicon.roots[other.code]
    affixes = _used_affixes(one, inventory)
    same_kind = one.morphology == other.morphology
    per_class = {
        kind: _share([left[concept] == right[concept] for concept in members])
        for kind, members in sorted(inventory.classes.items())
        if kind != "affix"
    }
    return {
        "similarity": {
            "requested": config.pair(one.code, other.code),
            "achieved": _share([left[concept] == right[concept] for concept in words]),
            "per_class": per_class,
            "written_alike": _share(
                [write(left[concept], one.script) == write(right[concept], other.script) for concept in words]
            ),
        },
        "order": {
            "achieved": _share([getattr(one, name) == getattr(other, name) for name in ORDER_PROPERTIES]),
            **{name: getattr(one, name) == getattr(other, name) for name in ORDER_PROPERTIES},
        },
        "morphology": {
            "same_kind": same_kind,
            "shared_affixes": _share([left[affix] == right[affix] for affix in affixes]) if same_kind else 0.0,
        },
        "same_script": one.script == other.script,
    }


def _language_truth(spec: LanguageSpec, inventory: Inventory, lexicon: Lexicon) -> dict[str, Any]:
    return {
        **spec._asdict(),
        "relative_clause": "before" if spec.order == "SOV" else "after",
        "negation": "suffix" if spec.morphology == "suffixing" else "particle",
        "affixes": {affix: lexicon.roots[spec.code][affix] for affix in _used_affixes(spec, inventory)},
        "phonotactics": lexicon.sounds[spec.code]._asdict(),
        "letters": LETTERS[spec.script],
        "vowel_signs": SIGNS.get(spec.script, {}),
        "virama": VIRAMA if spec.script == "devanagari" else "",
    }


def truth(config: WorldConfig, inventory: Inventory, lexicon: Lexicon) -> dict[str, Any]:
    """Content of ``truth.json``."""
    specs = config.languages
    held_out = sorted(name for names in inventory.names.values() for name in names.held_out.items)
    return {
        "format": FORMAT,
        "seed": config.seed,
        "concepts": {kind: len(members) for kind, members in inventory.classes.items()},
        "ambiguous_names": len(inventory.alias),
        "held_out_names": held_out,
        "labelled": {task: dict(zip(SPLITS, counts)) for task, counts in config.labelled.items()},
        "languages": {spec.code: _language_truth(spec, inventory, lexicon) for spec in specs},
        "pairs": {
            f"{one.code}:{other.code}": pair_truth(config, inventory, lexicon, one, other)
            for number, one in enumerate(specs)
            for other in specs[number + 1 :]
        },
    }
