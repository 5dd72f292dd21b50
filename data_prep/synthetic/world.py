"""Puts a world together and writes its files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from data_prep.synthetic.concepts import Inventory
from data_prep.synthetic.config import SPLITS, WorldConfig
from data_prep.synthetic.formats import conllu, panx, raw_line, xnli
from data_prep.synthetic.grammar import Grammar
from data_prep.synthetic.inference import LABELS, Inference, Pair
from data_prep.synthetic.lexicon import Lexicon
from data_prep.synthetic.meaning import Sentence
from data_prep.synthetic.questions import Asking, speak_paragraph
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
        self.reserved: set[object] = set()

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
            if meaning not in self.reserved:
                break
        self.reserved.add(meaning)
        return meaning

    def raw(self, count: int) -> Iterator[Sentence]:
        """Meanings of the raw text; line i is the same in every language that has so many lines."""
        grammar = self.grammar("raw", "raw")
        produced = 0
        while produced < count:
            meaning = grammar.sentence()
            if meaning not in self.reserved:
                produced += 1
                yield meaning


def write_world(config: WorldConfig, out: Path) -> None:
    """Write everything into the folder ``out``; labelled data first, so that raw text can avoid it."""
    world = World(config)
    for task, write in (("ner", _write_ner), ("pos", _write_pos), ("nli", _write_nli), ("qa", _write_qa)):
        for split, count in zip(SPLITS, config.labelled[task]):
            write(world, out / task, split, count)
    _write_raw(world, out / "raw")
    write_text(out / "lexicon.tsv", lexicon_table(config, world.inventory, world.lexicon))
    write_json(out / "truth.json", truth(config, world.inventory, world.lexicon))


def _write_ner(world: World, folder: Path, split: str, count: int) -> None:
    meanings = world.labelled("ner", split, count)
    for code, speaker in world.speakers.items():
        text = "".join(panx(speaker.sentence(meaning), code) for meaning in meanings)
        write_text(folder / code / f"{split}.tsv", text)


def _write_pos(world: World, folder: Path, split: str, count: int) -> None:
    meanings = world.labelled("pos", split, count)
    for code, speaker in world.speakers.items():
        spoken = enumerate(map(speaker.sentence, meanings), 1)
        text = "".join(conllu(tokens, code, number, split) for number, tokens in spoken)
        write_text(folder / code / f"{split}.conllu", text)


def _write_nli(world: World, folder: Path, split: str, count: int) -> None:
    inference = Inference(world.grammar("nli", split))
    pairs: list[Pair] = []
    while len(pairs) < count:
        pair = inference.pair(LABELS[len(pairs) % len(LABELS)])
        if pair not in world.reserved:
            world.reserved.update((pair, pair.premise, pair.hypothesis))
            pairs.append(pair)
    inference.rng.shuffle(pairs)
    for code, speaker in world.speakers.items():
        write_text(folder / code / f"{split}.tsv", "".join(xnli(pair, speaker) for pair in pairs))


def _write_qa(world: World, folder: Path, split: str, count: int) -> None:
    asking = Asking(world.grammar("qa", split))
    paragraphs = [asking.paragraph() for _ in range(count)]
    world.reserved.update(sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    for code, speaker in world.speakers.items():
        spoken = [
            speak_paragraph(paragraph, speaker, f"{split}-{number}") for number, paragraph in enumerate(paragraphs, 1)
        ]
        value = {"version": "1.1", "data": [{"title": f"{code} {split}", "paragraphs": spoken}]}
        write_text(folder / code / f"{split}.json", json.dumps(value, ensure_ascii=False) + "\n")


def _write_raw(world: World, folder: Path) -> None:
    specs = world.config.languages
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
