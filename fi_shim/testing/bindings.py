"""The real cuda-python modules: their enums and structs stay real, only the functions are replaced."""

from __future__ import annotations

import functools
import importlib
from typing import Any

Module = Any  # cuda-python ships no types that hold for all of its releases


class Refusal(Exception):  # noqa: N818  (the driver does not err, it refuses)
    """A driver or runtime call that answers with an error code instead of a value.

    Args:
        code: the name of a CUresult, as CUDA_ERROR_INVALID_VALUE. Runtime calls answer with the cudaError of the same number.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@functools.cache
def driver() -> Module:
    """`cuda.bindings.driver`, or `cuda.cuda` of cuda-python before 12.9."""
    return _first_of("cuda.bindings.driver", "cuda.cuda")


@functools.cache
def runtime() -> Module:
    """The module that FlashInfer imports as `cudart`: `cuda.cudart` where it exists, else `cuda.bindings.runtime`."""
    return _first_of("cuda.cudart", "cuda.bindings.runtime")


def _first_of(*names: str) -> Module:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("The simulated CUDA devices need cuda-python's types: pip install cuda-bindings (or cuda-python).")


def result_code(name: str) -> Module:
    """The CUresult of that name; for a cudaError's name, the one with its number."""
    results = driver().CUresult
    return getattr(results, name) if hasattr(results, name) else results(error_number(name))


def error_number(name: str) -> int:
    """The number of a CUresult or cudaError; both number their errors alike."""
    errors = runtime().cudaError_t
    return int(getattr(errors, name) if hasattr(errors, name) else getattr(driver().CUresult, name))
