"""Words, pieces, labels and batches: alignment, unknown pieces, words without pieces, long sentences."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")
from fairseq.data import Dictionary
from tagging_world import LABELS, sentence, write_dictionary, write_prepared, write_tokenizer

from fairseq_interference.data.examples import ExampleDataset
from fairseq_interference.data.prepared import read_labels, read_sentences
from fairseq_interference.data.tagging import IGNORE, WordEncoder, collate, make_examples
from fairseq_interference.errors import DataError, UsageError


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    tokenizer = write_tokenizer(folder / "tokenizer")
    write_dictionary(folder / "dict.txt", tokenizer)
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    return tokenizer, dictionary


def test_first_piece_carries_the_label(world):
    tokenizer, dictionary = world
    encoder = WordEncoder(dictionary, tokenizer, 64)
    words = ["Anna", "quicklyAnna", "."]
    (row,) = encoder.rows(words, "xa")
    pieces = [piece for word in tokenizer.encode_words(words, "xa") for piece in word]
    assert row.tokens.tolist() == [dictionary.bos(), *map(dictionary.index, pieces), dictionary.eos()]
    first = [1]
    for word in tokenizer.encode_words(words, "xa")[:-1]:
        first.append(first[-1] + len(word))
    assert row.columns.tolist() == first and row.words.tolist() == [0, 1, 2]
    assert row.tokens[first[2]] == dictionary.unk()  # "." is not in the dictionary
    (example,) = make_examples([row], [2, 0, 1], 1, 0, separate=True)
    target = collate([example], pad=dictionary.pad())["target"][0].tolist()
    assert [target[i] for i in first] == [2, 0, 1]
    assert sorted(target[i] for i in range(len(target)) if i not in first) == [IGNORE] * (len(target) - 3)


def test_a_word_without_pieces_is_unknown_and_keeps_its_place(world):
    """T1: ``hello O / U+200B O / Delhi B-LOC``."""
    tokenizer, dictionary = world
    words = ["walks", "\u200b", "", "Delhi"]
    assert tokenizer.encode_words(["\u200b"], "xa") in ([[]], [["\u200b"]])
    (row,) = WordEncoder(dictionary, tokenizer, 64).rows(words, "xa")
    assert row.words.tolist() == [0, 1, 2, 3]
    assert row.tokens[row.columns[2]] == dictionary.unk() and row.tokens[row.columns[1]] == dictionary.unk()


def test_special_symbols_in_the_text_are_not_special(world):
    tokenizer, dictionary = world
    (row,) = WordEncoder(dictionary, tokenizer, 64).rows(["<mask>", "<pad>", "</s>", "<s>"], "xa")
    assert len(row.words) == 4
    inside = row.tokens[1:-1].tolist()
    assert not {dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.index("<mask>")} & set(inside)


@pytest.mark.parametrize("limit", [3, 5, 8, 128])
def test_every_word_has_one_place_however_small_the_window(world, limit):
    tokenizer, dictionary = world
    draw = random.Random(limit)
    encoder = WordEncoder(dictionary, tokenizer, limit)
    examples, expected = [], []
    for number in range(20):
        words, labels = sentence("xa", draw)
        words[0] = words[0] * draw.randint(1, 4)  # some words are longer than the window
        ids = [LABELS.index(label) for label in labels]
        rows = encoder.rows(words, "xa")
        assert all(len(row.tokens) <= limit for row in rows)
        assert sorted(torch.cat([row.words for row in rows]).tolist()) == list(range(len(words)))
        examples += make_examples(rows, ids, 0, number % 2, separate=False)
        expected.append(ids)
        apart = make_examples(rows, ids, 0, 0, separate=True)
        assert sorted(torch.cat([e.labels for e in apart]).tolist()) == sorted(ids)
    batch = collate(examples, pad=dictionary.pad())
    words_of = batch["words"]
    assert words_of["label"].tolist() == [label for ids in expected for label in ids]  # sentence by sentence, in order
    assert words_of["count"].tolist() == [len(ids) for ids in expected]
    assert torch.equal(batch["target"][words_of["row"], words_of["column"]], words_of["label"])
    assert batch["sample_size"] == int((batch["target"] != IGNORE).sum()) == sum(map(len, expected))
    assert batch["net_input"]["src_tokens"].shape == batch["target"].shape
    assert len(batch["net_input"]["lang_id"]) == len(batch["target"]) == sum(len(e.rows) for e in examples)


def test_an_entity_at_place_290_is_seen(world):
    """T3: 300 pieces, limit 128."""
    tokenizer, dictionary = world
    words = ["the"] * 300
    words[290] = "Delhi"
    assert sum(len(word) for word in tokenizer.encode_words(words, "xa")) >= 300
    first = dictionary.index(tokenizer.encode_words(["Delhi"], "xa")[0][0])
    labels = [0] * 300
    labels[290] = 1
    encoder = WordEncoder(dictionary, tokenizer, 128)
    rows = encoder.rows(words, "xa")
    (example,) = make_examples(rows, labels, 0, 0, separate=False)
    batch = collate([example], pad=dictionary.pad())
    row, column = batch["words"]["row"][290], batch["words"]["column"][290]
    assert batch["net_input"]["src_tokens"][row, column] == first != dictionary.unk()
    assert batch["target"][row, column] == 1 and (batch["target"] == 1).sum() == 1
    assert batch["target"].shape[1] <= 128


def test_batches_keep_everything_and_change_between_epochs(world):
    import numpy as np
    from fairseq.data import data_utils

    tokenizer, dictionary = world
    encoder, draw = WordEncoder(dictionary, tokenizer, 16), random.Random(0)
    examples = []
    for _ in range(50):
        words, labels = sentence("xb", draw)
        examples += make_examples(encoder.rows(words, "xb"), [0] * len(labels), 0, 0, separate=True)
    dataset = ExampleDataset(examples, partial(collate, pad=dictionary.pad()), shuffle=True)
    assert not dataset.can_reuse_epoch_itr_across_epochs
    orders = []
    for seed in (1, 1, 2):
        with data_utils.numpy_seed(seed):
            indices = dataset.ordered_indices()
        assert sorted(indices.tolist()) == list(range(len(examples)))
        assert (np.diff(dataset.sizes[indices]) >= 0).all()
        orders.append(dataset.batch_by_size(indices, max_tokens=40, required_batch_size_multiple=8))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(i for batch in orders[0] for i in batch) == list(range(len(examples)))
    assert dataset.collater([]) == {}
    assert dataset.collater([dataset[3], dataset[1]])["id"].tolist() == [3, 1]


def test_prepared_files_are_checked_line_by_line(tmp_path):
    root = write_prepared(tmp_path / "panx", {"train": 3})
    assert read_labels(root / "labels.txt") == LABELS
    path = root / "xa" / "train.jsonl"
    assert len(read_sentences(path, LABELS)) == 3
    good = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    for change, message in [
        ({"labels": ["O"]}, "differ in number"),
        ({"labels": ["B-NEW"] * len(good["words"])}, "not in the label file"),
        ({"words": "text"}, "needs a list"),
        ({"labels": [1] * len(good["words"])}, "list of texts"),
    ]:
        path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **change}) + "\n", encoding="utf-8")
        with pytest.raises(DataError, match=message) as caught:
            read_sentences(path, LABELS)
        assert str(caught.value.where).endswith("train.jsonl:2")
    for broken in ("{", "[" * 100_000):
        path.write_text(broken + "\n", encoding="utf-8")
        with pytest.raises(DataError, match="not JSON"):
            read_sentences(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_sentences(path)
    path.write_text(json.dumps({"words": ["a\u2028b", "c"]}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_sentences(path)[0].words == ["a\u2028b", "c"]


@pytest.mark.parametrize("text", ["", "O\nO\n", "O\n\nB-X\n", " O\n"])
def test_label_files_are_checked(tmp_path, text):
    (tmp_path / "labels.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError):
        read_labels(tmp_path / "labels.txt")
    with pytest.raises(DataError, match="no label file"):
        read_labels(Path("nowhere") / "labels.txt")


def test_a_window_without_room_is_refused(world):
    with pytest.raises(UsageError, match="must hold"):
        WordEncoder(world[1], world[0], 2)
