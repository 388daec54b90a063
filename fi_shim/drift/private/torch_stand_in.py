"""A stand-in for torch: dtypes, devices, tensors without contents, a group of one process that stands for all ranks."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

from fi_shim.drift.private.inert import StandIn
from fi_shim.drift.private.journal import CURRENT_DEVICE, RANK
from fi_shim.workspace.request import ELEMENT_SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fi_shim.drift.private.journal import Journal

VERSION: Final = "2.13.0"
ALIGNMENT: Final = 16  # bytes; torch puts its signal pad behind a symmetric buffer at a multiple of this


class dtype:  # noqa: N801  # torch's names
    """One element type."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize
        self.is_floating_point = "float" in name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class device:  # noqa: N801
    """A device by name and number."""

    def __init__(self, kind: Any, index: int | None = None) -> None:
        if not isinstance(kind, (str, int)):  # a device already
            kind, index = kind.type, kind.index
        elif isinstance(kind, int):
            kind, index = "cuda", kind
        elif ":" in kind:
            kind, _, number = kind.partition(":")
            index = int(number)
        self.type = kind
        self.index = index

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


_Device = device  # where a parameter has the name


class Tensor:
    """A shape and an element type."""

    def __init__(self, shape: Sequence[int], element: dtype, address: int, where: device) -> None:
        self.shape = tuple(shape)
        self.dtype = element
        self.device = where
        self._address = address

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return self._address

    def fill_(self, *_: Any) -> Tensor:
        return self

    zero_ = copy_ = contiguous = view = fill_


class Torch:
    """Makes the stand-ins of one dry run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._dtypes = {name: dtype(name, size) for name, size in ELEMENT_SIZES.items()}

    def named(self, name: str) -> dtype:
        """The dtype of that name."""
        return self._dtypes[name]

    def modules(self) -> dict[str, Any]:
        """Dotted name -> stand-in."""
        version = StandIn("torch.torch_version", __version__=VERSION, TorchVersion=Version)
        cuda = self._cuda()
        symmetric, distributed = self._symmetric_memory(), self._distributed()
        c10d = StandIn("torch.distributed.distributed_c10d", _world=SimpleNamespace(group_count=1))
        distributed.__dict__.update(_symmetric_memory=symmetric, distributed_c10d=c10d)
        torch = StandIn(
            "torch", __version__=VERSION, torch_version=version, cuda=cuda, distributed=distributed, dtype=dtype, device=device, Tensor=Tensor,
            tensor=self._tensor, empty=self._empty, zeros=self._empty, ones=self._empty, full=lambda shape, _value, **kwargs: self._empty(shape, **kwargs),
            inference_mode=lambda *_: contextlib.nullcontext(), no_grad=contextlib.nullcontext,
            half=self.named("float16"), float=self.named("float32"), **self._dtypes,
        )  # fmt: skip
        return {
            "torch": torch,
            "torch.cuda": cuda,
            "torch.torch_version": version,
            "torch.distributed": distributed,
            "torch.distributed._symmetric_memory": symmetric,
            "torch.distributed.distributed_c10d": c10d,
        }

    def _cuda(self) -> Any:
        return StandIn(
            "torch.cuda", is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: CURRENT_DEVICE, set_device=lambda _device: None,
            device_count=lambda: max(self._journal.world_size, CURRENT_DEVICE + 1), synchronize=lambda *_: None,
            get_device_capability=lambda *_: (9, 0), device=lambda *_: contextlib.nullcontext(),
        )  # fmt: skip

    def _distributed(self) -> Any:
        def gather(into: list[Any], value: Any, group: Any = None) -> None:  # noqa: ARG001
            into[:] = [value] * len(into)

        world = SimpleNamespace(group_name="dry run")
        return StandIn(
            "torch.distributed", ProcessGroup=SimpleNamespace, group=SimpleNamespace(WORLD=world), is_initialized=lambda: True, is_available=lambda: True,
            get_rank=lambda *_args, **_kwargs: RANK, get_world_size=lambda *_args, **_kwargs: self._journal.world_size,
            barrier=lambda *_args, **_kwargs: None, all_gather_object=gather, broadcast_object_list=lambda *_args, **_kwargs: None,
        )  # fmt: skip

    def _symmetric_memory(self) -> Any:
        def empty(*size: Any, dtype: dtype, device: Any) -> Tensor:
            shape = _shape(size)
            requested = math.prod(shape) * dtype.itemsize
            granularity = self._journal.allocation_granularity
            padded = -(-requested // ALIGNMENT) * ALIGNMENT + self._journal.signal_pad_size
            number = _Device(device).index
            address = self._journal.allocate("symm_mem", -(-padded // granularity) * granularity, requested=requested, device=number)
            return Tensor(shape, dtype, address, _Device(device))

        def rendezvous(tensor: Tensor, group: Any = None) -> Any:  # noqa: ARG001
            ranks, address = self._journal.world_size, tensor.data_ptr()
            return StandIn(
                "rendezvous", buffer_size=tensor.nbytes, buffer_ptrs=[address] * ranks, buffer_ptrs_dev=address, multicast_ptr=address,
                get_buffer=lambda *_args, **_kwargs: tensor,
            )  # fmt: skip

        return StandIn(
            "torch.distributed._symmetric_memory",
            empty=empty,
            rendezvous=rendezvous,
            get_signal_pad_size=lambda: self._journal.signal_pad_size,
        )

    def _tensor(self, values: Any, dtype: dtype | None = None, device: Any = None) -> Tensor:
        return self._empty(len(values) if isinstance(values, (list, tuple)) else 1, dtype=dtype, device=device)

    def _empty(self, *size: Any, dtype: dtype | None = None, device: Any = None, **_other: Any) -> Tensor:
        element, where = dtype or self.named("float32"), _Device("cpu" if device is None else device)
        tensor = Tensor(_shape(size), element, 0, where)
        if where.type == "cuda":
            tensor._address = self._journal.allocate("torch", tensor.nbytes, device=where.index)  # noqa: SLF001
        return tensor


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
