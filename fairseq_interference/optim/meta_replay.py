"""The closures of one update's losses, on this worker, and the sums of their gradients over all workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import numpy as np
import torch
from fairseq.optim import AMPOptimizer
from torch import Tensor

from fairseq_interference.errors import UsageError
from fairseq_interference.optim import bilevel

_PARTS = 0x9A27


@dataclass
class MicroBatch:
    """A training micro-batch that has run: its sample, and the generators before its forward pass."""

    sample: dict[str, Any]
    rng: bilevel.RngState
    sample_size: Tensor
    group: int = 0  # parts of one batch have the same
    phi: Optional[dict[int, Tensor]] = None  # what it added to the gradients of language-specific parameters, by id


class Replay:
    """The closures of one update, on this worker, and the sums over all of them."""

    def __init__(
        self,
        owner: Any,
        optimizer: Any,
        model: Any,
        criterion: Any,
        batches: list[MicroBatch],
        update: int,
        present: Sequence[str],
    ) -> None:
        self.owner, self.optimizer, self.model, self.criterion = owner, optimizer, model, criterion
        self.batches, self.chosen, self.update = batches, batches, update
        self.present = [owner.codes.index(code) for code in sorted(present, key=owner.codes.index)]
        self.amp = isinstance(optimizer, AMPOptimizer)
        self.scale = _loss_scale(optimizer)
        self.device = next(model.parameters()).device
        sums = [sum(float(batch.sample_size) for batch in batches), sum(batch.sample["ntokens"] for batch in batches)]
        sums = self._sum(torch.tensor([*sums, owner.uncertain], dtype=torch.float64, device=self.device)).tolist()
        self.sample_size, self.tokens, self.uncertain = sums[0] or 1.0, sums[1], sums[2] > 0
        # the host back-propagates sums and multiplies afterwards, in fp32: otherwise the replay differs by rounding
        self.factor = float(torch.tensor(1.0) / torch.tensor(self.sample_size)) / self.scale
        self.losses: Optional[Tensor] = None
        self.languages_seen = 1
        self.seconds: dict[str, float] = {}
        self._training_part = "cross"
        self._part: tuple[Optional[str], float] = None, 0.0

    def enter(self, part: Optional[str]) -> None:
        """The clock goes on with another part of the step; None stops it. On a GPU parts run into one another."""
        now = time.perf_counter()
        before, since = self._part
        if before is not None:
            self.seconds[before] = self.seconds.get(before, 0.0) + now - since
        self._part = part, now

    def on_masters(self, masters: dict[int, Any]) -> None:
        """Run the passes in fp32: the model's code with the masters in place of its parameters."""
        named = {
            name: masters[id(p)] if id(p) in masters else p.detach().float()  # frozen
            for name, p in self.model.named_parameters()
        }
        self.model, self.amp = _OnMasters(self.model, named), False
        self.factor, self.scale = self.factor * self.scale, 1.0

    # -- over all workers ---------------------------------------------------------------------------------------

    @property
    def _group(self) -> Any:
        return getattr(self.model, "process_group", None)

    def _sum(self, values: Tensor) -> Tensor:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(values, group=self._group)
        return values

    def reduce(self, gradients: list[Tensor]) -> None:
        """Add up the gradients of all workers, in place."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            handles = [torch.distributed.all_reduce(x, group=self._group, async_op=True) for x in gradients]
            for handle in handles:
                handle.wait()

    # -- losses -------------------------------------------------------------------------------------------------

    def _autocast(self) -> Any:
        return torch.autocast("cuda", enabled=self.amp and self.device.type == "cuda")  # as the host's

    def training_losses(self, times: int = 1) -> list[bilevel.Closure]:
        """The chosen losses as the host back-propagates them: sums over predictions, times the loss scale."""
        return [partial(self._training_loss, batch.sample, times) for batch in self.chosen]

    def draw(self, parts: int, seed: int) -> int:
        """Choose one part of each batch for the cross term; returns how many times it is to count.

        Drawn at random, since batches are sorted by length; the same way on every worker.
        """
        groups: dict[int, list[MicroBatch]] = {}
        for batch in self.batches:
            groups.setdefault(batch.group, []).append(batch)
        numbers = np.random.default_rng([seed, _PARTS, self.update]).integers(parts, size=len(groups) + 64)
        self.chosen = [g[int(n)] for g, n in zip(groups.values(), numbers) if int(n) < len(g)]
        return parts

    def phi_gradients(self, phi: Sequence[Any], times: int) -> list[Tensor]:
        """h(theta) of the chosen parts: what each added to the gradients as it ran; reduced."""
        found = []
        for parameter in phi:
            wide = torch.promote_types(parameter.dtype, torch.float32)
            total = torch.zeros_like(parameter, dtype=wide)
            for batch in self.chosen:
                added = (batch.phi or {}).get(id(parameter))
                if added is not None:
                    total.add_(added, alpha=times)
            found.append(total.mul_(self.factor))
        self.reduce(found)
        return found

    def _training_loss(self, sample: dict[str, Any], times: int) -> Tensor:
        self.enter(self._training_part)
        with self._autocast():
            loss: Tensor = self.criterion(self.model, sample)[0]
        return loss * (self.scale * times)

    def predictions(self) -> Tensor:
        """Predictions of each language in this update, on all workers; (L,)."""
        counts = torch.zeros(len(self.owner.codes), device=self.device)
        for batch in self.batches:
            masked = batch.sample["target"].ne(self.pad).sum(1)
            counts.index_add_(0, batch.sample["net_input"]["lang_id"], masked.to(counts))
        return self._sum(counts)

    def language_gradients(self, theta: list[Any]) -> dict[int, list[Tensor]]:
        """Language -> gradient of the mean training loss of its predictions, on all workers, in the order of ids.

        Each takes a pass over its own rows: together about one pass over the update, whatever the number of languages.
        Dropout masks are not those of the update, since the rows lie elsewhere in the batch.
        """
        found = {}
        for language, count in enumerate(self.predictions().tolist()):
            if count == 0:
                continue
            parts = [(rows_of(batch.sample, language), batch.rng) for batch in self.batches]
            parts = [(part, rng) for part, rng in parts if bool(part["target"].ne(self.pad).any())]
            losses: list[bilevel.Closure] = [partial(self._language_loss, part) for part, _ in parts]
            factor = self.factor * self.sample_size / count
            found[language] = bilevel.gradients(losses, theta, [rng for _, rng in parts], factor)
            self.reduce(found[language])
        return found

    def _language_loss(self, sample: dict[str, Any]) -> Tensor:
        with self._autocast():
            losses, _ = self.criterion.losses(self.model, sample)
        scaled: Tensor = losses.sum() * self.scale
        return scaled

    @property
    def pad(self) -> int:
        return int(self.criterion.padding_idx)

    def theta_gradient(self, theta: list[Any]) -> list[Tensor]:
        """Gradient of the update's loss for theta where the parameters are now."""
        self.chosen, self._training_part = self.batches, "theta"
        rng = [batch.rng for batch in self.batches]
        found = bilevel.gradients(self.training_losses(), theta, rng, self.factor)
        self.reduce(found)
        self.enter(None)
        return found

    def validation_losses(self) -> list[bilevel.Closure]:
        """Mean loss of each validation language, 1/L each, whatever its number of tokens."""
        samples, weights = self._validation_samples()
        self.losses = torch.zeros(len(self.owner.codes), dtype=torch.float64, device=self.device)
        return [partial(self._validation_loss, sample, weights) for sample in samples]

    def _validation_samples(self) -> tuple[list[dict[str, Any]], Tensor]:
        provider = self.owner.validation
        assert provider is not None
        wanted = {"all": provider.known, "same": self.present}.get(str(self.owner.cfg.meta_val_langs))
        if wanted is None:
            wanted = [number for number in provider.known if number not in self.present]
        wanted = [number for number in wanted if number in provider.known]
        if not wanted:
            codes = ",".join(self.owner.codes[number] for number in self.present)
            advice = "use --meta-val-langs all, or give these languages text for --meta-val-subset"
            what = "There is no validation text for an update of these languages."
            raise UsageError(what, where="--meta-val-langs", value=codes, next_step=advice)
        rank, world = rank_and_world(self._group)
        rows = max((len(batch.sample["target"]) for batch in self.batches), default=8)
        area = max((batch.sample["target"].numel() for batch in self.batches), default=4096)
        tokens = max(1, int(self.tokens * self.owner.cfg.meta_val_batch_fraction))
        samples = provider.batch(self.update, wanted, tokens, rank, world, rows, area)
        samples = [moved(sample, self.device) for sample in samples]
        predictions = torch.zeros(len(self.owner.codes), device=self.device)
        for sample in samples:
            masked = sample["target"].ne(self.pad).sum(1)
            predictions.index_add_(0, sample["net_input"]["lang_id"], masked.to(predictions))
        self._sum(predictions)
        self.languages_seen = max(1, int((predictions > 0).sum()))  # a very small batch may mask no token of one
        return samples, torch.where(predictions > 0, 1.0 / (predictions * self.languages_seen), 0.0)

    def _validation_loss(self, sample: dict[str, Any], weights: Tensor) -> Tensor:
        self.enter("val")
        with self._autocast():
            losses, languages = self.criterion.losses(self.model, sample)
        weighted = losses * weights[languages]
        assert self.losses is not None
        self.losses.index_add_(0, languages, weighted.detach().double())
        scaled: Tensor = weighted.sum() * (self.scale * self.sample_size)  # what `reduce` takes out again
        return scaled

    def validation_by_language(self) -> dict[int, float]:
        """Language -> mean validation loss at theta', in nats."""
        assert self.losses is not None
        losses = self._sum(self.losses)
        return {number: x * self.languages_seen for number, x in enumerate(losses.tolist()) if x > 0}


