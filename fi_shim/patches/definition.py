"""What a patch is, and the context it is applied in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
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
    """A change to one FlashInfer module.

    `apply(module, context)` replaces attributes through `context.record.replace`; it raises NotNeededError or UnknownCodeError
    where it should not be applied. Anything else it raises is reported as a failure and undone.
    """

    name: str
    module: str
    why: str
    how: str
    upstream: str
    plan: str
    apply: Callable[[ModuleType, Context], str]
    """Returns how the code was recognised, for `status()`."""
