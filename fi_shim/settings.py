"""The FI_SHIM_* environment variables, read once into one frozen dataclass."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ARRIVAL_LIMIT_S: Final = 300.0  # below the usual 600 s watchdog, above the skew of weight loading
LONGEST_S: Final = 7 * 24 * 3600.0
ON: Final = frozenset({"1", "true", "on", "yes"})
OFF: Final = frozenset({"0", "false", "off", "no"})
"""What switches say, in any case; fi_shim_plugin.py and launch/site/sitecustomize.py, which must not import this, repeat them."""


@dataclass(frozen=True)
class Settings:
    """What the environment asks for. `sources` maps a field to the variable it came from; a field not in it has its default."""

    enabled: bool | None = None
    """FI_SHIM: None when unset (`import fi_shim` activates, plugins do not), True for a word of ON, False for one of OFF."""
    disable: frozenset[str] = frozenset()
    """FI_SHIM_DISABLE: names of patches to leave out."""
    preflight: str = "probe"
    """FI_SHIM_PREFLIGHT: probe, reserve or off."""
    on_drift: str = "warn"
    """FI_SHIM_ON_DRIFT: what to do where a workspace was allocated otherwise than planned: warn, strict or ignore."""
    vote_timeout: float = ARRIVAL_LIMIT_S
    """FI_SHIM_VOTE_TIMEOUT: seconds to wait for all ranks to arrive."""
    compat: str | None = None
    """FI_SHIM_COMPAT: folder with tables that count before the packaged ones."""
    log: str = "info"
    """FI_SHIM_LOG: debug, info, warning or error."""
    state_dir: str | None = None
    """FI_SHIM_STATE_DIR: folder in which this process keeps a file with its state."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    problems: tuple[str, ...] = field(default=(), compare=False)
    """One sentence for each variable whose value was not understood."""

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Every setting with its value and where that came from, for `status()` and `doctor`."""
        shown: dict[str, dict[str, Any]] = {}
        for name in (f.name for f in fields(self) if f.name not in {"sources", "problems"}):
            value = getattr(self, name)
            shown[name] = {
                "value": sorted(value) if isinstance(value, frozenset) else value,
                "source": self.sources.get(name, "default"),
            }
        return shown


def switched_off(environ: Mapping[str, str]) -> bool:
    """Whether FI_SHIM says that nothing shall be patched."""
    return environ.get("FI_SHIM", "").strip().lower() in OFF


def _switch(text: str) -> bool:
    if text.lower() not in ON | OFF:
        raise ValueError
    return text.lower() in ON


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError
        return text.lower()

    return read


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= LONGEST_S:
        raise ValueError
    return value


# variable -> (field, reader, what is understood)
_VARIABLES: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    "FI_SHIM": ("enabled", _switch, "1, true, on or yes; 0, false, off or no"),
    "FI_SHIM_DISABLE": ("disable", _names, "names of patches, separated by commas"),
    "FI_SHIM_PREFLIGHT": ("preflight", _one_of("probe", "reserve", "off"), "probe, reserve or off"),
    "FI_SHIM_ON_DRIFT": ("on_drift", _one_of("warn", "strict", "ignore"), "warn, strict or ignore"),
    "FI_SHIM_VOTE_TIMEOUT": ("vote_timeout", _seconds, "a positive number of seconds, at most a week"),
    "FI_SHIM_COMPAT": ("compat", str, "a folder"),
    "FI_SHIM_STATE_DIR": ("state_dir", os.path.abspath, "a folder"),
    "FI_SHIM_LOG": ("log", _one_of("debug", "info", "warning", "error"), "debug, info, warning or error"),
}


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of `environ` (default: os.environ). Never raises: what is not understood is in `problems` and the default holds."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    for variable, (name, reader, understood) in _VARIABLES.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        try:
            values[name] = reader(text)
            sources[name] = variable
        except ValueError:
            problems.append(f"{variable}={text!r} is not understood (expected {understood}); the default holds")
    return Settings(**values, sources=sources, problems=tuple(problems))
