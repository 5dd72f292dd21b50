"""A checkpoint of ours as transformers' XLM-R or X-MOD: ``config.json``, weights, tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from fairseq_interference.convert import hf_config, hf_files, hf_tokenizer, names
from fairseq_interference.criterions import xlm_nli, xlm_qa, xlm_tagging
from fairseq_interference.errors import CheckpointError, UsageError
from fairseq_interference.loading import Loaded, load
from fairseq_interference.models.xlm import XLMModel
from fairseq_interference.stages import stage

PathLike = Union[str, Path]
MLM = "mlm"
#: head of ours -> what transformers calls a model with it
TASKS = {
    MLM: "MaskedLM",
    xlm_tagging.HEAD: "TokenClassification",
    xlm_qa.HEAD: "QuestionAnswering",
    xlm_nli.HEAD: "SequenceClassification",
}
NEVER = -1e4  # bias of a piece that the dictionary does not have: its probability is 0
KEPT_HERE = ("language_codes", names.VERSION, f"{names.ENCODER}embed_positions._float_tensor")


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: for ``from_pretrained``.
        architecture: class of transformers; None if nothing had to be done.
        notes: what a user should know, in words.
    """

    folder: Path
    architecture: Optional[str] = None
    notes: tuple[str, ...] = ()


def convert(path: PathLike, out: PathLike, head: Optional[str] = None, force: bool = False) -> Exported:
    """Write a folder for ``from_pretrained``.

    Args:
        path: checkpoint of ours, with its companions beside it.
        out: folder to write.
        head: ``mlm``, ``tagging``, ``nli`` or ``qa``; the one that the checkpoint was fine-tuned with if None.
        force: write again if the checkpoint or the head changed.

    Raises:
        CheckpointError: a structure that transformers has no class for; every reason is named.
        UsageError: a head that the checkpoint does not have, or several and none chosen.
    """
    path, out = Path(path), Path(out)
    if not path.is_file():
        raise UsageError("There is no such checkpoint.", where="--checkpoint", value=str(path))
    settings = {"to": "hf", "head": head}
    with stage(out, inputs={"checkpoint": path}, settings=settings, force=force) as folder:
        if folder is None:
            return Exported(out)
        loaded = load(path)
        chosen = choose_head(loaded, head, path)
        config, weights, plan = describe(loaded, chosen, path)
        hf_files.write(folder, config, weights)
        plan.write(folder, config["max_position_embeddings"] - 2)
    return Exported(out, config["architectures"][0], tuple(plan.notes))


def choose_head(loaded: Loaded, head: Optional[str], where: object) -> str:
    """Name of the head to write; see :func:`convert`."""
    model = loaded.model
    if not isinstance(model, XLMModel):
        raise CheckpointError("This is not a model of ours.", where=where, value=type(model).__name__)
    there = [name for name in TASKS if name in model.token_heads or name in model.classification_heads]
    if head is None:
        if len(there) > 1:
            raise UsageError("The checkpoint has several heads.", where="--head", allowed=", ".join([MLM, *there]))
        return there[0] if there else MLM
    if head != MLM and head not in there:
        raise UsageError(
            "The checkpoint has no such head.", where="--head", value=head, allowed=", ".join([MLM, *there])
        )
    return head


def adapter_codes(model: Any) -> list[str]:
    """Languages with adapters in the order of their ids (``shared`` for one that serves all); ``[]`` without."""
    for layer in model.sentence_encoder.layers._modules.values():
        for slot in (layer.attn_adapter, layer.ffn_adapter, layer.layer_adapter):
            if slot is not None:
                return list(slot.adapters.codes)
    return []


def describe(
    loaded: Loaded, head: str, where: object = None
) -> tuple[dict[str, Any], dict[str, Tensor], hf_tokenizer.Plan]:
    """``config.json``, weights in transformers' names, and what becomes of the tokenizer.

    Raises:
        CheckpointError: see :func:`convert`.
    """
    model = loaded.model
    args, codes = hf_config.as_namespace(model.args), adapter_codes(model)
    problems = [*hf_config.config_problems(args, model.options, codes), *_head_problems(model, args, head)]
    problems += _norm_problems(model, codes)
    if problems:
        raise CheckpointError(
            "transformers has no class for this model:\n  - " + "\n  - ".join(problems),
            where=where,
            next_step="use it with fairseq_interference.load, or convert a checkpoint without these parts",
        )
    plan = hf_tokenizer.plan(loaded.tokenizer_dir, loaded.dictionary)
    weights = _reordered({**_encoder(model, head), **_head(model, head)}, plan.order, loaded.dictionary.unk())
    embeddings = weights[f"{names.BASE}embeddings.word_embeddings.weight"]
    positions = weights[f"{names.BASE}embeddings.position_embeddings.weight"]
    config = hf_config.config_of(args, model.options, codes, len(embeddings), len(positions))
    config["architectures"] = [("Xmod" if codes else "XLMRoberta") + "For" + TASKS[head]]
    labels = getattr(loaded.task, "labels", ())
    if head in (xlm_tagging.HEAD, xlm_nli.HEAD):
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    return config, weights, plan


