"""What every simulated driver function has in common: it is counted, can be made to fail, and answers as the bindings do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fi_shim.testing import bindings

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.testing.process import SimulatedProcess

    Method = Callable[..., Any]


class DriverPart:
    """A part of the driver's functions.

    Args:
        process: what the functions act on.
    """

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process


def answers(values: int) -> Callable[[Method], Method]:
    """Make a method that returns a value, or raises Refusal, answer `(CUresult, value ...)` with so many `values`."""

    def decorate(method: Method) -> Method:
        name = method.__name__

        @functools.wraps(method)
        def call(self: DriverPart, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            try:
                self.process.begin(name)
                value = method(self, *args, **kwargs)
            except bindings.Refusal as refusal:
                return (bindings.result_code(refusal.code), *(None,) * values)
            success = bindings.driver().CUresult.CUDA_SUCCESS
            if values == 0:
                return (success,)
            return (success, value) if values == 1 else (success, *value)

        return call

    return decorate
