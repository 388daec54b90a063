"""Memory that a probe keeps until FlashInfer asks for it: nobody can take it in between."""

from __future__ import annotations

from typing import Any


class Reserve:
    """Handles by what they were created with. Served once each; one that FlashInfer releases is kept for its next try."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._free: list[tuple[tuple[int, ...], Any]] = []
        self._served: dict[int, tuple[tuple[int, ...], Any]] = {}

    def keep(self, size: int, properties: Any, handle: Any) -> None:
        """Take over a handle that `cuMemCreate(size, properties, 0)` has made."""
        self._free.append((_kind(size, properties, 0), handle))

    def serve(self, size: int, properties: Any, flags: int) -> Any | None:
        """A handle of exactly that kind, or None; if not even the size is as planned, what is kept only takes the place."""
        wanted = _kind(size, properties, flags)
        for entry in self._free:
            if entry[0] == wanted:
                self._free.remove(entry)
                self._served[int(entry[1])] = entry
                return entry[1]
        if not any(kind[0] == wanted[0] for kind, _ in self._free):
            self.release()
        return None

    def take_back(self, handle: Any) -> bool:
        """FlashInfer releases a handle: keep it if it is one of ours that has not been shared."""
        entry = self._served.pop(int(handle), None)
        if entry is None:
            return False
        self._free.append(entry)
        return True

    def release(self) -> bool:
        """Release what was not asked for. False if there was nothing."""
        had = bool(self._free)
        while self._free:
            self._driver.cuMemRelease(self._free.pop()[1])
        return had


def _kind(size: int, properties: Any, flags: int) -> tuple[int, ...]:
    location, allocation = properties.location, properties.allocFlags
    return (
        int(size), int(flags), int(properties.type), int(properties.requestedHandleTypes), int(location.type), int(location.id),
        int(allocation.gpuDirectRDMACapable), int(allocation.compressionType), int(allocation.usage),
    )  # fmt: skip
