"""`fi-shim status`: the running processes, from their state files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fi_shim import settings
from fi_shim.patches import PATCHES
from fi_shim.state.prometheus import as_prometheus
from fi_shim.state.reading import LIVE, UNREADABLE, StateFile, read_folder

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.option("--json", "json_output", is_flag=True, help="JSON only.")
@click.option("--prometheus", is_flag=True, help="Prometheus text format, of the processes that run.")
@click.option("--expect", type=click.IntRange(min=0), metavar="N", help="Exit 1 if fewer than N running processes are active.")
@click.option(
    "--applied",
    "patches",
    type=click.Choice([patch.name for patch in PATCHES]),
    multiple=True,
    help="With --expect: count processes in which this patch is applied. May be repeated.",
)
def status(*, json_output: bool, prometheus: bool, expect: int | None, patches: tuple[str, ...]) -> None:
    """What the shim does in the processes that run now, from the files that they keep in FI_SHIM_STATE_DIR."""
    if json_output and prometheus:
        raise click.UsageError("--json and --prometheus exclude each other")
    if patches and expect is None:
        raise click.UsageError("--applied says which processes --expect counts: give --expect N")
    folder = settings.read().state_dir
    if folder is None:
        raise click.UsageError("FI_SHIM_STATE_DIR is not set: set it to one folder, for the engine and for this command")
    try:
        files = read_folder(Path(folder))
    except OSError as error:
        click.echo(f"fi-shim: {folder} cannot be read: {error.strerror}", err=True)
        sys.exit(1)
    counted = [file for file in files if file.active and file.applied(patches)]
    if prometheus:
        click.echo(as_prometheus(files), nl=False)
    else:
        shown = _as_dict(folder, files, len(counted), expect)
        click.echo(json.dumps(shown) if json_output else _as_text(shown))
    if expect is not None and len(counted) < expect:
        condition = f" with {', '.join(patches)} applied" if patches else ""
        click.echo(f"fi-shim: {len(counted)} running processes are active{condition}, {expect} expected", err=True)
        sys.exit(1)


def _as_dict(folder: str, files: Sequence[StateFile], active: int, expected: int | None) -> dict[str, Any]:
    processes = [{"file": str(f.path), "state": f.state, "age_seconds": round(f.age, 1), **f.content} for f in files]
    live = sum(f.state == LIVE for f in files)
    return {"folder": folder, "live": live, "active": active, "expected": expected, "processes": processes}


def _as_text(shown: dict[str, Any]) -> str:
    from tabulate import tabulate

    headers = ("rank", "host", "pid", "state", "shim", "FlashInfer", "patches", "declined", "abstained", "rejected", "drift", "seen")
    rows = [_row(process) for process in shown["processes"]]
    table = tabulate(rows, headers=headers, disable_numparse=True) if rows else f"no state files in {shown['folder']}"
    return f"{table}\n\n{shown['live']} running, {shown['active']} active"


def _row(process: dict[str, Any]) -> tuple[str, ...]:
    seen = f"{process['age_seconds']:.0f} s ago"
    if process["state"] == UNREADABLE:
        return ("", "", "", UNREADABLE, Path(process["file"]).name, "", "", "", "", "", "", seen)
    who, counts = process["process"], process["counts"]
    patches = ", ".join(name if patch["state"] == "applied" else f"{name}: {patch['state']}" for name, patch in process["patches"].items())
    return (
        who["rank"] or "-",
        who["host"],
        str(who["pid"]),
        process["state"],
        "active" if process["active"] else "not active",
        process.get("flashinfer") or "-",
        patches or "-",
        f"{sum(counts['declines'].values()):,}",
        f"{counts['abstains']:,}",
        f"{counts['rejections']:,}",
        f"{counts['drift_events']:,}",
        seen,
    )
