"""Simulated CUDA devices for tests and demonstrations: real FlashInfer code, in real processes, on a machine without a GPU.

`FI_SHIM_SIMULATE=4x8GiB` switches them on (see README.md here). Importing this package imports neither torch nor FlashInfer nor cuda.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fi_shim.testing import simulation

if TYPE_CHECKING:
    from fi_shim.testing.accounting import Outstanding

__all__ = ["calls", "outstanding", "reserve_cached", "simulated"]


def simulated() -> bool:
    """Whether this process lives on simulated devices."""
    return simulation.current() is not None


def outstanding(*, all_processes: bool = False) -> Outstanding:
    """What is still allocated: by this process, or by all processes that share the simulated machine.

    Raises:
        RuntimeError: nothing is simulated here.
    """
    from fi_shim.testing.accounting import take_stock

    return take_stock(simulation.required().machine, all_processes=all_processes)


def calls() -> dict[str, int]:
    """How often this process has called each simulated function, failed calls included.

    Raises:
        RuntimeError: nothing is simulated here.
    """
    return dict(simulation.required().process.counts)


def reserve_cached(device: int, size: int) -> None:
    """Let torch's allocator in this process hold `size` more bytes of `device` unused, until `torch.cuda.empty_cache()`.

    Raises:
        RuntimeError: nothing is simulated here, or the device has not as much.
    """
    simulation.required().torch_cuda.reserve_cached(device, size)