def _head_problems(model: Any, args: Any, head: str) -> list[str]:
    if head == MLM and args.activation_fn != "gelu":
        return [f"--activation-fn {args.activation_fn}: the masked-LM head of transformers has gelu"]
    if head in (xlm_tagging.HEAD, xlm_qa.HEAD) and model.token_heads[head].dense is not None:
        return [f"head {head} with a hidden layer: that of transformers is linear"]
    if head == xlm_nli.HEAD:
        found = model.classification_heads[head].dense
        if args.pooler_activation_fn != "tanh" or found.out_features != args.encoder_embed_dim:
            return [f"head {head}: that of transformers has tanh and a hidden layer of {args.encoder_embed_dim}"]
    return []


def _norm_problems(model: Any, codes: Sequence[str]) -> list[str]:
    """X-MOD shares the layer norm in front of the adapters of a layer."""
    for number, layer in enumerate(model.sentence_encoder.layers._modules.values()):
        slot = layer.layer_adapter
        found = [adapter.norm for _, adapter in slot.adapters.items()] if slot is not None else []
        if any(norm is None for norm in found):
            return []
        for code, norm in zip(codes, found):
            if not torch.equal(norm.weight, found[0].weight) or not torch.equal(norm.bias, found[0].bias):
                return [f"--adapter-layer-norm before: layer {number} of {code} and {codes[0]} differ; X-MOD shares it"]
    return []


def _encoder(model: Any, head: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    strangers = []
    for name, value in model.state_dict().items():
        if name in KEPT_HERE or name.startswith(("token_heads.", "classification_heads.")):
            continue
        if name.startswith(names.LM_HEAD) and (head != MLM or name == names.OUTPUT):
            continue
        theirs = names.adapter_to_hf(name) or names.to_hf(name)
        if theirs is None:
            strangers.append(name)
        else:
            weights[theirs] = value.float()
    if strangers:
        raise CheckpointError("transformers has no place for these weights.", value=", ".join(strangers))
    table = weights[f"{names.BASE}embeddings.word_embeddings.weight"]
    weights[names.BASE + names.TOKEN_TYPES] = table.new_zeros(1, table.size(1))
    return weights


def _head(model: Any, head: str) -> dict[str, Tensor]:
    if head == MLM:
        if not model.args.untie_weights_roberta:
            return {}
        bias = model.encoder.lm_head.bias.detach().float().clone()
        return {"lm_head.decoder.weight": model.encoder.lm_head.weight.detach().float(), "lm_head.decoder.bias": bias}
    if head == xlm_nli.HEAD:
        found, stem = model.classification_heads[head], "classifier."
        return {f"{stem}{name}": value.float() for name, value in found.state_dict().items()}
    stem = "qa_outputs" if head == xlm_qa.HEAD else "classifier"
    linear = model.token_heads[head].out_proj
    return {f"{stem}.weight": linear.weight.detach().float(), f"{stem}.bias": linear.bias.detach().float()}


def _reordered(weights: dict[str, Tensor], order: Optional[Sequence[Optional[int]]], unknown: int) -> dict[str, Tensor]:
    """Rows in the order of the tokenizer's ids; a piece without a row of its own is ``<unk>`` and never predicted."""
    if order is None:
        return weights
    rows = torch.tensor([unknown if row is None else row for row in order])
    absent = torch.tensor([row is None for row in order])
    for name in (f"{names.BASE}embeddings.word_embeddings.weight", "lm_head.decoder.weight"):
        if name in weights:
            weights[name] = weights[name].index_select(0, rows)
    for name in ("lm_head.bias", "lm_head.decoder.bias"):
        if name in weights:
            weights[name] = weights[name].index_select(0, rows).masked_fill(absent, NEVER)
    return weights
