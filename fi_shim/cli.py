"""The command line. Every reporting command has --json; exit 0 good, 1 bad news, 2 wrong use."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.version import InvalidVersion, Version
from tabulate import tabulate

import fi_shim
from fi_shim import doctor as doctor_report
from fi_shim.compatibility import CompatibilityError, folders, known_releases
from fi_shim.launch import run as launch
from fi_shim.state.command import status
from fi_shim.workspace.planning import installed_flashinfer
from fi_shim.workspace.planning import plan as make_plan

if TYPE_CHECKING:
    from fi_shim.workspace.sizes import AllocationPlan

as_json = click.option("--json", "json_output", is_flag=True, help="JSON only.")


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """Leaves the judgement to `plan`, so that the command line and Python say the same."""

    name = "integer"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002
        try:
            return int(value)
        except ValueError:
            return value


_NUMBER = _Number()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(fi_shim.__version__, prog_name="fi-shim")
def cli() -> None:
    """Makes FlashInfer's all-reduce-fusion workspaces quiet, exact and hang-free."""


@cli.command()
@click.option("--world-size", type=_NUMBER, required=True, help="Ranks in the group.")
@click.option("--max-token-num", type=_NUMBER, required=True, help="Tokens.")
@click.option("--hidden-dim", type=_NUMBER, required=True, help="Elements a token.")
@click.option("--dtype", required=True, help="A torch dtype's name, such as bfloat16.")
@click.option("--backend", default="trtllm", show_default=True, help="trtllm or mnnvl.")
@click.option("--flashinfer-version", help="A release; default: the installed one.")
@click.option("--all-releases", is_flag=True, help="A table over all known releases.")
@click.option("--allocation-granularity", type=_NUMBER, help="Bytes; default: the device's, else 2 MiB.")
@click.option("--multicast-granularity", type=_NUMBER, help="Bytes; default: the device's, else 512 MiB.")
@click.option("--signal-pad-size", type=_NUMBER, help="Bytes; default: torch's, else 2048.")
@click.option("--confidential-computing", is_flag=True, help="Sizes under confidential computing.")
@click.option("--force-oneshot-support", is_flag=True, help="mnnvl: one-shot buffers at every size.")
@as_json
def plan(*, flashinfer_version: str | None, all_releases: bool, json_output: bool, **arguments: Any) -> None:
    """What a release allocates for a workspace on each rank, to the byte."""
    if all_releases and flashinfer_version is not None:
        raise click.UsageError("--all-releases and --flashinfer-version exclude each other")
    try:
        if all_releases:
            _print_all_releases(arguments, json_output=json_output)
            return
        version = installed_flashinfer() if flashinfer_version is None else flashinfer_version
        _print_plan(version, make_plan(version, **arguments), json_output=json_output)
    except CompatibilityError as error:
        raise SystemExit(_bad_news(f"{error}")) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _print_plan(version: str, planned: AllocationPlan, *, json_output: bool) -> None:
    if json_output:
        click.echo(json.dumps({"flashinfer": version, **_plan_as_dict(planned)}))
        return
    rows = [(a.purpose, a.allocator, f"{a.requested:,}", f"{a.allocated:,}") for a in planned.allocations]
    rows.append(("total", "", "", f"{planned.total_bytes:,}"))
    click.echo(f"FlashInfer {version}, regime {planned.regime}: bytes on each rank\n")
    click.echo(
        tabulate(
            rows,
            headers=("buffer", "allocator", "requested", "allocated"),
            colalign=("left", "left", "right", "right"),
            disable_numparse=True,
        )
    )


def _print_all_releases(arguments: dict[str, Any], *, json_output: bool) -> None:
    plans: dict[str, AllocationPlan | str] = {}
    for version in known_releases():
        try:
            plans[version] = make_plan(version, **arguments)
        except CompatibilityError:
            raise
        except ValueError as error:
            plans[version] = str(error)
    if all(isinstance(planned, str) for planned in plans.values()):
        raise ValueError(next(iter(plans.values())))
    if json_output:
        shown = {v: {"refused": p} if isinstance(p, str) else _plan_as_dict(p) for v, p in plans.items()}
        click.echo(json.dumps(shown))
        return
    rows = [(v, "-", "refused", p, "") if isinstance(p, str) else _row(v, p) for v, p in plans.items()]
    headers = ("FlashInfer", "regime", "allocator", "allocated, in order", "total bytes")
    click.echo(tabulate(rows, headers=headers, colalign=("left", "left", "left", "right", "right"), disable_numparse=True))


def _row(version: str, planned: AllocationPlan) -> tuple[str, ...]:
    sizes = " + ".join(f"{a.allocated:,}" for a in planned.allocations)
    return version, planned.regime, planned.allocations[0].allocator, sizes, f"{planned.total_bytes:,}"


