"""What is known of the FlashInfer of this process: a release, the code of one, one that behaves like a known regime, or sizes of its own."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.compatibility import CompatibilityError, Release, UnknownReleaseError, find_release
from fi_shim.drift.creation_run import Outcome
from fi_shim.drift.derived import derived_regime
from fi_shim.drift.dry_run import TIME_LIMIT_S, DryRunError
from fi_shim.drift.fingerprint import file_digest
from fi_shim.drift.fitting import Witness, fitting
from fi_shim.drift.identity import Identity, NoSourceError, identify, installed_root
from fi_shim.drift.once_per_host import once_per_host
from fi_shim.drift.record import Behaviour, handle_rule, observe, regimes_of
from fi_shim.drift.watched import file_of
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.sizes import load_regime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fi_shim.workspace.sizes import Regime

KNOWN: Final = "known release"
SAME_CODE: Final = "same code"
EQUAL: Final = "equal behaviour"  # changed functions, a known regime
DERIVED_SIZES: Final = "derived sizes"
UNKNOWN: Final = "unknown release"
UNREADABLE: Final = "table unreadable"
NOT_RUN: Final = "changed code"  # what it does is found out when a workspace is built


@dataclass(frozen=True)
class Knowledge:
    """How workspaces of this FlashInfer are sized."""

    state: str
    detail: str
    release: Release | None = None
    """Its regimes and rules, under the version that it says it is; None: nothing is known."""
    changes: tuple[str, ...] = ()
    """Changed functions, with their places."""
    derived: Mapping[str, Regime] = field(default_factory=dict)
    """Name in `release` -> regime that no file describes."""

    def required_release(self) -> Release:
        """`release`. UnknownReleaseError says why there is none."""
        if self.release is None:
            raise UnknownReleaseError(self.detail)
        return self.release

    def regime(self, name: str) -> Regime:
        """The regime that `release` names so."""
        if name.startswith(UNKNOWN):
            raise UnknownReleaseError(name)
        return self.derived[name] if name in self.derived else load_regime(name)

    def as_dict(self) -> dict[str, Any]:
        """For `status()`."""
        told: dict[str, Any] = {"state": self.state, "detail": self.detail}
        return {**told, "changes": list(self.changes)} if self.changes else told


class _Memory:
    """What this process found out so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recognised: dict[str, tuple[Knowledge, Identity | None]] = {}
        self.thorough: dict[str, Knowledge] = {}

    def forget(self) -> None:
        """As in a fresh process."""
        with self.lock:
            self.recognised.clear()
            self.thorough.clear()


MEMORY: Final = _Memory()


def at_a_glance(version: str) -> Knowledge:
    """What the version and the files say, without a dry run: milliseconds, once a process. CompatibilityError if a table is wrong."""
    with MEMORY.lock:
        if version in MEMORY.thorough:
            return MEMORY.thorough[version]
        return _recognised_once(version)[0]


def knowledge(version: str) -> Knowledge:
    """All that can be known of the FlashInfer that says it is `version`: with a dry run if its code is unknown, once a process.

    CompatibilityError if a table is wrong. What is found is told once.
    """
    with MEMORY.lock:
        if version not in MEMORY.thorough:
            known, identity = _recognised_once(version)
            if identity is not None and known.state == NOT_RUN:
                known = _by_dry_run(identity)
            MEMORY.thorough[version] = known
            if known.state != KNOWN:
                _tell(version, known)
        return MEMORY.thorough[version]


def _recognised_once(version: str) -> tuple[Knowledge, Identity | None]:
    """With MEMORY's lock held."""
    if version not in MEMORY.recognised:
        MEMORY.recognised[version] = _recognised(version)
    return MEMORY.recognised[version]


