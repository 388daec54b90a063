"""Calls that are to fail: `FI_SHIM_SIMULATE_FAULTS`."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Final

from fi_shim.testing.bindings import Refusal, driver, runtime

KEYS: Final = ("rank", "call", "n", "error", "action")
NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True)
class Fault:
    """One call that fails once.

    Attributes:
        call: name of a driver or runtime function, or `lamport_initialize` for building and launching that kernel.
        n: which call of that function in the process, from 1.
        rank: the process's rank; None: in every process.
        error: name of a CUresult or cudaError, or "exception": the call raises RuntimeError. Empty: it does not fail.
        action: what happens first: "stop" and "kill" send that signal to the own process, "sleep:SECONDS" waits.
    """

    call: str
    n: int = 1
    rank: int | None = None
    error: str = ""
    action: str = ""

    def strike(self) -> None:
        """Do it.

        Raises:
            Refusal: the call is to answer with `error`.
            RuntimeError: `error` is "exception".
        """
        kind, _, seconds = self.action.partition(":")
        if kind == "sleep":
            time.sleep(float(seconds))
        elif kind:
            os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        if self.error == "exception":
            raise RuntimeError(f"Simulated fault: call {self.n} of {self.call} on rank {self.rank} fails")
        if self.error:
            raise Refusal(self.error)


def parse(text: str) -> tuple[Fault, ...]:
    """Read `rank=1,call=cuMemMap,n=2,error=CUDA_ERROR_OUT_OF_MEMORY[;...]`; `action=stop|kill|sleep:SECONDS` with or without an error.

    Raises:
        ValueError: something is not understood; the message names it.
    """
    return tuple(_fault(part.strip()) for part in text.split(";") if part.strip())


def _fault(text: str) -> Fault:
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in KEYS or name in values:
            raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {part!r} in {text!r} is not understood; the keys are {', '.join(KEYS)}")
        values[name] = value
    call, error, action = (values.get(name, "") for name in ("call", "error", "action"))
    if call not in known_calls():
        raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {call or text!r} is not a call that is simulated")
    if not error and not action:
        raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {text!r} says neither error= nor action=")
    if error and error != "exception" and not _is_code(error):
        raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {error!r} is neither an error code of CUDA nor 'exception'")
    if action not in ("", "stop", "kill") and not (action.startswith("sleep:") and NUMBER.fullmatch(action[6:])):
        raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {action!r} is none of stop, kill, sleep:SECONDS")
    rank = _number(values["rank"], 0) if "rank" in values else None
    return Fault(call, _number(values.get("n", "1"), 1), rank, error, action)


def known_calls() -> frozenset[str]:
    """What a fault can name."""
    from fi_shim.testing import driver as cuda_driver
    from fi_shim.testing import kernels
    from fi_shim.testing import runtime as cuda_runtime

    return frozenset({*cuda_driver.FUNCTIONS, *cuda_runtime.FUNCTIONS, kernels.LAMPORT_INITIALIZE})


def _is_code(name: str) -> bool:
    return hasattr(driver().CUresult, name) or hasattr(runtime().cudaError_t, name)


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"FI_SHIM_SIMULATE_FAULTS: {text!r} is not a number from {least}")
    return int(text)