def some_rows(sample: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """Rows of a batch: an index or a slice."""
    part: dict[str, Any] = {key: value[chosen] for key, value in sample.items() if torch.is_tensor(value)}
    part["net_input"] = {key: value[chosen] for key, value in sample["net_input"].items()}
    part["nsentences"] = len(part["target"])
    part["ntokens"] = int(part["net_input"]["src_lengths"].sum())
    return {**sample, **part}


def rows_of(sample: dict[str, Any], language: int) -> dict[str, Any]:
    """The rows of one language."""
    return some_rows(sample, (sample["net_input"]["lang_id"] == language).nonzero()[:, 0])


class _OnMasters:
    """A model whose parameters are replaced while it runs; the weights themselves stay where they are."""

    def __init__(self, model: Any, parameters: dict[str, Any]) -> None:
        self.model, self.parameters = model, parameters

    def __call__(self, **inputs: Any) -> Any:
        with _without_checkpointing(self.model):  # which would run layers again when their half weights are back
            return torch.func.functional_call(self.model, self.parameters, kwargs=inputs, tie_weights=True)


@contextmanager
def _without_checkpointing(model: Any) -> Iterator[None]:
    encoder, wanted = model.sentence_encoder, model.sentence_encoder.checkpoint_activations
    encoder.checkpoint_activations = False
    try:
        yield
    finally:
        encoder.checkpoint_activations = wanted


def _loss_scale(optimizer: Any) -> float:
    """The current loss scale: amp's, fp16's, else 1."""
    if isinstance(optimizer, AMPOptimizer):
        return float(optimizer.scaler.get_scale())
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else float(scaler.loss_scale)


def rank_and_world(group: Any = None) -> tuple[int, int]:
    """Number of this worker and how many there are."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(group), torch.distributed.get_world_size(group)


def moved(sample: Any, device: torch.device) -> Any:
    """A batch on another device."""
    if torch.is_tensor(sample):
        return sample.to(device)
    return {name: moved(value, device) for name, value in sample.items()} if isinstance(sample, dict) else sample
