"""Options of the bilevel step that the task owns: what it is computed from and how (``--optimizer meta_adapter``)."""

# No postponed annotations here: the host's parser needs the fields' real types.

from dataclasses import dataclass, field, fields
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import OmegaConf

from fairseq_interference.errors import UsageError
from fairseq_interference.optim.bilevel import RULES
from fairseq_interference.optim.rates import Rate

ORDERS = ChoiceEnum(["simultaneous", "paper"])
ESTIMATOR_CHOICES = ChoiceEnum(["auto", "one_sided", "central", "exact"])
RULE_CHOICES = ChoiceEnum(["adam", "sgd", "sgd_rms"])
TERMS = ChoiceEnum(["both", "direct", "cross"])
VAL_SUBSETS = ChoiceEnum(["heldout", "valid"])
VAL_LANGS = ChoiceEnum(["all", "others", "same"])
OPTIMIZER = "meta_adapter"
DEFAULT_HELDOUT = 0.02
assert set(RULE_CHOICES.__members__) == set(RULES)


@dataclass
class MetaOptions(FairseqDataclass):
    """Options of the bilevel step."""

    meta_order: ORDERS = field(  # type: ignore[valid-type]
        default="simultaneous",
        metadata={
            "help": "simultaneous: shared and language-specific parameters step from the same point; paper: the "
            "shared ones after the others, with a gradient of their own"
        },
    )
    meta_estimator: ESTIMATOR_CHOICES = field(  # type: ignore[valid-type]
        default="auto",
        metadata={"help": "of the cross term; auto: one_sided in fp32, central in half precision and with --amp"},
    )
    meta_inner_rule: RULE_CHOICES = field(  # type: ignore[valid-type]
        default="adam", metadata={"help": "inner step: adam (its preconditioner), sgd (the paper), sgd_rms"}
    )
    meta_inner_lr: str = field(
        default="x0.1",
        metadata={
            "help": "inner learning rate: x2 is twice the current rate, 0.01 itself; the default is how much of a "
            "gradient the momentum of Adam's usual beta1 lets through at once (the paper: x1, with sgd)"
        },
    )
    meta_every: int = field(
        default=1,
        metadata={"help": "take the meta step every K updates; in the others language-specific parts wait"},
    )
    meta_radius: Optional[float] = field(
        default=None,
        metadata={
            "help": "radius of the difference, of the norm of the shared parameters (default: 2e-4; half "
            "precision and --amp: 1e-2)"
        },
    )
    meta_terms: TERMS = field(  # type: ignore[valid-type]
        default="both", metadata={"help": "both, or for ablation the direct or the cross term alone"}
    )
    meta_val_subset: VAL_SUBSETS = field(  # type: ignore[valid-type]
        default="heldout",
        metadata={
            "help": "heldout: a slice of the training data that is not trained on; valid: the validation split, "
            "which selects checkpoints as well"
        },
    )
    meta_val_langs: VAL_LANGS = field(  # type: ignore[valid-type]
        default="all",
        metadata={
            "help": "languages of the validation loss; others (than the update's) and same need "
            "--batch-composition single"
        },
    )
    meta_val_batch_fraction: float = field(
        default=1.0, metadata={"help": "size of the validation batch, of the update's batch"}
    )
    meta_cross_batch_fraction: float = field(
        default=1.0,
        metadata={
            "help": "share of the batch that the cross term is estimated from: batches are split into 1/F parts, of "
            "which one is drawn for each (1, 0.5, 0.25 …)"
        },
    )
    meta_heldout_fraction: Optional[float] = field(
        default=None,
        metadata={
            "help": f"share of each language's training blocks that is held out for the meta step (default: "
            f"{DEFAULT_HELDOUT} with --optimizer {OPTIMIZER} and --meta-val-subset heldout, else 0; the other "
            "arms of a study need the same)"
        },
    )
    meta_fd_check: int = field(
        default=0,
        metadata={
            "help": "every N meta steps compare with half the radius, log the relative gap and how much of ||w||^2 is "
            "in its top 0.1 %; 0: never"
        },
    )
    meta_fd_fp32: bool = field(
        default=False,
        metadata={"help": "half precision, --amp: run the meta step's passes in fp32, on the masters (radius 2e-4)"},
    )
    meta_log_conflict: int = field(
        default=0,
        metadata={
            "help": "log the cosine between the languages' gradients for shared parameters every N meta steps (about "
            "a pass over the batch, and their gradients in memory); 0: never"
        },
    )


def optimizer_of(cfg: Any) -> Optional[str]:
    """Name of the run's optimizer; None where the configuration has none (a checkpoint that is only read)."""
    optimizer = _root(cfg, "optimizer")
    name = optimizer.get("_name") if OmegaConf.is_config(optimizer) else optimizer
    return name if isinstance(name, str) else None


def parts(cfg: Any) -> int:
    """Into how many parts a batch is split for the cross term."""
    return round(1 / max(1e-3, float(cfg.meta_cross_batch_fraction)))


