"""Where the ledger lives: in this process only (recording), or in a folder that all processes share (see `shared_machine`)."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fi_shim.testing.bindings import Refusal
from fi_shim.testing.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Machine:
    """The ledger and the right to change it; this one is for a single process and gives no descriptors."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self.ledger = Ledger(capacities)
        self.process = 0
        self._threads = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Ledger]:
        """Nobody else reads or writes meanwhile; `ledger` and `process` are current inside."""
        with self._threads:
            if not self.process:
                self.process = 1
                self.post("enter", self.process, os.getpid())
            yield self.ledger

    def post(self, *record: Any) -> None:
        """Apply a record, inside a transaction."""
        self.ledger.apply(record)

    def reclaim(self) -> None:
        """Give back, inside a transaction, what dead processes and closed descriptors held."""

    def export(self, number: int) -> int:  # noqa: ARG002
        """A descriptor that keeps allocation `number` alive, inside a transaction."""
        raise Refusal("CUDA_ERROR_NOT_SUPPORTED")

    def imported(self, descriptor: int) -> int:  # noqa: ARG002
        """The allocation that a descriptor stands for."""
        raise Refusal("CUDA_ERROR_NOT_SUPPORTED")
