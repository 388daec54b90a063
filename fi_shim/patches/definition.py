"""What a patch is, and the context it is applied in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from fi_shim.registry import Record
    from fi_shim.settings import Settings


@dataclass(frozen=True)
class Context:
    """What a patch may ask while it is applied."""

    settings: Settings
    record: Record


@dataclass(frozen=True)
class Patch:
    """A change to FlashInfer or to an engine, in one module or in several.

    Each function of `modules` is called with its module and a context, after the module's import. It replaces attributes through `context.record.replace`; it raises NotNeededError or UnknownCodeError
    where it should not be applied. Anything else it raises is reported as a failure and undone.
    """

    name: str
    modules: Mapping[str, Callable[[ModuleType, Context], str]]
    """Defining module -> what to do there; returns how the code was recognised, for `status()`."""
    why: str
    how: str
    upstream: str
    plan: str
    stays_when_disabled: bool = False
    """Applied even if FI_SHIM_DISABLE names it, because peers must hear that it is off."""
    optional: str = ""
    """Whose modules these are, where they may never be imported: an engine's, or some that FlashInfer loads on demand."""
