"""Stands for FlashInfer's compiled kernels: building or launching one is a call that can fail, and its addresses are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing.bindings import Refusal

if TYPE_CHECKING:
    from fi_shim.testing.driver import Driver

LAMPORT_INITIALIZE: Final = "lamport_initialize"


class CommKernels:
    """What `get_trtllm_comm_module()` returns: only the kernels that creating and restoring a workspace launches."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def trtllm_lamport_initialize(self, buffer_ptr: int, size: int, dtype: Any) -> None:
        """Fill `size` elements with negative zero."""
        try:
            self._driver.process.begin(LAMPORT_INITIALIZE)
            self._driver.check(buffer_ptr, size * dtype.itemsize, alignment=dtype.itemsize)
        except Refusal as refusal:
            raise RuntimeError(f"lamportInitialize failed with error code {refusal.code}") from None

    def trtllm_lamport_initialize_all(self, buffer_0_ptr: int, buffer_1_ptr: int, buffer_2_ptr: int, size: int, dtype: Any) -> None:
        """The same for three buffers."""
        for pointer in (buffer_0_ptr, buffer_1_ptr, buffer_2_ptr):
            self.trtllm_lamport_initialize(pointer, size, dtype)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"The kernel {name} is not simulated: simulated devices have workspaces, they do not compute")
