"""The state files of a folder for people, within LINE characters: a line a process, then what is not applied, and why."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from fi_shim.state.reading import LIVE, UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fi_shim.state.reading import StateFile

LINE: Final = 120
SHORTEST_HOST: Final = 8
_HEADERS: Final = ("rank", "host", "pid", "state", "shim", "FlashInfer", "patches", "declined", "abstained", "rejected", "drift", "seen")
_HOST: Final = _HEADERS.index("host")


def as_text(folder: str, files: Sequence[StateFile], active: int) -> str:
    """All of it; `--json` has what is shortened or left out here. `active`: running processes that count."""
    told = [file for file in files if file.state != UNREADABLE]
    live = [file for file in told if file.state == LIVE]
    parts = [
        _table(told) if told else "" if files else f"no state files in {folder}",
        "\n".join(_wrapped(f"unreadable: {file.path.name}") for file in files if file.state == UNREADABLE),
        _not_applied([file.content for file in live]),
        f"{len(live)} running, {active} active",
    ]
    return "\n\n".join(part for part in parts if part)


def _table(files: Sequence[StateFile]) -> str:
    rows = [list(_HEADERS), *map(_row, files)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest = max(SHORTEST_HOST, LINE - sum(widths) - 2 * (len(widths) - 1) + widths[_HOST])
    for row in rows:
        if len(row[_HOST]) > longest:  # hosts of one deployment differ at the end
            row[_HOST] = ".." + row[_HOST][2 - longest :]
    widths[_HOST] = max(len(row[_HOST]) for row in rows)
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(file: StateFile) -> list[str]:
    process, counts, patches = file.content["process"], file.content["counts"], file.content["patches"]
    return [
        process["rank"] or "-",
        process["host"],
        str(process["pid"]),
        file.state,
        "active" if file.content["active"] else "not active",
        file.content.get("flashinfer") or "-",
        f"{sum(file.applied([name]) for name in patches)} of {len(patches)}",
        f"{sum(counts['declines'].values()):,}",
        f"{counts['abstains']:,}",
        f"{counts['rejections']:,}",
        f"{counts['drift_events']:,}",
        f"{file.age:.0f} s ago",
    ]


def _not_applied(processes: Sequence[Mapping[str, Any]]) -> str:
    """Patches that are not applied in a running process, with those of equal state, reason and processes in one line."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for process in processes:
        for name, patch in process["patches"].items():
            if patch["state"] != "applied":
                where.setdefault((name, patch["state"], str(patch.get("reason") or "")), []).append(_name_of(process["process"]))
    lines: dict[tuple[str, str, str], list[str]] = {}
    for (name, state, reason), names in where.items():
        lines.setdefault(("all" if len(names) == len(processes) else ", ".join(names), state, reason), []).append(name)
    told = [f"{', '.join(names)}: {state} in {whom}" + (f": {reason}" if reason else "") for (whom, state, reason), names in lines.items()]
    return "\n".join(["not applied:", *(textwrap.indent(_wrapped(line), "  ") for line in told)]) if told else ""


def _name_of(process: Mapping[str, Any]) -> str:
    return f"rank {process['rank']}" if process["rank"] else f"pid {process['pid']}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, LINE - 2, subsequent_indent="  ")
