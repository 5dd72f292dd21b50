"""What tasks note of every validation: a line of ``validation.jsonl`` beside the checkpoints."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq.distributed import utils as distributed_utils

from fairseq_interference import validation_log


class LoggedValidation:
    """For tasks with ``cfg.save_dir``: writes down what the first valid subset gave. Place before the host's class.

    Attributes:
        validated_at: the last update that was validated, on every rank.
    """

    cfg: Any
    validated_at: Optional[int] = None
    _log: Optional[Path] = None  # on rank 0
    _logged: Optional[int] = None
    _begun: Optional[tuple[int, float]] = None

    def validation_measures(self) -> Mapping[str, str]:
        """Measures that validation takes of each language, and their units."""
        raise NotImplementedError

    def validation_languages(self) -> Sequence[str]:
        """Languages that are told apart in logs."""
        raise NotImplementedError

    def log_header(self) -> dict[str, Any]:
        """What the first line says of the run, besides languages, measures and seed."""
        return {}

    def begin_log(self, update: int) -> None:
        """Begin ``validation.jsonl``, or go on behind ``update``."""
        if distributed_utils.get_global_rank() != 0 or not self.cfg.save_dir:
            return
        self._log = Path(self.cfg.save_dir) / validation_log.FILE
        units = {validation_log.named(name): unit for name, unit in self.validation_measures().items()}
        header = {"task": self.cfg._name, "languages": list(self.validation_languages()), "measures": units}
        self._logged = validation_log.begin(
            self._log, {**header, "seed": int(self.cfg.seed), **self.log_header()}, update
        )

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Called by the host before a validation."""
        super().begin_valid_epoch(epoch, model)  # type: ignore[misc]
        self._begun = (epoch, time.monotonic())

    def post_validate(self, model: Any, stats: Mapping[str, Any], agg: Any) -> None:
        """Called by the host after each valid subset; the first one counts, once an update."""
        update = self.validated_at = int(stats["num_updates"])
        if self._begun is None or self._log is None or self._logged == update:
            return
        epoch, begin = self._begun
        self._begun, self._logged = None, update
        found = validation_log.line_of(stats, list(self.validation_measures()), self.validation_languages())
        seconds = round(time.monotonic() - begin, 3)
        validation_log.append(self._log, {"update": update, "epoch": epoch, "seconds": seconds, **found})
