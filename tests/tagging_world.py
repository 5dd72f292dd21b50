"""A small made-up world for the tagging tests: two languages, names with a mark, a tokenizer, a dictionary."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fairseq_interference.data.companions import write_companions
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.languages import LanguageList

LABELS = ["O", "B-LOC", "B-PER", "I-LOC", "I-PER"]
WORDS = {
    "xa": ["walks", "sees", "the", "river", "house", "quickly", "and", "old", "with", "under"],
    "xb": ["mulo", "teka", "ro", "suna", "pito", "lemi", "ka", "vado", "nen", "bora"],
}
PEOPLE = {"xa": ["Anna", "Boris", "Cleo", "Dmitri"], "xb": ["Zamo", "Yelu", "Wiko", "Vanu"]}
PLACES = {"xa": ["Delhi", "Paris", "Nairobi"], "xb": ["Tuno", "Sabi", "Rake"]}


def sentence(lang: str, draw: random.Random) -> tuple[list[str], list[str]]:
    """Words and IOB2 labels of one sentence of 3 to 10 words."""
    words: list[str] = []
    labels: list[str] = []
    for _ in range(draw.randint(2, 5)):
        kind = draw.choice(["O", "O", "PER", "LOC"])
        if kind == "O":
            words.append(draw.choice(WORDS[lang]))
            labels.append("O")
            continue
        names = draw.choices((PEOPLE if kind == "PER" else PLACES)[lang], k=draw.randint(1, 2))
        words.extend(names)
        labels.extend(["B-" + kind] + ["I-" + kind] * (len(names) - 1))
    words.append(".")
    labels.append("O")
    return words, labels


def write_prepared(root: Path, sizes: dict[str, int], langs: tuple[str, ...] = ("xa", "xb"), seed: int = 1) -> Path:
    """``root/labels.txt`` and ``root/<lang>/<split>.jsonl``; returns ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")
    for lang in langs:
        draw = random.Random(f"{seed} {lang}")
        for split, size in sizes.items():
            write_split(root, lang, split, [sentence(lang, draw) for _ in range(size)])
    return root


def write_split(root: Path, lang: str, split: str, sentences: list[tuple[list[str], list[str]]]) -> Path:
    """One prepared split."""
    path = root / lang / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = 1
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        for number, (words, labels) in enumerate(sentences):
            record = {"id": f"{lang}-{split}-{number}", "lang": lang, "words": words, "labels": labels}
            stream.write(json.dumps({**record, "source_line": line}, ensure_ascii=False) + "\n")
            line += len(words) + 1
    return path


def write_tokenizer(folder: Path, langs: tuple[str, ...] = ("xa", "xb")) -> Tokenizer:
    """subword-nmt codes learnt on every word of the world."""
    from subword_nmt.learn_bpe import learn_bpe

    codes = folder.parent / "codes.txt"
    folder.mkdir(parents=True, exist_ok=True)
    every = [w for lang in langs for w in (WORDS[lang] + PEOPLE[lang] + PLACES[lang])]
    with open(codes, "w", encoding="utf-8") as stream:
        learn_bpe([" ".join(every * 3)], stream, 60, min_frequency=2)
    return Tokenizer.create(folder, "subword-nmt", codes, normalization="nfc", pretokenizer="none")


def write_dictionary(path: Path, tokenizer: Tokenizer, langs: tuple[str, ...] = ("xa", "xb")) -> None:
    """Every piece of the world, in the host's format; ``.`` is left out, so that it is unknown."""
    every = [w for lang in langs for w in (WORDS[lang] + PEOPLE[lang] + PLACES[lang])]
    pieces = sorted({piece for word in tokenizer.encode_words(every, langs[0]) for piece in word})
    path.write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")


def write_checkpoint(
    folder: Path, langs: tuple[str, ...] = ("xa", "xb"), arch: str = "xlm_joint_tiny", *flags: str
) -> Path:
    """A randomly initialised checkpoint with everything that belongs beside it; returns its path."""
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_interference

    fairseq_interference.register()
    data = folder / "data"
    tokenizer = write_tokenizer(data / "tokenizer", langs)
    write_dictionary(data / "dict.txt", tokenizer, langs)
    LanguageList(langs).write(data / "languages.txt")
    command = [str(data), "--task", "xlm_masked_lm", "--arch", arch, "--langs", ",".join(langs), "--seed", "1"]
    command += ["--save-dir", str(folder), "--tokens-per-sample", "64", "--encoder-embed-dim", "32"]
    command += ["--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2", *flags]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    task = tasks.setup_task(cfg.task)
    utils.set_torch_seed(1)
    model = task.build_model(cfg.model, from_checkpoint=True)
    save_checkpoint(folder / "checkpoint_last.pt", cfg, model)
    write_companions(folder, LanguageList(langs), data / "dict.txt", data / "tokenizer")
    return folder / "checkpoint_last.pt"


def save_checkpoint(path: Path, cfg: Any, model: Any) -> None:
    """What the host's trainer would write, without an optimizer."""
    import torch
    from omegaconf import OmegaConf

    history = {"criterion_name": "None", "optimizer_name": "None", "lr_scheduler_state": {}, "num_updates": 0}
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": None, "previous_training_time": 1000.0},
        "last_optimizer_state": None,
    }
    torch.save(state, path)


def write_finetuned(folder: Path, pretrained: Path, task: str, labels: tuple[str, ...] = (), *flags: str) -> Path:
    """A checkpoint of a task of fine-tuning with a random head, as a run would leave it; returns its path."""
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    data = folder / "prepared"
    data.mkdir(parents=True)
    if labels:
        (data / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    command = [str(data), "--task", task, "--criterion", task, "--finetune-from-model", str(pretrained), *flags]
    command += ["--arch", "xlm_adpt_tiny", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"]
    command += ["--encoder-attention-heads", "2", "--save-dir", str(folder), "--train-langs", "xa"]
    command += ["--disable-validation"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    made: Any = tasks.setup_task(cfg.task)
    utils.set_torch_seed(1)
    save_checkpoint(folder / "checkpoint_best.pt", cfg, made.build_model(cfg.model))
    made.write_beside(folder)
    return folder / "checkpoint_best.pt"