def _plan_as_dict(planned: AllocationPlan) -> dict[str, Any]:
    return {**asdict(planned), "total_bytes": planned.total_bytes}


@cli.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run_(*, command: tuple[str, ...]) -> None:
    """Start an engine with the shim in every Python process: `fi-shim run -- vllm serve ...`."""
    raise SystemExit(launch.run(command))


@cli.command()
@click.option("--spawn", is_flag=True, help="Also start a spawn child, a forkserver child and a plain subprocess, and look there.")
@as_json
def doctor(*, spawn: bool, json_output: bool) -> None:
    """What is, or would be, patched here, and why not."""
    report = doctor_report.examine(children=spawn)
    click.echo(json.dumps(report, default=str) if json_output else doctor_report.as_text(report))
    sys.exit(1 if report["problems"] else 0)


cli.add_command(status)


_source = click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder that contains flashinfer/; default: the installed one.",
)


@cli.command()
@_source
@as_json
def verify(*, source: Path | None, json_output: bool) -> None:
    """Whether the tables still say what a FlashInfer does; 1 on drift, with functions, places and bytes."""
    from fi_shim.drift import identity
    from fi_shim.drift import verify as verification

    try:
        report = verification.verify(source or identity.installed_root())
    except identity.NoSourceError as error:
        if source is not None:
            raise click.UsageError(str(error)) from None
        raise SystemExit(_bad_news(str(error))) from None
    except (CompatibilityError, SyntaxError, UnicodeDecodeError) as error:
        raise SystemExit(_bad_news(str(error))) from None
    click.echo(json.dumps(verification.as_dict(report)) if json_output else verification.as_text(report))
    sys.exit(1 if report.drifted else 0)


@cli.command()
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="The compat folder; default: FI_SHIM_COMPAT, else the packaged one."
)
@_source
@click.option("--release", "version", help="Its version; default: what it says.")
def record(*, output: Path | None, source: Path | None, version: str | None) -> None:
    """Write or update the table of a release, from its own code. New arithmetic is refused: it needs a regime first."""
    from fi_shim.drift import dry_run, identity
    from fi_shim.drift import record as recording

    overlay = os.environ.get("FI_SHIM_COMPAT", "").strip()
    folder = output or (Path(overlay) if overlay else folders("")[-1])
    try:
        root = source or identity.installed_root()
        name = (version or identity.label_of(root)).partition("+")[0]
        if name == identity.UNLABELLED:
            raise click.UsageError(f"{root} does not say its version: give --release")
        (folder / "releases").mkdir(parents=True, exist_ok=True)  # an overlay must be there before it can be read
        click.echo(recording.write(root, str(Version(name)), folder))
    except (identity.NoSourceError, InvalidVersion) as error:
        raise click.UsageError(str(error)) from None
    except (recording.NewArithmeticError, dry_run.DryRunError, CompatibilityError, SyntaxError) as error:
        raise SystemExit(_bad_news(str(error))) from None
    except OSError as error:
        hint = "give --output, or a folder of your own in FI_SHIM_COMPAT"
        raise SystemExit(_bad_news(f"{folder} cannot be written ({error.strerror}): {hint}")) from None


@cli.group(invoke_without_command=True)
@click.pass_context
def demo(context: click.Context) -> None:
    """Real FlashInfer without and with the shim, side by side."""
    if context.invoked_subcommand is None:
        context.invoke(demo_all)


@demo.command("flood")
@as_json
def demo_flood(*, json_output: bool) -> None:
    """An engine's prefill-graph sweep: 28,032 validator calls, most of which do not fit."""
    from fi_shim.demo import flood

    sys.exit(flood.show(json_output=json_output))


@demo.command("hang")
@click.option("--world-size", type=click.IntRange(2, 16), default=4, show_default=True, help="Ranks.")
@as_json
def demo_hang(*, world_size: int, json_output: bool) -> None:
    """Build a workspace with one rank short of memory: without the shim its peers hang."""
    from fi_shim.demo import hang

    sys.exit(hang.show(world_size=world_size, json_output=json_output))


@demo.command("all")
@click.option("--world-size", type=click.IntRange(2, 16), default=4, show_default=True, help="Ranks of the demo hang.")
def demo_all(*, world_size: int = 4) -> None:
    """Every demo, one after the other."""
    from fi_shim.demo import flood, hang

    codes = [flood.show(), hang.show(world_size=world_size)]
    sys.exit(max(codes))


def _bad_news(text: str) -> int:
    click.echo(f"fi-shim: {text}", err=True)
    return 1


def run() -> int:
    """Run with sys.argv. Returns the exit code."""
    try:
        cli.main(prog_name="fi-shim", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0
