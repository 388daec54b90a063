"""The engines that are installed here, the FlashInfer that each asks for, and combinations that are known to be unsafe."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from fi_shim.engines.sglang_forward import where_declined

if TYPE_CHECKING:
    from collections.abc import Iterable

DISTRIBUTIONS: Final = ("sglang", "vllm", "fastdeploy-gpu", "tensorrt-llm", "tokenspeed")
FLASHINFER: Final = "flashinfer-python"
OUT_OF_REACH: Final = {
    "tensorrt-llm": "builds its workspaces in C++ of its own: there is nothing to patch",
    "tokenspeed": "brings its own copy of FlashInfer's all-reduce: there is nothing to patch",
}

TESTED: Final = {
    "sglang": (
        "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1",
        "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
    ),
    "vllm": (
        "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
        "0.32.0", "0.33.0",
    ),
}  # fmt: skip
"""Engine -> releases whose real modules tests/engines drives, each with the FlashInfer that it pins; oldest first."""


@dataclass(frozen=True)
class Combination:
    """Versions of an engine and of FlashInfer that do not go together; the text says what happens."""

    engine: str
    versions: SpecifierSet
    flashinfer: SpecifierSet
    what: str


COMBINATIONS: Final = (
    Combination(
        "sglang",
        SpecifierSet(">=0.5.12,<0.5.17"),
        SpecifierSet(">=0.6.10,<0.6.15"),
        "this FlashInfer shares memory through torch, whose rendezvous can hang on all ranks (SGLang issue 29073); the probe cannot see that",
    ),
)


@dataclass(frozen=True)
class Engine:
    """One installed engine."""

    name: str
    version: str
    pin: str
    """What its own requirements say of FlashInfer; empty if nothing."""
    pin_holds: bool | None
    """Whether the FlashInfer that is here is what it asks for; None if that cannot be said."""
    tested: bool | None = None
    """Whether it is one of TESTED; None for an engine that no test drives."""
    notes: tuple[str, ...] = field(default=())
    unsafe: tuple[str, ...] = field(default=())


def installed_engines(flashinfer: str | None) -> list[Engine]:
    """Every engine of DISTRIBUTIONS that is installed, from its metadata; none is imported.

    Args:
        flashinfer: the version that is here, or None.
    """
    engines = []
    for name in DISTRIBUTIONS:
        try:
            found = distribution(name)
            version, requirements = found.version, found.requires or []
        except PackageNotFoundError:
            continue
        engines.append(_engine(name, version, requirements, flashinfer))
    return engines


def _engine(name: str, version: str, requirements: Iterable[str], flashinfer: str | None) -> Engine:
    pin = _pin(requirements)
    holds = _holds(pin, flashinfer)
    notes = [OUT_OF_REACH[name]] if name in OUT_OF_REACH else []
    if holds is False:
        notes.append(f"asks for {FLASHINFER}{pin}, {flashinfer} is here: its own size arithmetic is that of another release")
    tested = _is_tested(name, version)
    if tested is False:
        notes.append(f"no test drives {version}; tests drive {TESTED[name][0]} .. {TESTED[name][-1]}")
    if name == "sglang" and (where := where_declined(version)):
        notes.append(where)
    unsafe = [c.what for c in COMBINATIONS if c.engine == name and _contains(c.versions, version) and _contains(c.flashinfer, flashinfer)]
    return Engine(name, version, pin, holds, tested, tuple(notes), tuple(unsafe))


def _is_tested(name: str, version: str) -> bool | None:
    """A local version (+cu130) is the release's."""
    if name not in TESTED:
        return None
    try:
        return Version(version).public in TESTED[name]
    except InvalidVersion:
        return False


def _pin(requirements: Iterable[str]) -> str:
    """The version specifier, the one that holds without extras first."""
    found = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == FLASHINFER and requirement.specifier:
            found.append((requirement.marker is not None and "extra" in str(requirement.marker), str(requirement.specifier)))
    return min(found)[1] if found else ""


def _holds(pin: str, flashinfer: str | None) -> bool | None:
    if not pin or flashinfer is None:
        return None
    return _contains(SpecifierSet(pin), flashinfer)


def _contains(versions: SpecifierSet, version: str | None) -> bool:
    try:
        return version is not None and versions.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
