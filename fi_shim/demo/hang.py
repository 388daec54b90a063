"""The hang: one rank is short of memory while all build a workspace, without and with the shim."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Final

import click
from tabulate import tabulate

PATIENCE_S: Final = 10.0
"""How long peers are given before they count as hanging."""
BACK_S: Final = 1.0
"""With the shim every rank is back so soon after the last has arrived."""
START_LIMIT_S: Final = 120.0
WIDTH: Final = 46


def show(*, world_size: int = 4, json_output: bool = False) -> int:
    """Run both sides and print who came back, after how long, and what each was told. Returns the exit code."""
    if importlib.util.find_spec("flashinfer") is None or importlib.util.find_spec("torch") is None:
        click.echo("fi-shim demo: needs torch and flashinfer-python; `make demo` in a checkout brings both", err=True)
        return 1
    devices = _devices(world_size)
    try:
        sides = {name: _run(world_size, switch, name, devices, quiet=json_output) for name, switch in (("without", "0"), ("with", "1"))}
    except RuntimeError as error:
        click.echo(f"fi-shim demo: {error}", err=True)
        return 1
    ranks = sides["with"]["ranks"]
    ok = all(rank["outcome"] == "WorkspaceDeclined" and rank["seconds"] < BACK_S for rank in ranks)
    if json_output:
        click.echo(json.dumps({"devices": devices, "all_back_with_the_shim": ok, **sides}))
    else:
        _print(sides, devices, ok=ok)
    return 0 if ok else 1


def _devices(world_size: int) -> str:
    """`real` where there is a GPU for each rank, else `simulated`."""
    code = "import torch; print(torch.cuda.device_count())"
    environ = {key: value for key, value in os.environ.items() if key != "FI_SHIM_SIMULATE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)  # noqa: S603
    return "real" if done.stdout.strip().isdigit() and int(done.stdout) >= world_size else "simulated"


def _run(world_size: int, switch: str, name: str, devices: str, *, quiet: bool) -> dict[str, Any]:
    """One side in processes of its own. RuntimeError with what it said if it does not come to a result."""
    environ = {**os.environ, "FI_SHIM": switch, "FI_SHIM_LOG": "error", "GLOO_SOCKET_IFNAME": "lo"}
    for variable in ("FI_SHIM_DISABLE", "FI_SHIM_PREFLIGHT", "FI_SHIM_SIMULATE_FAULTS", "FI_SHIM_SIMULATE_STATE"):
        environ.pop(variable, None)
    if devices == "simulated":
        environ.update(FI_SHIM_SIMULATE=f"{world_size}x4GiB;{world_size - 1}=64MiB", CUDA_VISIBLE_DEVICES="-1")
    if not quiet:
        click.echo(f"{world_size} ranks {name} the shim, rank {world_size - 1} short of memory ...", err=True)
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "fi_shim.demo.hang_side", str(world_size), str(PATIENCE_S), devices]
        try:
            done = subprocess.run(  # noqa: S603
                command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True, check=False, timeout=START_LIMIT_S
            )
            result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            errors.seek(0)
            raise RuntimeError(f"the run {name} the shim failed ({error}):\n{errors.read().strip()[-2000:]}") from None
    return result


def _print(sides: dict[str, Any], devices: str, *, ok: bool) -> None:
    where = "real GPUs" if devices == "real" else "simulated devices, FlashInfer's own code"
    click.echo(
        f"\nFlashInfer {sides['with']['flashinfer']}, {len(sides['with']['ranks'])} ranks on {where}; the last rank is short of memory\n"
    )
    rows = [
        (without["rank"], _told(without), _told(with_shim))
        for without, with_shim in zip(sides["without"]["ranks"], sides["with"]["ranks"], strict=True)
    ]
    click.echo(tabulate(rows, headers=("rank", "without the shim", "with the shim"), maxcolwidths=[None, WIDTH, WIDTH]))
    text = sides["with"]["ranks"][0]["text"]
    click.echo(f"\nWhat every rank was told with the shim:\n\n{text}\n" if ok else "\nNOT every rank was back in time with the shim\n")


def _told(rank: dict[str, Any]) -> str:
    if rank["outcome"] == "hangs":
        return f"hangs (killed {PATIENCE_S:.0f} s after the last rank had arrived)"
    first_line = (rank["text"].splitlines() or [""])[0]
    return f"back after {rank['seconds']:.2f} s: {rank['outcome']}: {first_line}"[:150]
