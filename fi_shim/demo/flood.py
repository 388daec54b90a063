"""The flood: an engine's prefill-graph sweep over a workspace that most shapes do not fit, without and with the shim."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

import click
from tabulate import tabulate

CALLS: Final = 28_032
TIME_LIMIT_S: Final = 240

ENGINE_HINT: Final = """\
To run an engine with the shim, make `import fi_shim` the first line of the script that starts it:

    import fi_shim            # before anything imports flashinfer; FI_SHIM=0 switches it off
    ...                       # then SGLang or vLLM as ever"""


def show(*, json_output: bool = False) -> int:
    """Run both sides in processes of their own and print one table. Returns the exit code."""
    if importlib.util.find_spec("flashinfer") is None or importlib.util.find_spec("torch") is None:
        click.echo("fi-shim demo: needs torch and flashinfer-python; `make demo` in a checkout brings both", err=True)
        return 1
    try:
        without = _run("0", "without the shim", quiet=json_output)
        with_shim = _run("1", "with the shim", quiet=json_output)
    except RuntimeError as error:
        click.echo(f"fi-shim demo: {error}", err=True)
        return 1
    equal = without["answers"] == with_shim["answers"]
    ok = equal and with_shim["log_lines"] == 0
    if json_output:
        keys = ("flashinfer", "calls", "rejected", "log_lines", "seconds", "ns_a_call")
        sides = {name: {key: side[key] for key in keys} for name, side in (("without", without), ("with", with_shim))}
        click.echo(json.dumps({**sides, "answers_equal": equal}))
    else:
        _print(without, with_shim, equal=equal)
    return 0 if ok else 1


def _print(without: dict[str, Any], with_shim: dict[str, Any], *, equal: bool) -> None:
    click.echo(
        f"\nFlashInfer {without['flashinfer']}, TP 4, workspace of 2048 tokens x 2880, {CALLS:,} validator calls for 4 .. 8192 tokens, "
        f"{without['rejected']:,} of which do not fit\n"
    )
    rows = [
        (name, f"{side['log_lines']:,}", f"{side['seconds']:.3f}", f"{side['ns_a_call']:,.0f}", answers)
        for name, side, answers in (
            ("without the shim", without, "-"),
            ("with the shim", with_shim, "yes" if equal else "NO"),
        )
    ]
    headers = ("", "log lines", "seconds", "ns a call", "answers equal")
    click.echo(tabulate(rows, headers=headers, colalign=("left", "right", "right", "right", "left"), disable_numparse=True))
    click.echo(f"\n{ENGINE_HINT}\n")


def _run(switch: str, title: str, *, quiet: bool) -> dict[str, Any]:
    """One side, in a child whose log and standard output go to a file. RuntimeError with the end of that file if it fails."""
    with tempfile.TemporaryDirectory(prefix="fi_shim-demo-") as folder:
        log = Path(folder, "log")
        environ = {**os.environ, "FI_SHIM": switch, "FI_SHIM_LOG": "error"}
        environ.pop("FI_SHIM_DISABLE", None)
        command = [sys.executable, "-m", "fi_shim.demo.flood_sweep", str(CALLS), str(log)]
        errors = Path(folder, "stderr")
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True) as child,  # noqa: S603
        ):
            assert child.stdout is not None
            result = _follow(child.stdout, title, quiet=quiet)
            child.wait(TIME_LIMIT_S)
        if child.returncode or result is None:
            tail = errors.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
            raise RuntimeError(f"the run {title} failed (exit {child.returncode}):\n{tail}")
        return result


def _follow(lines: IO[str], title: str, *, quiet: bool) -> dict[str, Any] | None:
    """Show the child's progress; its last line is the result."""
    from tqdm import tqdm

    result = None
    with tqdm(total=CALLS, desc=f"{title:16}", unit=" calls", disable=quiet, leave=True) as bar:
        for line in lines:
            message = json.loads(line)
            if "done" in message:
                bar.update(message["done"] - bar.n)
            else:
                result = message
    return result
