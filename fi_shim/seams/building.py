"""One build of one workspace on this rank, as the seams see it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fi_shim.seams.journal import Journal
from fi_shim.seams.rendezvous import aside, limited
from fi_shim.workspace import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.seams.reserve import Reserve
    from fi_shim.workspace.ballot.gathering import Gathering


@dataclass(frozen=True)
class Ended:
    """What is left of a gathering."""

    rank: int
    size: int

    def check(self) -> None:
        """Nobody is waited for."""


@dataclass
class Building:
    """What FlashInfer's code meets while it builds.

    Attributes:
        gathering: how this rank exchanges with the others.
        group: the torch process group of the workspace.
        store: that group's own store; torch's rendezvous waits in it.
        reserve: memory that the probe has kept for this build, if any.
        journal: what was taken so far.
        memories: the `SymmDeviceMemory` objects that were made, or are being restored.
        tensors: weak references to what was allocated in torch's symmetric memory.
        over: all is decided; whoever still holds a stand-in gets the real thing.
    """

    gathering: Gathering
    group: Any
    store: Any
    reserve: Reserve | None = None
    journal: Journal = field(default_factory=Journal)
    memories: list[Any] = field(default_factory=list)
    tensors: list[Callable[[], Any]] = field(default_factory=list)
    over: bool = False

    def end(self) -> None:
        """It is over. What FlashInfer keeps of ours (0.6.x keeps its sockets) must not keep a group alive."""
        self.over = True
        self.gathering = Ended(self.gathering.rank, self.gathering.size)  # type: ignore[assignment]  # nobody gathers any more
        self.group = self.store = self.reserve = None

    def exchange(self, kind: str, value: Any) -> list[Any]:
        """Give `value` to all ranks. Returns everyone's, by rank. Raises TypeError for what cannot be sent; StoppedError."""
        structure = type(value) if isinstance(value, ctypes.Structure) else None
        payload = codec.encode(bytes(value) if structure else value)
        values = [codec.decode(answer) for answer in self.gathering.gather(kind, payload)]
        return [structure.from_buffer_copy(one) for one in values] if structure else values

    def broadcast(self, value: Any, root: int) -> Any:
        """The root's value; all ranks have it when this returns."""
        own = value if self.gathering.rank == root else None
        return self.exchange(f"bcast from {root}", own)[root]

    def barrier(self, kind: str = "barrier") -> None:
        """Wait for all ranks. Raises StoppedError."""
        self.gathering.gather(kind, b"")

    def rendezvous(self, meet: Callable[[str], Any]) -> Any:
        """Torch's own rendezvous, over this build's group, when all ranks have allocated. It ends by a time limit of its own."""
        self.barrier("rendezvous")
        with limited(self.store):
            return aside(lambda: meet(self.group.group_name))
