"""The entry points of vLLM (`vllm.general_plugins`) and SGLang (`sglang.srt.plugins`).

A module of its own: engines load the entry points of whatever is installed, and importing the package activates it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

ON: Final = ("1", "true", "on", "yes")  # as in fi_shim/settings.py
OFF: Final = ("0", "false", "off", "no")
_ASKED: Final[set[str]] = set()
"""Which engines have called in this process: engines call again, and what `deactivate()` did in between stands."""


def vllm() -> None:
    """Activate under FI_SHIM=1. Called once or more in each process; never raises."""
    _activate("vllm")


def sglang() -> None:
    """Activate under FI_SHIM=1. Called once in each process, the scheduler's first of all; never raises."""
    _activate("sglang")


def _activate(engine: str) -> None:
    try:
        switch = os.environ.get("FI_SHIM", "").strip().lower()
        if engine in _ASKED or switch in OFF:
            return
        first = not _ASKED
        _ASKED.add(engine)
        if switch in ON:
            _import(engine)
        elif first and "fi_shim" not in sys.modules:
            _say("info", "installed", note="installed, not active; set FI_SHIM=1")
    except Exception as error:  # noqa: BLE001  # the engine must start as without us
        _say("warning", "activation_failed", error=repr(error))


def _import(engine: str) -> None:
    try:
        if "fi_shim" not in sys.modules:
            vars(sys)["_fi_shim_arrival"] = {"route": f"{engine} plugin"}  # read by the import, see fi_shim/launch/arrival.py
        from fi_shim.activation import activate, active_settings
    finally:
        vars(sys).pop("_fi_shim_arrival", None)
    if active_settings() is None:  # whatever settings are in force, somebody chose them
        activate()


def _say(level: str, event: str, **fields: Any) -> None:
    """One line in the package's own way, from its own file, without the package: a look at `log` must not activate anything."""
    try:
        from importlib import util

        package = util.find_spec("fi_shim")
        folder = next(iter(package.submodule_search_locations or ())) if package is not None else ""
        spec = util.spec_from_file_location("fi_shim_plugin_log", f"{folder}/log.py")
        if spec is None or spec.loader is None:
            return
        log: Any = util.module_from_spec(spec)
        spec.loader.exec_module(log)
        threshold, handlers = log.LOGGER.level, list(log.LOGGER.handlers)
        wanted = os.environ.get("FI_SHIM_LOG", "").strip().lower()
        log.configure(wanted if wanted in log.LEVELS else "info")
        try:
            log.event(level, event, **fields)
        finally:
            log.LOGGER.setLevel(threshold)
            log.LOGGER.handlers[:] = handlers
    except Exception:  # noqa: BLE001, S110
        pass
