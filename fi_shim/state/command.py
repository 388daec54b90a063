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
from fi_shim.state.reading import LIVE, StateFile, read_folder
from fi_shim.state.text import as_text

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
    """What the shim does in the processes that run now, from the files that they keep in FI_SHIM_STATE_DIR.

    Exit 1 if that folder does not exist or cannot be read.
    """
    if json_output and prometheus:
        raise click.UsageError("--json and --prometheus exclude each other")
    if patches and expect is None:
        raise click.UsageError("--applied says which processes --expect counts: give --expect N")
    folder = settings.read().state_dir
    if folder is None:
        raise click.UsageError("FI_SHIM_STATE_DIR is not set: set it to one folder, for the engine and for this command")
    files, missing = _read(folder)
    counted = [file for file in files if file.active and file.applied(patches)]
    if prometheus:
        click.echo(as_prometheus(files), nl=False)
    else:
        click.echo(json.dumps(_as_dict(folder, files, len(counted), expect)) if json_output else as_text(folder, files, len(counted)))
    if missing and not (prometheus and expect is None):  # metrics of nobody are true, and take the place of older ones
        sys.exit(1)
    if expect is not None and len(counted) < expect:
        condition = f" with {', '.join(patches)} applied" if patches else ""
        click.echo(f"fi-shim: {len(counted)} running processes are active{condition}, {expect} expected", err=True)
        sys.exit(1)


def _read(folder: str) -> tuple[list[StateFile], bool]:
    """The files, and whether the folder is missing: the first active process makes it, so it is bad news, or another folder."""
    try:
        return read_folder(Path(folder)), False
    except FileNotFoundError:
        click.echo(f"fi-shim: {folder} does not exist: no process wrote there. FI_SHIM_STATE_DIR must be the engine's", err=True)
        return [], True
    except OSError as error:
        click.echo(f"fi-shim: {folder} cannot be read: {error.strerror}", err=True)
        sys.exit(1)


def _as_dict(folder: str, files: Sequence[StateFile], active: int, expected: int | None) -> dict[str, Any]:
    processes = [{"file": str(f.path), "state": f.state, "age_seconds": round(f.age, 1), **f.content} for f in files]
    live = sum(f.state == LIVE for f in files)
    return {"folder": folder, "live": live, "active": active, "expected": expected, "processes": processes}
