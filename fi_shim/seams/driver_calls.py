"""The CUDA driver and runtime as FlashInfer meets them during a build: each call is noted, so that it can be undone."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import wrapt

from fi_shim.seams.window import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.seams.building import Building

SUCCESS: Final = 0


class DriverStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """A module of driver bindings; its functions (`cu...`) go through the calling thread's build."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__wrapped__, name)
        build = current()
        if build is None or not name.startswith("cu") or not callable(value):
            return value
        return functools.partial(_call, build, self.__wrapped__, name)


def _call(build: Building, driver: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    code = driver.CUresult(SUCCESS)
    if build.reserve is not None and not kwargs:
        if name == "cuMemCreate" and (handle := build.reserve.serve(*args)) is not None:
            build.journal.succeeded(name)
            _created(build, driver, args, handle)
            return code, handle
        if name == "cuMemRelease" and build.reserve.take_back(args[0]):
            build.journal.gave_back("handle", int(args[0]))
            return (code,)
    try:
        answer = getattr(driver, name)(*args, **kwargs)
    except Exception as error:
        build.journal.failed(name, f"{name}: {error}")
        raise
    if name == "cuMemCreate" and _is_out_of_memory(answer) and build.reserve is not None and build.reserve.release():
        answer = driver.cuMemCreate(*args, **kwargs)  # what was kept was of another kind than FlashInfer wants, and took the place
    if int(answer[0]) != SUCCESS:
        build.journal.failed(name, f"{name} answers {getattr(answer[0], 'name', answer[0])}")
        return answer
    build.journal.succeeded(name)
    if (note := _NOTES.get(name)) is not None:
        note(build, driver, args or tuple(kwargs.values()), answer[1] if len(answer) > 1 else None)
    return answer


def _is_out_of_memory(answer: Any) -> bool:
    return getattr(answer[0], "name", "") == "CUDA_ERROR_OUT_OF_MEMORY"


def _created(build: Building, driver: Any, args: Any, handle: Any) -> None:
    build.journal.took("handle", int(handle), lambda: driver.cuMemRelease(handle), allocated=int(args[0]))


def _taken_handle(build: Building, driver: Any, _args: Any, handle: Any) -> None:
    build.journal.took("handle", int(handle), lambda: driver.cuMemRelease(handle))


def _exported(build: Building, driver: Any, _args: Any, shareable: Any) -> None:  # noqa: ARG001
    if isinstance(shareable, int):  # a file descriptor; a fabric handle needs no closing
        build.journal.took_descriptor(shareable)


def _reserved(build: Building, driver: Any, args: Any, address: Any) -> None:
    build.journal.took("reservation", int(address), lambda: driver.cuMemAddressFree(address, args[0]))


def _mapped(build: Building, driver: Any, args: Any, _answer: Any) -> None:
    address, size = args[0], args[1]
    build.journal.took("mapping", int(address), lambda: driver.cuMemUnmap(address, size))


def _allocated(build: Building, driver: Any, _args: Any, address: Any) -> None:
    build.journal.took("linear", int(address), lambda: driver.cuMemFree(address))


def _given_back(kind: str) -> Callable[..., None]:
    return lambda build, _driver, args, _answer: build.journal.gave_back(kind, int(args[0]))


def _all_devices_added(build: Building, _driver: Any, _args: Any, _answer: Any) -> None:
    """What FlashInfer does next waits inside the driver until all ranks have come so far: wait where it can be ended."""
    build.barrier("multicast device added")


_NOTES: Final[dict[str, Callable[..., None]]] = {
    "cuMemCreate": _created,
    "cuMulticastCreate": _taken_handle,
    "cuMemImportFromShareableHandle": _taken_handle,
    "cuMemRelease": _given_back("handle"),
    "cuMemExportToShareableHandle": _exported,
    "cuMemAddressReserve": _reserved,
    "cuMemAddressFree": _given_back("reservation"),
    "cuMemMap": _mapped,
    "cuMemUnmap": _given_back("mapping"),
    "cuMemAlloc": _allocated,
    "cuMemFree": _given_back("linear"),
    "cuMulticastAddDevice": _all_devices_added,
}


class RuntimeStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """FlashInfer's own binding of the runtime library; its functions (`cuda...`) raise where one fails."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__wrapped__, name)
        build = current()
        if build is None or not name.startswith("cuda") or not callable(value):
            return value
        return functools.partial(_call_runtime, build, self.__wrapped__, name)


def _call_runtime(build: Building, library: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        answer = getattr(library, name)(*args, **kwargs)
    except Exception as error:
        build.journal.failed(name, f"{name}: {error}")
        raise
    if name == "cudaMalloc":
        build.journal.took("runtime", answer.value, lambda: library.cudaFree(answer), allocated=int(args[0]))
    elif name == "cudaIpcOpenMemHandle":
        build.journal.took("ipc", answer.value, lambda: _close_ipc(library, answer))
    elif name == "cudaFree":
        build.journal.gave_back("runtime", args[0].value)
    return answer


def _close_ipc(library: Any, address: Any) -> None:
    """FlashInfer never closes what it opened, so its table of functions lacks this one."""
    close = library.funcs.get("cudaIpcCloseMemHandle") or library.lib.cudaIpcCloseMemHandle
    if code := close(address):
        raise RuntimeError(f"cudaIpcCloseMemHandle answers {code}")
