"""Physical allocations and their handles: created, released, exported to other processes and imported from them."""
# ruff: noqa: N802, N803  (names are CUDA's)

from __future__ import annotations

import struct
from typing import Any, Final

from fi_shim.testing import bindings
from fi_shim.testing.bindings import Refusal
from fi_shim.testing.driver.call import DriverPart, answers
from fi_shim.testing.process import Handle

POSIX: Final = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FABRIC: Final = 8  # CU_MEM_HANDLE_TYPE_FABRIC
FABRIC_HANDLE: Final = struct.Struct("<16sQ40x")  # 64 bytes, as a real one
FABRIC_MARK: Final = b"fi_shim fabric"


class PhysicalMemory(DriverPart):
    """cuMemCreate and what can be done with a handle."""

    @answers(1)
    def cuMemGetAllocationGranularity(self, prop: Any, option: object) -> int:  # noqa: ARG002  (minimum and recommended are the same)
        self._handle_types(prop)
        return self.process.specification.granularity

    @answers(1)
    def cuMemCreate(self, size: int, prop: Any, flags: int) -> Any:
        types, device = self._handle_types(prop), int(prop.location.id)
        if size <= 0 or size % self.process.specification.granularity or flags:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        if not 0 <= device < len(self.process.specification.capacities):
            raise Refusal("CUDA_ERROR_INVALID_DEVICE")
        if types & FABRIC and self.process.specification.fabric == "denied":
            raise Refusal("CUDA_ERROR_NOT_PERMITTED")
        machine = self.process.machine
        with machine.transaction() as ledger:
            machine.reclaim()
            if size > ledger.free(device):
                raise Refusal("CUDA_ERROR_OUT_OF_MEMORY")
            number = ledger.last_number + 1
            machine.post("create", machine.process, number, device, size, types, int(prop.allocFlags.gpuDirectRDMACapable), 0)
        return bindings.driver().CUmemGenericAllocationHandle(self.process.new_handle(number))

    @answers(0)
    def cuMemRelease(self, handle: Any) -> None:
        machine = self.process.machine
        with machine.transaction():
            found = self.process.handle(handle)
            found.references -= 1
            if not found.references:
                del self.process.handles[int(handle)]
            machine.post("hold", machine.process, found.number, -1, 0)

    @answers(1)
    def cuMemExportToShareableHandle(self, handle: Any, handleType: Any, flags: int) -> Any:
        machine, kind = self.process.machine, int(handleType)
        with machine.transaction():
            allocation, imported = self.process.held(handle), self.process.handle(handle).imported
            if flags or imported or kind not in (POSIX, FABRIC) or not allocation.handle_types & kind:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            if kind == POSIX:
                return machine.export(allocation.number)
        exported = bindings.driver().CUmemFabricHandle()
        exported.data = FABRIC_HANDLE.pack(FABRIC_MARK, allocation.number)
        return exported

    @answers(1)
    def cuMemImportFromShareableHandle(self, osHandle: Any, shHandleType: Any) -> Any:
        machine, kind = self.process.machine, int(shHandleType)
        with machine.transaction() as ledger:
            number = machine.imported(int(osHandle)) if kind == POSIX else self._fabric_number(osHandle)
            if number not in ledger.allocations or not ledger.allocations[number].handle_types & kind:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            machine.post("hold", machine.process, number, 1, 0)
        return bindings.driver().CUmemGenericAllocationHandle(self.process.new_handle(number, imported=True))

    @answers(1)
    def cuMemRetainAllocationHandle(self, addr: Any) -> Any:
        machine = self.process.machine
        with machine.transaction():
            found = self.process.addresses.mapped_in(int(addr), 1)
            if not found:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            machine.post("hold", machine.process, found[0].number, 1, 0)
            handle = self.process.handles.setdefault(found[0].handle, Handle(found[0].number, references=0))
            handle.references += 1
        return bindings.driver().CUmemGenericAllocationHandle(found[0].handle)

    @answers(1)
    def cuMemGetAllocationPropertiesFromHandle(self, handle: Any) -> Any:
        cuda = bindings.driver()
        with self.process.machine.transaction():
            allocation, imported = self.process.held(handle), self.process.handle(handle).imported
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = allocation.device
        properties.requestedHandleTypes = cuda.CUmemAllocationHandleType(0 if imported else allocation.handle_types)
        properties.allocFlags.gpuDirectRDMACapable = int(allocation.rdma and not imported)
        return properties

    def _handle_types(self, prop: Any) -> int:
        cuda = bindings.driver()
        pinned = prop.type == cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        if not pinned or prop.location.type != cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        types = int(prop.requestedHandleTypes)
        if types & FABRIC and self.process.specification.fabric == "off":
            raise Refusal("CUDA_ERROR_NOT_SUPPORTED")
        return types

    @staticmethod
    def _fabric_number(handle: Any) -> int:
        data = handle if isinstance(handle, bytes) else bytes(handle.data)
        mark, number = FABRIC_HANDLE.unpack(data) if len(data) == FABRIC_HANDLE.size else (b"", 0)
        if mark.rstrip(b"\0") != FABRIC_MARK:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        return int(number)
