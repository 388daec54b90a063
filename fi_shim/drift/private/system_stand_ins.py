"""Stand-ins for what reaches out of the process or stays behind in it: files, sockets, threads, loggers, random state, libraries."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os.path
import random
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.private.inert import Inert, StandIn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HOST: Final = "dry-run"
_MAPS: Final = "7f00-7f01 r-xp 00000000 00:00 0 /dry-run/libcudart.so.13\n"
_UNSAFE_CTYPES: Final = (
    "CDLL", "PyDLL", "LibraryLoader", "cdll", "pydll", "pythonapi", "memmove", "memset", "CFUNCTYPE", "PYFUNCTYPE", "string_at",
    "wstring_at", "get_errno", "set_errno",
)  # fmt: skip


class _Logger:
    """Says nothing."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: ARG002, N802
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def _nothing() -> None:
    """What a thread that has run does."""


class _Thread:
    """Runs when it is joined."""

    _run: Callable[[], Any]

    def __init__(self, *, target: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, **_other: Any) -> None:
        self._run = lambda: target(*args, **(kwargs or {}))

    def start(self) -> None:
        """Not yet."""

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002
        run, self._run = self._run, _nothing
        run()


def stand_ins(environment: dict[str, str], runtime_library: Any) -> dict[str, Any]:
    """Dotted name -> stand-in.

    Args:
        environment: what the release sees as os.environ.
        runtime_library: what loading libcudart gives.
    """
    logger = _Logger()
    logging = StandIn("logging", getLogger=lambda *_: logger, DEBUG=10, INFO=20, WARNING=30, ERROR=40, Logger=_Logger)
    for name in ("debug", "info", "warning", "error", "exception", "critical", "log"):
        logging.__dict__[name] = getattr(logger, name)
    warnings = StandIn(
        "warnings",
        warn=logger.warn,
        simplefilter=logger.warn,
        filterwarnings=logger.warn,
        catch_warnings=lambda **_: contextlib.nullcontext([]),
    )
    find = StandIn("importlib.util", find_spec=lambda *_: None)
    operating_system = StandIn(
        "os", environ=environment, getenv=environment.get, path=os.path, sep="/", name="posix", getpid=lambda: 1, getppid=lambda: 1, close=logger.info,
        unlink=logger.info, remove=logger.info, cpu_count=lambda: 1,
    )  # fmt: skip
    lock = SimpleNamespace(acquire=lambda *_: True, release=lambda: None)
    threading = StandIn("threading", Thread=_Thread, Lock=lambda: contextlib.nullcontext(lock), RLock=lambda: contextlib.nullcontext(lock))
    return {
        "logging": logging,
        "warnings": warnings,
        "os": operating_system,
        "os.path": os.path,
        "sys": _system(),
        "ctypes": _ctypes(runtime_library),
        "random": random.Random(0),  # noqa: S311  # its own state, not the process's
        "socket": StandIn("socket", gethostname=lambda: _HOST, getfqdn=lambda: _HOST),
        "platform": StandIn("platform", system=lambda: "Linux", machine=lambda: "x86_64", node=lambda: _HOST, freedesktop_os_release=dict),
        "tempfile": StandIn(
            "tempfile", TemporaryDirectory=lambda *_args, **_kwargs: contextlib.nullcontext("/dry-run"), gettempdir=lambda: "/dry-run"
        ),
        "threading": threading,
        "importlib": StandIn("importlib", util=find),
        "importlib.util": find,
    }


def open_file(name: Any, *_args: Any, **_kwargs: Any) -> Any:
    """`open` inside a dry run: the list of loaded libraries, which early releases read, and nothing else."""
    if str(name) == "/proc/self/maps":
        return io.StringIO(_MAPS)
    raise FileNotFoundError(f"a dry run opens no files: {name}")


def _system() -> Any:
    names = ("version_info", "maxsize", "platform", "byteorder", "version", "implementation")
    return StandIn("sys", modules={}, is_finalizing=lambda: False, argv=[], **{name: getattr(sys, name) for name in names})


def _ctypes(runtime_library: Any) -> Any:
    """Types are the real ones; whatever loads a library or touches memory is not."""
    own = {name: value for name, value in vars(ctypes).items() if name not in _UNSAFE_CTYPES and not name.startswith("_")}
    module = StandIn("ctypes", **own)
    module.__dict__["CDLL"] = lambda name, *_args, **_kwargs: runtime_library if "cudart" in str(name) else Inert(str(name))
    return module
