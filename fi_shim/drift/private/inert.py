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

    def _no_value(self, *_other: Any) -> Any:
        raise TypeError(f"the dry run has no value for {self._name}")

    __bool__ = __iter__ = __len__ = __int__ = __index__ = __float__ = _no_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _no_value
    __mod__ = __rmod__ = __and__ = __rand__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = _no_value

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