def _recognised(version: str) -> tuple[Knowledge, Identity | None]:
    try:
        identity = identify(installed_root(), version)
    except (NoSourceError, OSError, SyntaxError, UnicodeDecodeError) as error:
        return _by_label(version, f"its source cannot be read: {error}"), None
    release = identity.release
    if identity.how == "files" and _same_version(version, release):
        return Knowledge(KNOWN, f"the files are those of {release.version}", release), identity
    if identity.same_code:
        detail = f"says {version}, all that matters is as in {release.version}"
        return Knowledge(SAME_CODE, detail, replace(release, version=version)), identity
    changes = tuple(map(str, identity.changes))
    detail = f"most like {release.version}; {len(changes)} functions differ; decided by a dry run when a workspace is built"
    return Knowledge(NOT_RUN, detail, None, changes), identity


def _by_label(version: str, why: str) -> Knowledge:
    try:
        return Knowledge(KNOWN, f"by its version only: {why}", find_release(version))
    except UnknownReleaseError as error:
        return Knowledge(UNKNOWN, f"{error}; {why}")


def _same_version(version: str, release: Release) -> bool:
    try:
        return find_release(version).version == release.version
    except UnknownReleaseError:
        return False


def _by_dry_run(identity: Identity) -> Knowledge:
    changes = tuple(map(str, identity.changes))
    like = identity.release
    try:
        behaviour = _behaviour(identity.root)
        derived: dict[str, Regime] = {}

        def name_regime(what: str, witnesses: Sequence[Witness]) -> str:
            if failed := next((witness.outcome.failed for witness in witnesses if witness.outcome.failed), ""):
                return f"{UNKNOWN}: {what}: the dry run fails: {failed}"
            names = fitting(witnesses)
            if names:
                return names[0]
            first = witnesses[0]
            confidential = bool(first.request.get("confidential_computing"))
            derived[what] = derived_regime(identity.root, first.entry, confidential_computing=confidential, example=first.outcome)
            return what

        regimes, confidential, rules = regimes_of(behaviour, name_regime)
    except (DryRunError, OSError, CompatibilityError, ValueError) as error:
        return Knowledge(UNKNOWN, f"most like {like.version}, but the dry run fails: {error}", None, changes)
    rules["handle_type"] = handle_rule(identity.root)
    release = Release(identity.label, regimes, confidential, {}, rules, {}, {}, None)
    if unknown := [name for name in regimes.values() if name.startswith(UNKNOWN)]:
        state = UNKNOWN if len(unknown) == len(regimes) else EQUAL
        return Knowledge(state, "; ".join(unknown), release, changes, derived)
    if derived:
        return Knowledge(
            DERIVED_SIZES, f"no regime gives what it allocates for {', '.join(derived)}: sizes by dry runs", release, changes, derived
        )
    shown = ", ".join(f"{backend}: {name}" for backend, name in regimes.items())
    return Knowledge(EQUAL, f"most like {like.version}; a dry run over all shapes equals {shown}", release, changes)


def _behaviour(root: Path) -> Behaviour:
    """A dry run over all shapes: one for all processes of a host that come within two minutes, since no file may keep its result."""

    def work() -> str:
        return json.dumps([[each.entry, each.request, each.outcome.as_json()] for each in observe(root, further=True).witnesses])

    files = sorted((root / "flashinfer" / "comm").glob("*.py"))
    content = [f"{path.name} {file_digest(path)}" for path in [*files, root / file_of("flashinfer.utils")]]
    answer = once_per_host(json.dumps(["dry run", str(root), content]), work, limit_s=TIME_LIMIT_S)
    return Behaviour([Witness(entry, request, Outcome.from_json(outcome)) for entry, request, outcome in json.loads(answer)])


def _tell(version: str, known: Knowledge) -> None:
    if known.state == SAME_CODE:
        log.event("info", "release_recognised", flashinfer=version, detail=known.detail)
    elif known.state in {EQUAL, DERIVED_SIZES}:
        log.event("warning", "drift", flashinfer=version, state=known.state, detail=known.detail, changed="; ".join(known.changes))
        COUNTS.drifted()
    else:
        COUNTS.drifted()
        consequence = "workspaces are built without preflight"
        log.event(
            "warning", "unknown_release", flashinfer=version, detail=known.detail, consequence=consequence, changed="; ".join(known.changes)
        )
