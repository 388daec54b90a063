"""What `fi-shim doctor --spawn` starts: one child process of each kind, to see whether the shim comes along, and by which route."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S: Final = 60.0
SUBPROCESS: Final = "subprocess"

# In the child. It looks for FlashInfer, which is what `fi-shim run` waits for, but imports neither that nor the package.
_LOOK: Final = """
import importlib.util, sys
importlib.util.find_spec("flashinfer")
activation = sys.modules.get("fi_shim.activation")
active = activation is not None and activation.active_settings() is not None
answer = {"active": active, "route": sys.modules["fi_shim.launch.arrival"].route() if active else None}
"""
_ANSWER_BY_PIPE: Final = _LOOK + "pipe.send(answer)"
_ANSWER_BY_PRINT: Final = _LOOK + "import json; print(json.dumps(answer))"


@dataclass(frozen=True)
class Child:
    """What was seen in one child process."""

    kind: str
    """spawn, forkserver or subprocess."""
    active: bool
    route: str | None
    """As `status()["route"]` of the child."""
    detail: str = ""
    """Why there is no answer."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def problem(self) -> str:
        """One sentence on a child without the shim."""
        hint = "; only `fi-shim run` reaches those" if self.kind == SUBPROCESS and not self.detail else ""
        return f"the shim is not active in a {self.kind} child{hint}" + (f": {self.detail}" if self.detail else "")


def look() -> list[Child]:
    """Start the three, one after the other."""
    return [_by_multiprocessing("spawn"), _by_multiprocessing("forkserver"), _by_subprocess()]


def _by_multiprocessing(method: str) -> Child:
    try:
        context: Any = multiprocessing.get_context(method)
        receiving, sending = context.Pipe(duplex=False)
        # A function of ours would bring the package along with it, and so would our own main module.
        with _no_main_module():
            child = context.Process(target=exec, args=(_ANSWER_BY_PIPE, {"pipe": sending}))
            child.start()
        sending.close()
        try:
            answer = receiving.recv() if receiving.poll(LIMIT_S) else None
        finally:
            receiving.close()
            child.kill()
            child.join()
    except Exception as error:  # noqa: BLE001  # a machine on which children do not start is what we are here to report
        return Child(method, active=False, route=None, detail=f"it did not answer: {error!r}")
    if answer is None:
        return Child(method, active=False, route=None, detail=f"no answer within {LIMIT_S:g} s")
    return Child(method, active=answer["active"], route=answer["route"])


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _by_subprocess() -> Child:
    try:
        command = [sys.executable, "-c", _ANSWER_BY_PRINT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)  # noqa: S603  # our own interpreter
        answer = json.loads(done.stdout.splitlines()[-1])
    except Exception as error:  # noqa: BLE001
        return Child(SUBPROCESS, active=False, route=None, detail=f"it did not answer: {error!r}")
    return Child(SUBPROCESS, active=answer["active"], route=answer["route"])
