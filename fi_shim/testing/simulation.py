"""Switching the simulated devices on: `FI_SHIM_SIMULATE`, in this process and in all that it starts."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fi_shim import log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fi_shim.testing.installation import Simulation

SWITCH: Final = "FI_SHIM_SIMULATE"
FAULTS: Final = "FI_SHIM_SIMULATE_FAULTS"
STATE: Final = "FI_SHIM_SIMULATE_STATE"
DEVICE_FILES: Final = Path("/dev")


class _Current:
    """What is simulated in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.simulation: Simulation | None = None
        self.why_not = ""


_CURRENT: Final = _Current()


def current() -> Simulation | None:
    """The simulation in this process, or None."""
    return _CURRENT.simulation


def required() -> Simulation:
    """The simulation in this process.

    Raises:
        RuntimeError: there is none.
    """
    if _CURRENT.simulation is None:
        advice = _CURRENT.why_not or f"set {SWITCH}, as {SWITCH}=4x8GiB, before it starts"
        raise RuntimeError(f"No CUDA devices are simulated in this process: {advice}")
    return _CURRENT.simulation


def why_not() -> str:
    """Why the import of fi_shim simulated nothing although FI_SHIM_SIMULATE asked for it; empty: it was not asked, or it does."""
    return "" if _CURRENT.simulation is not None else _CURRENT.why_not


def activate(environ: Mapping[str, str]) -> bool:
    """Put simulated devices under FlashInfer, now or as soon as it is imported, if `environ` asks for it. May be called again.

    Returns:
        Whether this process lives on simulated devices.

    Raises:
        ValueError: a value is not understood; the message names it.
        RuntimeError: a real CUDA device is visible.
        ImportError: a library that the simulation lies under is not installed.
        OSError: the folder of the simulated machine cannot be written.
    """
    text = environ.get(SWITCH, "").strip()
    with _CURRENT.lock:
        if not text or _CURRENT.simulation is not None:
            return _CURRENT.simulation is not None
        from fi_shim.testing import faults, specification
        from fi_shim.testing.installation import Simulation

        devices = specification.parse(text)
        failing = faults.parse(environ.get(FAULTS, ""))
        device = _visible_device(environ)
        if device is not None:
            raise RuntimeError(f"{SWITCH} is set, but there is a real CUDA device, {device}. Hide it: CUDA_VISIBLE_DEVICES=-1")
        folder = _state_folder(environ)
        _CURRENT.simulation = Simulation(devices, failing, folder)
    log.event("warning", "simulated_devices", devices=text, faults=environ.get(FAULTS) or "-", state=folder)
    return True


def activate_or_say_why_not(environ: Mapping[str, str]) -> None:
    """`activate` for an import that must not fail, since a rank without the shim leaves its peers waiting.

    What `activate` raises is told as an error, kept for whoever asks for the simulation, and nothing is simulated.
    """
    try:
        activate(environ)
    except Exception as error:  # noqa: BLE001  # also a missing CUDA runtime, or a folder that cannot be written
        _CURRENT.why_not = str(error) or repr(error)
        log.configure("warning")
        log.event("error", "not_simulated", reason=_CURRENT.why_not)


def _visible_device(environ: Mapping[str, str]) -> Path | None:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
        return None
    return next(iter(sorted(DEVICE_FILES.glob("nvidia[0-9]*"))), None)


def _state_folder(environ: Mapping[str, str]) -> Path:
    """The folder given, else a new one that all processes started from here inherit."""
    given = environ.get(STATE)
    if given:
        return Path(given)
    folder = Path(tempfile.mkdtemp(prefix="fi_shim-simulate-"))
    os.environ[STATE] = str(folder)
    atexit.register(_remove_if_alone, os.getpid(), folder)
    return folder


def _remove_if_alone(pid: int, folder: Path) -> None:
    """At the exit of the process that made the folder; processes that live longer keep it."""
    simulation = _CURRENT.simulation
    if simulation is None or os.getpid() != pid:
        return
    with simulation.machine.transaction():
        alone = simulation.machine.alone()
    if alone:
        shutil.rmtree(folder, ignore_errors=True)
