"""Jobs of a rank that let one call fail while FlashInfer builds, after the vote: the n-th of its kind in that build."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from fi_shim.patches import guarded_build
from fi_shim.patches.guarded_build import GuardedBuild
from fi_shim.seams import driver as seam
from fi_shim.seams.rendezvous import RENDEZVOUS
from fi_shim.seams.sockets import GuardedSocket
from fi_shim.testing import simulation
from fi_shim.testing.faults import Fault
from fi_shim.workspace.ballot.gathering import Gathering

if TYPE_CHECKING:
    from collections.abc import Callable

CODES = {"cuda": "cudaErrorMemoryAllocation", "cu": "CUDA_ERROR_OUT_OF_MEMORY", "lamport_initialize": "CUDA_ERROR_LAUNCH_FAILED"}
SYSTEM_CALLS = ("bind", "connect", "_accept", "sendmsg", "recvmsg")
SYMMETRIC_MEMORY = ("empty", "rendezvous")
OURS = ("gather", "commit")


class _Watch:
    """What the build called so far, besides the driver and the runtime, and what is to fail."""

    def __init__(self) -> None:
        self.installed = False
        self.counts: Counter[str] = Counter()
        self.pending: tuple[str, int, str] | None = None
        self.built: dict[str, int] = {}
        self.grab: tuple[int, int] | None = None
        self.grabbed: list[Any] = []

    def strike(self, name: str, error: Exception) -> None:
        self.counts[name] += 1
        if self.pending is None or self.pending[:2] != (name, self.counts[name]):
            return
        how, self.pending = self.pending[2], None
        strike(how)
        if how in {"code", "exception"}:
            raise error


_watch = _Watch()


def strike(how: str) -> None:
    if how in {"kill", "stop"}:
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def watch_builds() -> None:
    """Count the calls of each build from now on."""
    if _watch.installed:
        return
    _watch.installed = True
    faulty = type("FaultySocket", GuardedSocket.__bases__, {"__slots__": ()})
    for name in SYSTEM_CALLS:
        _wrap(faulty, name, OSError(errno.EMFILE, f"simulated fault of {name.strip('_')}"))
    GuardedSocket.__bases__ = (faulty,)
    symmetric: Any = sys.modules.get("flashinfer.comm.torch_symmetric_memory")
    for name in SYMMETRIC_MEMORY if symmetric is not None else ():
        _wrap(symmetric.symm_mem, name, RuntimeError(f"simulated fault of {name}"))
    _wrap(Gathering, "gather", RuntimeError("simulated fault of gather"))
    _wrap(guarded_build, "commit", RuntimeError("simulated fault of commit"))
    run = GuardedBuild._run

    def watched(self: Any, *arguments: Any) -> Any:
        process = simulation.required().process
        before = Counter(process.counts)
        _watch.counts.clear()
        if _watch.pending is not None and _watch.pending[0] not in {*SYSTEM_CALLS, *SYMMETRIC_MEMORY, *OURS}:
            process.faults = (_fault(before, *_watch.pending),)
        if _watch.grab is not None:
            _grab(*_watch.grab)
            _watch.grab = None
        try:
            return run(self, *arguments)
        finally:
            process.faults = ()
            if _watch.pending is not None and _watch.pending[0] != "commit":
                _watch.pending = None
            _watch.built = dict(Counter(process.counts) - before + _watch.counts)

    GuardedBuild._run = watched  # type: ignore[method-assign]


def _fault(before: Counter[str], call: str, n: int, how: str) -> Fault:
    kind = next(kind for kind in CODES if call.startswith(kind))
    if how in {"kill", "stop"}:
        return Fault(call, before[call] + n, action=how)
    return Fault(call, before[call] + n, error=CODES[kind] if how == "code" else "exception")


def _wrap(owner: Any, name: str, error: Exception) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if name != "connect":
            _watch.strike(name, error)
            return original(*arguments, **keywords)
        original(*arguments, **keywords)  # how often FlashInfer tries in vain depends on the other rank
        return _watch.strike(name, error)

    setattr(owner, name, wrapped)


def fail_in_build(name: str, n: int, how: str) -> None:
    """Let the n-th call of a name fail in the next build: by a code, by an exception, or by the end of the process."""
    _watch.pending = (name, n, how)


def out_of_step() -> bool:
    """Whether torch's rendezvous cannot be used any more in this process."""
    return RENDEZVOUS.out_of_step


def calls_of_build() -> dict[str, int]:
    """What the last build called."""
    return _watch.built


def grab_when_building(device: int, leave: int) -> None:
    """Let somebody else take all memory of a device but `leave` bytes, as soon as the vote is over."""
    _watch.grab = (device, leave)


def let_go() -> None:
    """Give back what was grabbed."""
    while _watch.grabbed:
        simulation.required().driver.cuMemRelease(_watch.grabbed.pop())


def _grab(device: int, leave: int) -> None:
    driver = simulation.required().driver
    free = driver.cuMemGetInfo()[1]
    properties = seam.allocation_properties(driver, device, seam.handle_type(driver, "posix"))
    size = (free - leave) // (2 << 20) * (2 << 20)
    _watch.grabbed.append(seam.checked(driver, "cuMemCreate", size, properties, 0))
