"""What stands for everything that creating a workspace does not need: kernels, tracing, optional packages."""

from __future__ import annotations

from typing import Any


class Inert:
    """Takes any attribute, call, subscript and decoration, and has no value: arithmetic and decisions on it are TypeErrors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name.endswith(("Error", "Exception")):
            return type(name, (Exception,), {})  # `except` needs a class
        return Inert(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it changes nothing."""
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert):
            return args[0]
        return Inert(f"{self._name}()")

    def __getitem__(self, key: Any) -> Inert:
        return Inert(f"{self._name}[]")

    def __or__(self, other: Any) -> Inert:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> Inert:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __bool__(self) -> bool:
        raise TypeError(f"the dry run has no value for {self._name}")

    def __iter__(self) -> Any:
        raise TypeError(f"the dry run has no value for {self._name}")

    def __repr__(self) -> str:
        return f"<{self._name}>"


class StandIn:
    """A module or object with the attributes given; all others are inert."""

    def __init__(self, name: str, /, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["__name__"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(Inert(self.__dict__["__name__"]), name)
