"""How much: a shape, a regime and the granularities give the exact bytes, in FlashInfer's order.

A regime is a table under `compat/regimes/`, not code. It names quantities, each a start and a list of operations; buffers, each one
of these quantities; and the roundings that lead from a buffer's bytes to what is requested and to what the device gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fi_shim.tables import CompatibilityError, check_word, locate, read_table
from fi_shim.workspace.request import WorkspaceShape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Granularities:
    """What the device and torch add to each allocation, in bytes. Defaults: H200, and the pad that torch < 2.13 puts behind a buffer."""

    allocation: int = 2 * MIB
    multicast: int | Callable[[int], int] = 512 * MIB
    """Bytes, or a function from an allocation's bytes to them: a driver's recommendation depends on the size."""
    signal_pad: int = 2048

    def multicast_for(self, size: int) -> int:
        """Multicast granularity in bytes for an allocation of `size` bytes."""
        return self.multicast(size) if callable(self.multicast) else self.multicast


@dataclass(frozen=True)
class Allocation:
    """One big allocation. Small ones (pointer tables, 20 bytes of flags, an int64 tensor; about 2 MiB in all) are not listed."""

    purpose: str
    """buffer, flags, lamport or mnnvl."""
    allocator: str
    """cuMemCreate or symm_mem; cudaMalloc for the legacy creator of old releases."""
    requested: int
    """Bytes given to SymmDeviceMemory or symm_mem.empty."""
    allocated: int
    """Physical bytes the device gives up."""


@dataclass(frozen=True)
class AllocationPlan:
    """What one rank of one release allocates for one shape, in order."""

    regime: str
    allocations: tuple[Allocation, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    """What FlashInfer reports of the workspace's sizes, under its own keys (bytes where a size)."""

    @property
    def total_bytes(self) -> int:
        """Sum of `allocated`."""
        return sum(allocation.allocated for allocation in self.allocations)


# `align` is FlashInfer's own rounding for powers of two, bit arithmetic included; `round_up` is right for any number.
_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "times": lambda value, by: value * by,
    "divide": lambda value, by: value // by,
    "add": lambda value, by: value + by,
    "at_most": min,
    "at_least": max,
    "round_up": lambda value, to: -(-value // to) * to,
    "round_down": lambda value, to: value // to * to,
    "align": lambda value, to: (value + to - 1) & ~(to - 1),
}


@dataclass(frozen=True)
class Regime:
    """One way of allocating, as `compat/regimes/<name>.toml` describes it."""

    name: str
    backend: str
    multicast: str
    """What of NVLink multicast it touches: none, granularity (asked for sizes only) or object (a multicast object is bound)."""
    path: Path
    table: Mapping[str, Any]

    def plan(self, shape: WorkspaceShape, granularities: Granularities) -> AllocationPlan:
        """The plan for `shape`. ValueError where FlashInfer refuses the shape, CompatibilityError where the table is wrong."""
        try:
            return self._plan(shape, granularities)
        except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise CompatibilityError(f"{self.path}: cannot be evaluated: {type(error).__name__}: {error}") from error

    def _plan(self, shape: WorkspaceShape, granularities: Granularities) -> AllocationPlan:
        known = _variables(shape, granularities)
        for quantity in self.table["quantity"]:
            known[quantity["name"]] = _evaluate(_start(quantity, shape), quantity.get("then", ()), known)
        for refusal in self.table.get("refuse", ()):
            if known[refusal["quantity"]] > refusal["above"]:
                raise ValueError(f"{refusal['quantity']}={known[refusal['quantity']]}: {refusal['why']}")
        allocations = []
        for buffer in self.table["buffer"]:
            requested = _evaluate(buffer["size"], self.table["requested"], known)
            allocated = _evaluate(requested, self.table["allocated"], known)
            known[f"{buffer['purpose']}_requested"], known[f"{buffer['purpose']}_allocated"] = requested, allocated
            allocations.append(Allocation(buffer["purpose"], self.table["allocator"], requested, allocated))
        for quantity in self.table.get("usable", ()):
            known[quantity["name"]] = _evaluate(quantity["start"], quantity.get("then", ()), known)
        return AllocationPlan(self.name, tuple(allocations), {key: known[name] for key, name in self.table["metadata"].items()})


_WORDS: Final = {
    "backend": ("trtllm", "mnnvl"),
    "allocator": ("cuMemCreate", "symm_mem", "cudaMalloc"),
    "multicast": ("none", "granularity", "object"),
}


def load_regime(name: str) -> Regime:
    """Read a regime. CompatibilityError if its table is missing or incomplete."""
    return _regime(locate("regimes", name, _overlay_regime))


def _overlay_regime(path: Path) -> None:
    """Read a regime and try it once, before it takes the place of a packaged one."""
    regime = _regime(path)
    try:
        plan = regime.plan(WorkspaceShape(regime.backend, 2, 16, 4096, "bfloat16"), Granularities())
    except CompatibilityError:
        raise
    except ValueError:  # it may refuse that shape
        return
    for allocation in plan.allocations:
        if not 0 < allocation.requested <= allocation.allocated:
            raise CompatibilityError(f"{path}: {allocation.purpose} of {allocation.requested} bytes takes {allocation.allocated}")


def _regime(path: Path) -> Regime:
    table, name = read_table(path), path.stem
    missing = {"name", "backend", "allocator", "multicast", "quantity", "buffer", "requested", "allocated", "metadata"} - set(table)
    if missing:
        raise CompatibilityError(f"{path}: {', '.join(sorted(missing))} missing")
    if table["name"] != name:
        raise CompatibilityError(f"{path}: says name {table['name']!r}")
    for word, values in _WORDS.items():
        check_word(path, word, table[word], values)
    return Regime(name, table["backend"], table["multicast"], path, table)


def _start(quantity: Mapping[str, Any], shape: WorkspaceShape) -> int | str:
    if shape.buffer_size_in_bytes is not None and "start_if_size_is_given" in quantity:
        return quantity["start_if_size_is_given"]  # type: ignore[no-any-return]
    if shape.force_oneshot_support and "start_if_oneshot_is_forced" in quantity:
        return quantity["start_if_oneshot_is_forced"]  # type: ignore[no-any-return]
    return quantity["start"]  # type: ignore[no-any-return]


def _variables(shape: WorkspaceShape, granularities: Granularities) -> dict[str, Any]:
    is_float32 = shape.dtype == "float32"
    return {
        "world_size": shape.world_size,
        "max_token_num": shape.max_token_num,
        "hidden_dim": shape.hidden_dim,
        "element_size": shape.element_size,
        "lamport_element_size": 4 if is_float32 else 2,  # the trtllm kernels know float32 and two-byte elements only
        "use_fp32_lamport": is_float32,
        "buffer_size_in_bytes": shape.buffer_size_in_bytes or 0,
        "allocation_granularity": granularities.allocation,
        "multicast_granularity": granularities.multicast_for,
        "signal_pad_size": granularities.signal_pad,
    }


def _evaluate(start: int | str, operations: Sequence[Mapping[str, int | str]], known: Mapping[str, Any]) -> int:
    value: int = known[start] if isinstance(start, str) else start
    for operation in operations:
        if len(operation) != 1:
            raise TypeError(f"{dict(operation)} is not one operation")
        ((name, operand),) = operation.items()
        by = known[operand] if isinstance(operand, str) else operand
        value = _OPERATIONS[name](value, by(value) if callable(by) else by)
    return value
