"""Which process wrote a state file, and whether it still runs: by pid and start time, as far as it can be seen from here."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROC: Final = Path("/proc")
_STATE, _START_TIME = 0, 19  # fields of /proc/<pid>/stat, counted from the one after the name
_GONE: Final = frozenset("ZX")  # zombies, too: they run nothing


def this_process() -> dict[str, Any]:
    """Who we are, as data.

    Returns:
        host, pid, rank: as in a log line; the rank in torch.distributed's world if RANK is not set.
        start_time: clock ticks after boot, from /proc; None where there is none.
        boot, pid_namespace: in which /proc this pid means something.
        program: the interpreter's path.
    """
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "rank": _rank(),
        "start_time": start_time(pid),
        "boot": _boot(),
        "pid_namespace": _pid_namespace(),
        "program": _program(pid),
    }


def is_running(process: Mapping[str, Any]) -> bool | None:
    """Whether that process runs; None if it cannot be seen from here (another host or container)."""
    if not process.get("boot") or (process["boot"], process.get("pid_namespace")) != (_boot(), _pid_namespace()):
        return None
    pid = process["pid"]
    if start_time(pid) != process.get("start_time"):
        return False
    program = _program(pid)  # a forked child that then ran something else has pid and start time of the child
    return not program or not process.get("program") or program == process["program"]


def start_time(pid: int) -> int | None:
    """When that process was started, in clock ticks after boot; None if it does not run."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # a program's name may contain anything
        return None if fields[_STATE] in _GONE else int(fields[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None


def _rank() -> str:
    rank = os.environ.get("RANK", "")
    distributed = sys.modules.get("torch.distributed")
    try:
        if not rank and distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank = str(distributed.get_rank())
    except Exception:  # noqa: BLE001  # half imported, or being torn down
        return ""
    return rank


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _program(pid: int) -> str:
    try:
        return str((_PROC / str(pid) / "exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""
