"""Puts a world together and writes its files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from data_prep.synthetic.concepts import Inventory
from data_prep.synthetic.config import SPLITS, WorldConfig
from data_prep.synthetic.formats import conllu, panx, raw_line
from data_prep.synthetic.grammar import Grammar
from data_prep.synthetic.lexicon import Lexicon
from data_prep.synthetic.meaning import Sentence
from data_prep.synthetic.speech import Speaker
from data_prep.synthetic.truth import lexicon_table, truth
from fairseq_interference.stages import write_json, write_text

ATTEMPTS = 200


class World:
    """Inventory, lexicon and speakers of one configuration."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.inventory = Inventory(config.concepts, random.Random(f"{config.seed}/inventory"))
        self.lexicon = Lexicon(config, self.inventory)
        self.speakers = {spec.code: Speaker(spec, self.lexicon, config.seed) for spec in config.languages}
        self._reserved: set[Sentence] = set()

    def grammar(self, use: str, split: str) -> Grammar:
        """A grammar with its own stream of chance, so that one use never shifts another."""
        return Grammar(self.inventory, split, random.Random(f"{self.config.seed}/{use}/{split}"))

    def labelled(self, use: str, split: str, count: int) -> list[Sentence]:
        """Different meanings that no other split of this use and no raw line has."""
        grammar = self.grammar(use, split)
        return [self._new(grammar) for _ in range(count)]

    def _new(self, grammar: Grammar) -> Sentence:
        for _ in range(ATTEMPTS):
            meaning = grammar.sentence()
            if meaning not in self._reserved:
                break
        self._reserved.add(meaning)
        return meaning

    def raw(self, count: int) -> Iterator[Sentence]:
        """Meanings of the raw text; line i is the same in every language that has so many lines."""
        grammar = self.grammar("raw", "raw")
        produced = 0
        while produced < count:
            meaning = grammar.sentence()
            if meaning not in self._reserved:
                produced += 1
                yield meaning


def write_world(config: WorldConfig, out: Path) -> None:
    """Write everything into the folder ``out``; labelled data first, so that raw text can avoid it."""
    world = World(config)
    _write_tagged(world, out)
    _write_raw(world, out)
    write_text(out / "lexicon.tsv", lexicon_table(world.config, world.inventory, world.lexicon))
    write_json(out / "truth.json", truth(world.config, world.inventory, world.lexicon))


def _write_tagged(world: World, out: Path) -> None:
    for split, count in zip(SPLITS, world.config.labelled):
        for meanings, task in ((world.labelled(task, split, count), task) for task in ("ner", "pos")):
            for code, speaker in world.speakers.items():
                spoken = (speaker.sentence(meaning) for meaning in meanings)
                if task == "ner":
                    write_text(out / "ner" / code / f"{split}.tsv", "".join(panx(tokens, code) for tokens in spoken))
                else:
                    blocks = (conllu(tokens, code, number, split) for number, tokens in enumerate(spoken, 1))
                    write_text(out / "pos" / code / f"{split}.conllu", "".join(blocks))


def _write_raw(world: World, out: Path) -> None:
    specs = world.config.languages
    folder = out / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = {
            spec.code: stack.enter_context(open(folder / f"{spec.code}.txt", "w", encoding="utf-8", newline="\n"))
            for spec in specs
        }
        for number, meaning in enumerate(world.raw(max(spec.sentences for spec in specs))):
            for spec in specs:
                if number < spec.sentences:
                    files[spec.code].write(raw_line(world.speakers[spec.code].sentence(meaning)))
