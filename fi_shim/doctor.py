"""What would be, or is, patched on this machine, and why not: versions, devices, regime, patches, settings."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tabulate import tabulate

from fi_shim import activation, registry
from fi_shim.compatibility import CompatibilityError, check_overlay
from fi_shim.drift import knowledge
from fi_shim.installed_engines import Engine, installed_engines
from fi_shim.launch import children as launch_children
from fi_shim.report import status

COMPANIONS: Final = (
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "cuda-python",
    "cuda-bindings",
    "nvidia-ml-py",
    "apache-tvm-ffi",
)
OWN: Final = ("wrapt", "packaging", "click")
_TROUBLE: Final = frozenset({registry.UNKNOWN_CODE, registry.FAILED, registry.REPLACED})


def examine(*, children: bool = False) -> dict[str, Any]:
    """Import FlashInfer with the shim active and report. Never raises; `problems` lists the bad news, one sentence each.

    Args:
        children: start one of each kind of child process and report whether the shim is active there.
    """
    activation.activate()
    packages = {name: _installed(name) for name in (*OWN, "torch", *COMPANIONS)}
    torch_problem = _import_problem("torch") if packages["torch"] else "torch is not installed"
    flashinfer_problem = None
    if not packages["flashinfer-python"] and importlib.util.find_spec("flashinfer") is None:
        flashinfer_problem = "FlashInfer is not installed: there is nothing to patch"
    elif torch_problem is None:
        flashinfer_problem = _import_problem("flashinfer.comm")
    drift_problem = _drift_problem()
    told = [problem for problem in (torch_problem, flashinfer_problem, drift_problem, *check_overlay(), _not_simulated()) if problem]
    state = status()
    engines = installed_engines(state["flashinfer"])
    seen = launch_children.look() if children else []
    wanted = state["active"] or state["settings"]["enabled"]["value"] is True
    return {
        "python": platform.python_version(),
        "packages": packages,
        "device": {"problem": torch_problem} if torch_problem else _device_facts(),
        **state,
        "engines": [asdict(engine) for engine in engines],
        **({"children": [child.as_dict() for child in seen]} if children else {}),
        "problems": told + _problems(state) + _unsafe(engines) + [child.problem() for child in seen if wanted and not child.active],
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _import_problem(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # a broken library may raise anything, SystemExit included
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"`import {name}` fails: {type(error).__name__}: {error}"
    return None


def _drift_problem() -> str | None:
    """What the nets against drift find, a dry run included where the code is unknown."""
    version = activation.flashinfer_version()
    if version == "unknown":
        return None
    try:
        known = knowledge.knowledge(version)
    except CompatibilityError as error:
        return str(error)
    return known.detail if known.state in {knowledge.UNKNOWN, knowledge.DERIVED_SIZES} else None


def _not_simulated() -> str | None:
    """Why there are no simulated devices although they were asked for."""
    simulation = sys.modules.get("fi_shim.testing.simulation")  # imported where they were
    return f"nothing is simulated: {why}" if simulation is not None and (why := simulation.why_not()) else None


def _device_facts() -> dict[str, Any]:
    """The first CUDA device as torch sees it; CUDA is not initialised for it."""
    import torch

    try:
        if not torch.cuda.is_available():
            return {"devices": 0}
        return {
            "devices": torch.cuda.device_count(),
            "name": torch.cuda.get_device_name(0),
            "capability": torch.cuda.get_device_capability(0),
        }
    except Exception as error:  # noqa: BLE001  # a driver that does not answer is a fact to report
        return {"problem": f"torch.cuda does not answer: {error}"}


def _problems(state: dict[str, Any]) -> list[str]:
    """Bad news in a `status()`."""
    problems = []
    if not state["active"] and state["settings"]["enabled"]["value"] is not False:
        problems.append("the shim could not be activated")
    problems += [
        f"patch {name}: {patch['state']}: {patch['reason']}" for name, patch in state["patches"].items() if patch["state"] in _TROUBLE
    ]
    return problems


def _unsafe(engines: list[Engine]) -> list[str]:
    return [f"{engine.name} {engine.version}: {what}" for engine in engines for what in engine.unsafe]


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    flashinfer = (
        f"{report['flashinfer']}, imported from {_location()}" if "flashinfer" in sys.modules else report["flashinfer"] or "not found"
    )
    versions = [("Python", report["python"])] + [(name, found or "-") for name, found in report["packages"].items()]
    device = ", ".join(f"{key} {value}" for key, value in report["device"].items())
    regime = ", ".join(f"{backend}: {name}" for backend, name in (report["regime"] or {}).items()) or report["drift"]["state"]
    patches = [(name, patch["state"], patch["reason"]) for name, patch in report["patches"].items()]
    settings = [(name, setting["value"], setting["source"]) for name, setting in report["settings"].items()]
    parts = [
        tabulate(versions, tablefmt="plain"),
        f"FlashInfer  {flashinfer}\nregime      {regime}\ndrift       {_drift(report)}\ndevice      {device}",
        tabulate(patches, headers=("patch", "state", "reason"), tablefmt="simple") if patches else "no patches: " + _why_off(report),
        _engines(report["engines"]),
        tabulate(settings, headers=("setting", "value", "source"), tablefmt="simple"),
        *_children(report),
        "\n".join(f"problem: {problem}" for problem in report["problems"]) or "no problems",
    ]
    return "\n\n".join(parts)


def _engines(engines: list[dict[str, Any]]) -> str:
    """Each engine with the FlashInfer that it asks for."""
    if not engines:
        return "no engine found"
    answers = {True: "as asked", False: "another one is here", None: "-"}
    rows = [(e["name"], e["version"], e["pin"] or "-", answers[e["pin_holds"]], "; ".join([*e["unsafe"], *e["notes"]])) for e in engines]
    return tabulate(
        rows, headers=("engine", "version", "asks for FlashInfer", "FlashInfer", "note"), tablefmt="simple", disable_numparse=True
    )


def _children(report: dict[str, Any]) -> list[str]:
    if "children" not in report:
        return []
    rows = [
        (child["kind"], "active" if child["active"] else "not active", child["route"] or child["detail"]) for child in report["children"]
    ]
    return [tabulate(rows, headers=("child process", "shim", "by"), tablefmt="simple")]


def _drift(report: dict[str, Any]) -> str:
    drift = report["drift"]
    told = f"{drift['state']}: {drift['detail']}" if drift.get("detail") else drift["state"]
    return "\n            ".join([told, *drift.get("changes", ())])


def _location() -> str:
    module = sys.modules.get("flashinfer")
    return str(getattr(module, "__file__", None) or "nowhere")


def _why_off(report: dict[str, Any]) -> str:
    return "switched off by FI_SHIM" if report["settings"]["enabled"]["value"] is False else "not active"
