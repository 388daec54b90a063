"""Replacing names in modules, and putting the old ones back."""

from __future__ import annotations

from typing import Any, Final

MISSING: Final = object()


class Replacements:
    """Names that were replaced, in order; a context manager that restores them."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`, whether or not there was one."""
        self._before.append((owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, value)

    def replace_existing(self, owner: Any, **values: Any) -> None:
        """Set those names that `owner` has; FlashInfer's releases differ in what a module imports."""
        for name, value in values.items():
            if name in vars(owner):
                self.replace(owner, name, value)

    def restore(self) -> None:
        """Undo everything, last first."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def __enter__(self) -> Replacements:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()
