"""`fi_shim.plan`: what a FlashInfer release allocates for a workspace, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fi_shim.compatibility import find_release
from fi_shim.seams import driver as seam
from fi_shim.workspace.request import positive_integer, workspace_shape
from fi_shim.workspace.sizes import AllocationPlan, Granularities, load_regime

if TYPE_CHECKING:
    from fi_shim.workspace.request import WorkspaceShape
    from fi_shim.workspace.sizes import Regime


def plan(
    flashinfer_version: str | None = None,
    *,
    backend: str = "trtllm",
    world_size: int,
    max_token_num: int,
    hidden_dim: int,
    dtype: Any,
    allocation_granularity: int | None = None,
    multicast_granularity: int | None = None,
    signal_pad_size: int | None = None,
    confidential_computing: bool = False,
    force_oneshot_support: bool = False,
) -> AllocationPlan:
    """What one rank allocates for a workspace of `max_token_num` tokens of `hidden_dim` elements, in FlashInfer's order.

    Args:
        flashinfer_version: a release such as "0.7.2"; None: the installed one, recognised by its code; if that is new, by a dry run.
        backend: "trtllm" or "mnnvl".
        world_size: ranks in the group.
        max_token_num: tokens.
        hidden_dim: elements a token.
        dtype: a torch.dtype or its name.
        allocation_granularity: bytes; None: the device's if CUDA is initialised in this process already, else 2 MiB.
        multicast_granularity: bytes; None: likewise, else 512 MiB (H200).
        signal_pad_size: bytes torch puts behind a symmetric-memory buffer; None: torch's if it is imported already, else 2048.
        confidential_computing: whether the GPU runs in that mode (releases from 0.6.16 on then use symmetric memory).
        force_oneshot_support: mnnvl only: buffers for the one-shot strategy at every size.

    Returns:
        The plan; sizes in bytes. Source: the tables under `compat/`, read off each release's code.

    Raises:
        ValueError: an argument is not usable, or FlashInfer refuses the shape; the text names argument and value.
            CompatibilityError (a ValueError): a table is missing or wrong; the text names the file.
    """
    shape = workspace_shape(
        backend=backend, world_size=world_size, max_token_num=max_token_num, hidden_dim=hidden_dim, dtype=dtype,
        force_oneshot_support=force_oneshot_support,
    )  # fmt: skip
    if not isinstance(confidential_computing, bool):
        raise ValueError(f"confidential_computing={confidential_computing!r} is not True or False")  # noqa: TRY004
    regime = _regime(flashinfer_version, shape.backend, confidential_computing=confidential_computing)
    granularities = _granularities(shape, regime, allocation_granularity, multicast_granularity, signal_pad_size)
    return regime.plan(shape, granularities)


def _regime(version: str | None, backend: str, *, confidential_computing: bool) -> Regime:
    """By the tables; the installed FlashInfer by its code, whatever its version says."""
    if version is None:
        from fi_shim.drift.knowledge import knowledge  # the nets are heavier than a table

        known = knowledge(installed_flashinfer())
        return known.regime(known.required_release().regime_name(backend, confidential_computing=confidential_computing))
    return load_regime(find_release(version).regime_name(backend, confidential_computing=confidential_computing))


def installed_flashinfer() -> str:
    """Version of the installed flashinfer-python distribution. ValueError if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        raise ValueError("flashinfer_version=None: flashinfer-python is not installed here; name a release") from None


def _granularities(
    shape: WorkspaceShape, regime: Regime, allocation: int | None, multicast: int | None, signal_pad: int | None
) -> Granularities:
    default = Granularities()
    if (allocation is None or multicast is None) and seam.cuda_is_initialized():
        default = _of_current_device(shape, regime)
    pad = default.signal_pad if signal_pad is None else positive_integer("signal_pad_size", signal_pad)
    if signal_pad is None and regime.table["allocator"] == "symm_mem":
        pad = seam.torch_signal_pad_size() or default.signal_pad
    return Granularities(
        allocation=default.allocation if allocation is None else positive_integer("allocation_granularity", allocation),
        multicast=default.multicast if multicast is None else positive_integer("multicast_granularity", multicast),
        signal_pad=pad,
    )


def _of_current_device(shape: WorkspaceShape, regime: Regime) -> Granularities:
    """The current device's answers; where a driver does not give one, the default."""
    default = Granularities()
    try:
        device = int(seam.checked(seam.bindings(), "cuCtxGetDevice"))
        answers = device_granularities(regime, device, shape.world_size, "posix")
    except (ImportError, AttributeError, seam.DriverError):
        return default
    return replace(answers, multicast=lambda size: _multicast_or(default, answers, size))


def _multicast_or(default: Granularities, answers: Granularities, size: int) -> int:
    """A device without multicast has no granularity of it: what another would have."""
    try:
        return answers.multicast_for(size)
    except (AttributeError, seam.DriverError):
        return default.multicast_for(size)


def device_granularities(regime: Regime, device: int, world_size: int, handle_type: str | None) -> Granularities:
    """What `device` says, in bytes; of multicast only where the regime touches it. DriverError where the driver does not answer."""
    driver = seam.bindings()
    kind = seam.handle_type(driver, handle_type or "posix")
    allocation = seam.allocation_granularity(driver, seam.allocation_properties(driver, device, kind))
    answers = Granularities(allocation, signal_pad=seam.torch_signal_pad_size() or Granularities.signal_pad)
    if regime.multicast == "none":
        return answers
    # Asked for each size, as FlashInfer does: on an H200 the recommendation depends on it.
    return replace(answers, multicast=lambda size: seam.multicast_granularity(driver, world_size, size, kind))
