"""From settings to patched modules: callbacks after FlashInfer's imports, idempotent, never raising into an import or an engine."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Final

from fi_shim import log
from fi_shim import settings as settings_module
from fi_shim.compatibility import CompatibilityError
from fi_shim.importing import PostImportFinder
from fi_shim.launch import spawn
from fi_shim.launch.early_names import EARLY_NAMES, replaced_functions
from fi_shim.patches import PATCHES
from fi_shim.patches.definition import Context
from fi_shim.patches.outside_graphs import DYNAMO, dynamo_is_imported
from fi_shim.registry import (
    APPLIED,
    DISABLED,
    FAILED,
    NOT_NEEDED,
    PENDING,
    REGISTRY,
    UNKNOWN_CODE,
    NotNeededError,
    Record,
    UnknownCodeError,
)
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.planning import installed_flashinfer

if TYPE_CHECKING:
    from types import ModuleType

    from fi_shim.patches.definition import Patch
    from fi_shim.settings import Settings


class _Activation:
    """What is active in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.finder = PostImportFinder()
        self.settings: Settings | None = None
        self.announced = False
        self.late = False
        """Whether FlashInfer was there, wholly or in part, when the shim came: names may have been bound to what it replaces."""
        self.carrier = spawn.Carrier(lambda: self.settings)


_ACTIVATION: Final = _Activation()


def active_settings() -> Settings | None:
    """The settings in force, or None while the shim is not active."""
    return _ACTIVATION.settings


def activate(settings: Settings | None = None) -> None:
    """Patch FlashInfer, now or as soon as it is imported. Idempotent; never raises.

    Args:
        settings: None reads the FI_SHIM_* variables. With other settings than those in force, the shim starts anew.
    """
    try:
        with _ACTIVATION.lock:
            _activate(settings_module.read() if settings is None else settings)
    except Exception as error:  # noqa: BLE001  # the promise: FlashInfer then runs as without us
        with contextlib.suppress(Exception):
            log.event("warning", "activation_failed", error=repr(error))


def _activate(settings: Settings) -> None:
    if settings == _ACTIVATION.settings:
        return
    if _ACTIVATION.settings is not None:
        deactivate()
    if settings.enabled is False:
        return
    _retire_earlier_copies()
    log.configure(settings.log)
    _tell_what_is_not_understood(settings)
    _ACTIVATION.settings = settings
    _ACTIVATION.announced = False
    _ACTIVATION.late = False
    _begin_records(settings)
    _ACTIVATION.finder.watch(DYNAMO, dynamo_is_imported)
    for module_name in dict.fromkeys(name for patch in PATCHES for name in patch.modules):
        patches = tuple(patch for patch in PATCHES if module_name in patch.modules)
        _ACTIVATION.finder.watch(module_name, functools.partial(_on_import, module_name, patches))
    _ACTIVATION.carrier.begin()
    _ACTIVATION.finder.watch(spawn.MODULE, _ACTIVATION.carrier.install)
    if "flashinfer" in sys.modules:
        _ACTIVATION.late = True  # from here on also for modules that are half imported now
        with REGISTRY.lock:
            EARLY_NAMES.repoint(REGISTRY.records.values())
    if settings.state_dir is not None:
        from fi_shim.state.writing import STATE_FILE

        STATE_FILE.open(settings.state_dir)


def _begin_records(settings: Settings) -> None:
    for patch in PATCHES:
        record = REGISTRY.records.setdefault(patch.name, Record(patch.name, tuple(patch.modules), patch.why))
        record.state, record.reason = PENDING, f"{patch.optional or 'FlashInfer'} is not imported yet"
        record.waiting_for = set(patch.modules)
        if patch.name in settings.disable:
            record.state, record.reason = DISABLED, "FI_SHIM_DISABLE names it"


def _tell_what_is_not_understood(settings: Settings) -> None:
    for problem in settings.problems:
        log.event("warning", "setting_not_understood", problem=problem)
    for name in sorted(settings.disable - {patch.name for patch in PATCHES}):
        log.event("warning", "unknown_patch", name=name, known=",".join(patch.name for patch in PATCHES))


def _retire_earlier_copies() -> None:
    """A package that was imported anew must not patch what its former self has patched."""
    for finder in list(sys.meta_path):
        if finder is not _ACTIVATION.finder and type(finder).__module__ == PostImportFinder.__module__:
            retire = getattr(finder, "retire", None)
            if retire is not None and getattr(retire, "__name__", "") == deactivate.__name__:
                retire()


