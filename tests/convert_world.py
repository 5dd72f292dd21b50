"""Small models of other software with random weights, as their makers publish them, and what they compute."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from cases import shake
from tagging_world import PEOPLE, PLACES, WORDS

SIZES = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 4,
    "max_positions": 32,
}
HF_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": 34,
    "layer_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = [
    " ".join(random.Random(n).choices(WORDS["xa"] + WORDS["xb"] + PEOPLE["xa"] + PLACES["xb"], k=6)) for n in range(99)
]


def write_sentencepiece(path: Path, size: int = 50) -> Any:
    """A unigram model in the layout of XLM-R's (``<unk> <s> </s>``, then pieces); returns its processor."""
    import sentencepiece

    path.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=str(path.with_suffix("")), vocab_size=size, minloglevel=2
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def pieces_of(processor: Any) -> list[str]:
    """Pieces behind the special ones, in the order of their ids."""
    return [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]


def write_fairseq(folder: Path, name: str = "model.pt", **options: Any) -> Any:
    """A folder as XLM-R's public one: old ``args`` Namespace; returns the host's model in eval mode."""
    from fairseq.data import Dictionary
    from fairseq.models.roberta import RobertaModel

    processor = write_sentencepiece(folder / "sentencepiece.bpe.model")
    (folder / "dict.txt").write_text("".join(f"{piece} 7\n" for piece in pieces_of(processor)), encoding="utf-8")
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    args = argparse.Namespace(
        arch="roberta_base",
        task="multilingual_masked_lm",
        data="/nowhere",
        criterion="masked_lm",
        **{**SIZES, **options},
    )
    torch.manual_seed(1)
    model = shake(RobertaModel.build_model(args, argparse.Namespace(source_dictionary=dictionary))).eval()
    save_fairseq(folder / name, args, model.state_dict())
    return model


def save_fairseq(path: Path, args: Any, state: dict[str, Any]) -> None:
    history = {
        "criterion_name": "MaskedLmLoss",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": 9,
    }
    content = {
        "args": args,
        "model": state,
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save({**content, "last_optimizer_state": None}, path)


def write_hf(
    folder: Path, kind: str = "XLMRobertaForMaskedLM", safe: bool = True, tie: bool = True, **options: Any
) -> Any:
    """A folder of ``save_pretrained`` with a sentencepiece model; returns the model in eval mode."""
    import transformers

    processor = write_sentencepiece(folder / "sentencepiece.bpe.model")
    family = "Xmod" if kind.startswith("Xmod") else "XLMRoberta"
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": processor.get_piece_size() + 2, **HF_SIZES, "tie_word_embeddings": tie, **options}
    )
    torch.manual_seed(1)
    model = shake(getattr(transformers, kind)(config)).eval()
    model.save_pretrained(folder, safe_serialization=safe)
    return model


def tokens(model_rows: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) ids with padding and ``<mask>``, and the attention mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (9, 4, 7)
    found = torch.full((len(lengths), max(lengths)), 1)
    for row, length in enumerate(lengths):
        found[row, :length] = torch.randint(3, model_rows, (length,), generator=generator)
        found[row, 0], found[row, length - 1] = 0, 2
    found[0, 3] = model_rows - 1
    return found, found.ne(1).long()


def close(ours: torch.Tensor, theirs: torch.Tensor, keep: torch.Tensor, tolerance: float) -> None:
    """Equal to ``tolerance`` where ``keep`` (B, T) is 1."""
    torch.testing.assert_close(ours[keep.bool()], theirs[keep.bool()], rtol=0, atol=tolerance)


@torch.no_grad()
def compare(ours: Any, theirs: Any, lang_id: Any = None) -> None:
    """Every layer's hidden states to 1e-5 and the scores of the masked-LM head to 1e-4, against transformers."""
    ids, mask = tokens(ours.encoder.sentence_encoder.embed_tokens.num_embeddings)
    more = {"lang_ids": lang_id} if type(theirs).__name__.startswith("Xmod") else {}
    found = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True, **more)
    routed = torch.zeros(len(ids), dtype=torch.long) if lang_id is None else lang_id
    scores, extra = ours(ids, lang_id=routed, return_all_hiddens=True)
    close(scores, found.logits, mask, 1e-4)
    states = [state.transpose(0, 1) for state in extra["inner_states"]]
    if ours.encoder.sentence_encoder.layer_norm is not None:
        states[-1] = ours.encoder.sentence_encoder.layer_norm(states[-1])
    assert len(states) == len(found.hidden_states)
    for mine, other in zip(states, found.hidden_states):
        close(mine, other, mask, 1e-5)


OUR_SIZES = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2"]


def write_ours(folder: Path, arch: str = "xlm_joint_tiny", *flags: str, task: str = "", labels: str = "") -> Path:
    """A checkpoint of ours with moved weights, pre-trained (``task`` empty) or with the head of a fine-tuning task."""
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from tagging_world import write_checkpoint

    from fairseq_interference.convert import checkpoint
    from fairseq_interference.data.companions import write_companions

    pretrained = write_checkpoint(folder / "pretrained", ("xa", "xb"), arch, *flags)
    data = folder / "prepared" if task else folder / "pretrained" / "data"
    data.mkdir(exist_ok=True)
    (data / "labels.txt").write_text("".join(f"{label}\n" for label in labels.split(",")), encoding="utf-8")
    command = [str(data), "--task", task or "xlm_masked_lm", "--arch", arch, *OUR_SIZES, "--seed", "1", *flags]
    command += ["--langs", "xa,xb", "--save-dir", str(folder)]
    command += ["--companions", str(pretrained), "--criterion", task, "--train-langs", "xa"] if task else []
    command += ["--max-positions", "64"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    made = tasks.setup_task(cfg.task, from_checkpoint=True)
    torch.manual_seed(1)
    model = shake(made.build_model(cfg.model, from_checkpoint=True))
    checkpoint.save(folder / "checkpoint_best.pt", cfg, model.state_dict(), data)
    if labels:
        made.write_beside(folder)
    else:
        write_companions(folder, made.languages, pretrained.parent / "dict.txt", pretrained.parent / "tokenizer")
    return folder / "checkpoint_best.pt"


def with_sentencepiece(checkpoint: Path, order: str = "same", drop: int = 0) -> None:
    """Give a checkpoint a sentencepiece model; its dictionary names the pieces, in another order or fewer of them."""
    from fairseq_interference.data.companions import write_companions
    from fairseq_interference.data.tokenizer import Tokenizer
    from fairseq_interference.languages import LanguageList

    folder = checkpoint.parent
    processor = write_sentencepiece(folder / "made" / "a.model")
    pieces = pieces_of(processor)
    pieces = {"same": pieces, "reversed": pieces[::-1]}[order][drop:]
    (folder / "made" / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    Tokenizer.create(
        folder / "made" / "tok", "sentencepiece", folder / "made" / "a.model", normalization="nfc", pretokenizer="none"
    )
    rows = len(pieces) + 5
    state = torch.load(checkpoint, weights_only=True)
    generator = torch.Generator().manual_seed(4)
    table = 0.3 * torch.randn(rows, 32, generator=generator)
    state["model"]["encoder.sentence_encoder.embed_tokens.weight"] = table
    state["model"]["encoder.lm_head.weight"] = table
    state["model"]["encoder.lm_head.bias"] = torch.randn(rows, generator=generator)
    torch.save(state, checkpoint)
    write_companions(folder, LanguageList(["xa", "xb"]), folder / "made" / "dict.txt", folder / "made" / "tok")