def heldout_fraction(cfg: Any) -> float:
    """Share of the training blocks that is held out."""
    if cfg.meta_heldout_fraction is not None:
        return float(cfg.meta_heldout_fraction)
    uses = optimizer_of(cfg) == OPTIMIZER and str(cfg.meta_val_subset) == "heldout"
    return DEFAULT_HELDOUT if uses else 0.0


def out_of_range(cfg: Any) -> list[str]:
    """Options out of range, and options of the bilevel step without it, each naming its flag."""
    wrong = []
    if cfg.meta_every < 1:
        wrong.append(f"--meta-every {cfg.meta_every} (at least 1)")
    for often in ("meta_fd_check", "meta_log_conflict"):
        if getattr(cfg, often) < 0:
            wrong.append(f"--{often.replace('_', '-')} {getattr(cfg, often)} (at least 0)")
    if cfg.meta_radius is not None and not 0 < cfg.meta_radius <= 0.1:
        wrong.append(f"--meta-radius {cfg.meta_radius} (over 0, at most 0.1)")
    if not 0 < cfg.meta_val_batch_fraction <= 4:
        wrong.append(f"--meta-val-batch-fraction {cfg.meta_val_batch_fraction} (over 0, at most 4)")
    if not 0 < cfg.meta_cross_batch_fraction <= 1 or abs(parts(cfg) * cfg.meta_cross_batch_fraction - 1) > 0.02:
        wrong.append(f"--meta-cross-batch-fraction {cfg.meta_cross_batch_fraction} (1, 0.5, 0.33, 0.25 …)")
    if cfg.meta_heldout_fraction is not None and not 0 <= cfg.meta_heldout_fraction <= 0.5:
        wrong.append(f"--meta-heldout-fraction {cfg.meta_heldout_fraction} (0 to 0.5)")
    Rate.parse(cfg.meta_inner_lr, "--meta-inner-lr")
    wrong += _without_use(cfg)
    if str(cfg.meta_val_langs) != "all" and str(cfg.batch_composition) != "single":
        wrong.append(f"--meta-val-langs {cfg.meta_val_langs} (needs --batch-composition single)")
    name = optimizer_of(cfg)
    if name == OPTIMIZER and str(cfg.meta_val_subset) == "heldout" and heldout_fraction(cfg) == 0:
        wrong.append("--meta-heldout-fraction 0 (--meta-val-subset heldout needs some)")
    if name not in (None, OPTIMIZER):
        idle = [option.name for option in fields(MetaOptions) if _differs(cfg, option)]
        wrong += [f"--{flag.replace('_', '-')} (needs --optimizer {OPTIMIZER})" for flag in idle]
    return wrong


def _without_use(cfg: Any) -> list[str]:
    """Options that another one leaves without use."""
    common = _root(cfg, "common")
    low = any(common is not None and common.get(name) for name in ("fp16", "bf16", "amp"))
    if low and str(cfg.meta_estimator) == "one_sided":
        return ["--meta-estimator one_sided (in half precision and with --amp: central, exact or auto)"]
    given = {option.name for option in fields(MetaOptions) if _differs(cfg, option)}
    if str(cfg.meta_terms) == "direct":
        why = "--meta-terms direct"
        idle = {"meta_estimator", "meta_radius", "meta_fd_check", "meta_cross_batch_fraction"}
        if str(cfg.meta_val_langs) == "others":
            idle.add("meta_val_langs")
    elif str(cfg.meta_estimator) == "exact":
        idle, why = {"meta_radius", "meta_fd_check", "meta_cross_batch_fraction"}, "--meta-estimator exact"
    else:
        return []
    return [f"--{name.replace('_', '-')} (no use with {why})" for name in sorted(idle & given)]


def _root(cfg: Any, section: str) -> Any:
    root: Any = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    return None if root is None else root.get(section)


def _differs(cfg: Any, option: Any) -> bool:
    if not option.name.startswith("meta_") or option.name == "meta_heldout_fraction":
        return False
    return str(getattr(cfg, option.name)) != str(option.default)


def check_estimator(cfg: Any, low_precision: bool) -> tuple[str, float]:
    """Estimator and radius for a precision.

    Raises:
        UsageError: an estimator whose error would be rounding divided by the radius.
    """
    estimator = str(cfg.meta_estimator)
    if estimator == "auto":
        estimator = "central" if low_precision else "one_sided"
    if estimator == "one_sided" and low_precision:
        raise UsageError(
            "A one-sided difference in half precision is rounding divided by the radius.",
            where="--meta-estimator",
            value=estimator,
            allowed="central, exact",
            next_step="leave the flag out, or train in fp32",
        )
    coarse = low_precision and not cfg.meta_fd_fp32
    radius = cfg.meta_radius if cfg.meta_radius is not None else (1e-2 if coarse else 2e-4)
    return estimator, float(radius)