def deactivate() -> None:
    """Restore every original object. What somebody else wrapped stays in place, without effect, and `status()` names it.

    A graph that torch.compile made of a rejection is compiled anew at its next call, then with FlashInfer's own validator, whose
    rejections cannot be traced: under fullgraph=True that call raises torch's own error.
    """
    with _ACTIVATION.lock, REGISTRY.lock:
        _ACTIVATION.finder.forget()
        if _ACTIVATION.settings is None:
            return
        watched, _ACTIVATION.settings = _ACTIVATION.settings.state_dir is not None, None
        _ACTIVATION.carrier.remove()
        _restore(*reversed(REGISTRY.records.values()))  # what was put on top goes first
        for record in reversed(REGISTRY.records.values()):
            if record.points:
                log.event("warning", "not_restored", patch=record.name, reason=record.reason)
        if watched:
            from fi_shim.state.writing import STATE_FILE

            STATE_FILE.close()
        log.event("info", "inactive")
        log.release()


_ACTIVATION.finder.retire = deactivate


def _restore(*records: Record) -> None:
    """Undo patches, and what names of other modules were pointed to."""
    replaced = replaced_functions(records)
    for record in records:
        record.restore()
    EARLY_NAMES.give_back(replaced)


def _on_import(module_name: str, patches: tuple[Patch, ...], module: ModuleType) -> None:
    """After FlashInfer's module has run. Nothing may escape from here: it would break the user's import."""
    try:
        with REGISTRY.lock:
            settings = _ACTIVATION.settings
            if settings is None:
                return
            for patch in patches:
                _apply(patch, module_name, module, settings)
            if _ACTIVATION.late:
                EARLY_NAMES.repoint(REGISTRY.records.values())
            _announce()
            _announce_engine(module_name, patches)
        COUNTS.publish()
    except Exception as error:  # noqa: BLE001
        with contextlib.suppress(Exception):
            log.event("warning", "patching_failed", module=module_name, error=repr(error))


def _apply(patch: Patch, module_name: str, module: ModuleType, settings: Settings) -> None:
    record = REGISTRY.records[patch.name]
    if record.state == DISABLED and not patch.stays_when_disabled:
        return
    if record.state not in {PENDING, APPLIED, DISABLED}:  # another of its modules was not as expected
        return
    try:
        recognised = patch.modules[module_name](module, Context(settings, record))
        record.waiting_for.discard(module_name)
        record.switch.on = True
        if record.state == PENDING and not record.waiting_for:
            record.state, record.reason = APPLIED, recognised
        return
    except NotNeededError as error:
        state, reason = NOT_NEEDED, str(error)
    except UnknownCodeError as error:
        state, reason = UNKNOWN_CODE, str(error)
    except Exception as error:  # noqa: BLE001  # one patch's fault must not cost the others
        state, reason = FAILED, repr(error)
    _restore(record)
    record.state, record.reason = state, reason
    if state != NOT_NEEDED:
        log.event("warning", "patch_not_applied", patch=patch.name, state=state, reason=reason, flashinfer=flashinfer_version())


def _announce() -> None:
    """One line a process, when FlashInfer is there and nothing is pending any more."""
    states = {patch.name: REGISTRY.records[patch.name].state for patch in PATCHES if not patch.optional}
    if _ACTIVATION.announced or PENDING in states.values():
        return
    _ACTIVATION.announced = True
    patches = ",".join(name for name, state in states.items() if state == APPLIED) or "none"
    log.event("info", "active", flashinfer=flashinfer_version(), patches=patches)
    _tell_what_is_known()


def _announce_engine(module_name: str, patches: tuple[Patch, ...]) -> None:
    """One line for each import of an engine's module that was patched."""
    applied = [patch.name for patch in patches if patch.optional and REGISTRY.records[patch.name].state == APPLIED]
    if applied:
        log.event("info", "engine_patched", module=module_name, patches=",".join(applied))


def _tell_what_is_known() -> None:
    """Whether the tables describe the FlashInfer that is imported; changed code is looked into when a workspace is built."""
    from fi_shim.drift import knowledge

    version = flashinfer_version()
    try:
        known = knowledge.at_a_glance(version)
        if known.state == knowledge.NOT_RUN:
            log.event("warning", "changed_code", flashinfer=version, detail=known.detail, changed="; ".join(known.changes))
        else:
            knowledge.knowledge(version)
    except CompatibilityError as error:
        log.event("warning", "compat_unreadable", error=str(error))


def flashinfer_version() -> str:
    """Version of the FlashInfer that is imported, as far as it says one."""
    version = getattr(sys.modules.get("flashinfer"), "__version__", None)
    if version:
        return str(version)
    try:
        return installed_flashinfer()
    except ValueError:
        return "unknown"
