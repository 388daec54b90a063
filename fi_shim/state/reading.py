"""The state files of a folder: which processes run, and what they say of themselves."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fi_shim.state.processes import is_running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

LIVE: Final = "live"
DEAD: Final = "dead"
STALE: Final = "stale"
UNREADABLE: Final = "unreadable"

STALE_AFTER_S: Final = 60.0  # six signs of life that did not come
FORGOTTEN_AFTER_S: Final = 3600.0
"""A process that ended is shown for so long; then whoever looks removes its file. One that never patched anything: STALE_AFTER_S."""


@dataclass(frozen=True)
class StateFile:
    """One file of the folder."""

    path: Path
    state: str
    """live; dead: its process ended; stale: from another host or container, without a sign of life; unreadable."""
    age: float
    """Seconds since its last sign of life."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """What it says, of the right types where the command line reads it; empty if unreadable."""

    @property
    def active(self) -> bool:
        """Whether a running process says that the shim is active in it."""
        return self.state == LIVE and self.content["active"]

    def applied(self, patches: Iterable[str]) -> bool:
        """Whether all of these patches are applied there."""
        return all(self.content["patches"].get(name, {}).get("state") == "applied" for name in patches)


def read_folder(folder: Path) -> list[StateFile]:
    """All state files, in the order of rank, host and pid; what was forgotten long ago is removed. OSError if the folder cannot be read."""
    files = [found for path in sorted(folder.iterdir()) if path.suffix == ".json" and (found := _read(path)) is not None]
    kept = [file for file in files if not _forget(file)]
    return sorted(kept, key=_order)


def _read(path: Path) -> StateFile | None:
    try:
        age = max(0.0, time.time() - path.stat().st_mtime)
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # removed just now
        return None
    except (OSError, ValueError):
        return StateFile(path, UNREADABLE, 0.0)
    if not _is_state(content):
        return StateFile(path, UNREADABLE, age)
    running = is_running(content["process"])
    if running is None:
        return StateFile(path, STALE if age > STALE_AFTER_S else LIVE, age, content)
    return StateFile(path, LIVE if running else DEAD, age, content)


def _is_state(content: Any) -> bool:
    """Whether it has what the command line reads: a newer version's may have more."""
    try:
        process, counts = content["process"], content["counts"]
        votes = counts["votes"]
        numbers = (*(counts[name] for name in ("abstains", "rejections", "drift_events")), *counts["declines"].values())
        vote_numbers = (votes["count"], votes["seconds"], *votes["within"].values(), *map(float, votes["within"]))
        return (
            isinstance(content["active"], bool)
            and isinstance(process["pid"], int)
            and all(isinstance(process[name], str) for name in ("host", "rank"))
            and all(isinstance(patch["state"], str) for patch in content["patches"].values())
            and all(isinstance(number, (int, float)) for number in (*numbers, *vote_numbers))
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _forget(file: StateFile) -> bool:
    patched = file.state in {DEAD, STALE} and any(file.applied([name]) for name in file.content["patches"])
    if file.state not in {DEAD, STALE} or file.age < (FORGOTTEN_AFTER_S if patched else STALE_AFTER_S):
        return False
    with contextlib.suppress(OSError):  # a sidecar may only read
        file.path.unlink()
    return True


def _order(file: StateFile) -> tuple[Any, ...]:
    process = file.content.get("process", {"host": "", "rank": "", "pid": 0})
    rank = process["rank"]
    return (not rank.isdecimal(), int(rank) if rank.isdecimal() else 0, process["host"], process["pid"], file.path.name)
