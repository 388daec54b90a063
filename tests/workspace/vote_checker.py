"""A model checker: interleavings of ranks that come late, stall, lose the store, give up or die, on a store in memory, time in ticks.

Each rank's generator becomes an automaton that is built as far as it is reached: a node is its local state, an edge the reply it was given
and the time. So the search over global states never has to run a generator twice for the same thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fi_shim.workspace.ballot.cell import UNWRITTEN
from fi_shim.workspace.ballot.operations import Clock, CompareSet, GaveUpError, Limits, Promise, Read, Set, Sleep, Waiting
from fi_shim.workspace.ballot.protocol import Voter
from fi_shim.workspace.vote import Record

if TYPE_CHECKING:
    from random import Random

CLOCKS = (1000, 0, -300)  # what each rank's own clock shows at tick 0
LIMITS = Limits(
    arrival=2, late=1, doubt=1, silence=2, beat=1, work=2, safety=1, grace=1, warn_first=1, warn_every=1, poll_first=1, poll_last=1
)
NO_LEASE = replace(LIMITS, safety=-1000)
OVER = ("over",)
QUIET = 0.95  # of a random way's steps without a fault
Program = Callable[[int], Generator[Any, Any, None]]


@dataclass(frozen=True)
class Told:
    """A rank learns a verdict and acts on it."""

    attempt: str
    label: str
    outcome: str


def votes(
    size: int, *, rounds: int = 0, vote: str = "yes", limits: Limits = LIMITS, voter: type[Voter] = Voter, nonce: str = ""
) -> Program:
    def program(rank: int) -> Generator[Any, Any, None]:
        me = voter(rank, size, nonce or f"n{rank}", limits)
        verdict = yield from me.join(Record(rank=rank, vote="yes"))
        for number in range(rounds + 1):
            if verdict is None:
                return
            yield Told(me.attempt, me.label, verdict.outcome)
            if verdict.declined or number == rounds:
                return
            verdict = yield from me.round("probe", Record(rank=rank, vote=vote if rank == 0 else "yes"))  # type: ignore[arg-type]

    return program


@dataclass
class Automaton:
    """One rank's program. A node is numbered; `history` is one way to get there."""

    program: Callable[[], Generator[Any, Any, None]]
    clock: int = 0
    nodes: dict[Any, int] = field(default_factory=dict)
    history: list[tuple[tuple[Any, int], ...]] = field(default_factory=list)
    emits: list[Any] = field(default_factory=list)
    edges: dict[Any, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)

    def start(self, now: int) -> tuple[int, tuple[Any, ...]]:
        return self.follow(-1, None, now)

    def follow(self, node: int, reply: Any, now: int) -> tuple[int, tuple[Any, ...]]:
        """The next node, and what was said on the way (promises, verdicts)."""
        key = (node, repr(reply), now)
        if key not in self.edges:
            past = self.history[node] if node >= 0 else ()
            self.edges[key] = self._replay((*past, (reply, now)))
        return self.edges[key]

    def _replay(self, history: tuple[tuple[Any, int], ...]) -> tuple[int, tuple[Any, ...]]:
        steps = self.program()
        said: list[Any] = []
        operation: Any = None
        for reply, now in history:
            said = []
            operation = self._run(steps, reply, now + self.clock, said)
        where = OVER if operation is OVER else (_local(steps), operation, repr(operation))
        number = self.nodes.setdefault(repr(where), len(self.history))
        if number == len(self.history):
            self.history.append(history)
            self.emits.append(operation)
        return number, tuple(said)

    @staticmethod
    def _run(steps: Any, reply: Any, now: int, said: list[Any]) -> Any:
        try:
            operation = steps.throw(reply) if isinstance(reply, GaveUpError) else steps.send(reply)
            while isinstance(operation, Clock | Promise | Waiting | Told):
                if isinstance(operation, Promise | Told):
                    said.append(operation.until if isinstance(operation, Promise) else operation)
                operation = steps.send(now if isinstance(operation, Clock) else None)
        except (StopIteration, GaveUpError):
            return OVER
        return operation


def _local(steps: Any) -> list[tuple[int, str]]:
    chain = []
    while steps is not None:
        chain.append((steps.gi_frame.f_lasti, repr(sorted(steps.gi_frame.f_locals.items(), key=lambda item: item[0]))))
        steps = steps.gi_yieldfrom
    return chain


@dataclass(frozen=True)
class Rank:
    node: int = -1  # not there yet
    wake: int = 0
    promise: float = 0
    told: tuple[Told, ...] = ()
    state: str = "alive"  # "doubt": its caller gave up, the helper is stuck; "freed": no longer stuck; "dead"


class State(NamedTuple):
    now: int
    up: bool  # from here to `stalls`: what faults change
    stops: int
    crashes: int
    stalls: int
    store: int  # numbered by the world, like the ranks
    ranks: tuple[int, ...]
    late_yes: bool = False  # a yes was decided after somebody had given up in doubt


class Numbered(list[Any]):
    """Values by number; equal values have one number."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        found = self.known.setdefault(value, len(self))
        if found == len(self):
            self.append(value)
        return found


@dataclass
class World:
    automata: list[Automaton]
    horizon: int
    late: int = 0  # ranks from this number on may come later than at time 0, ...
    earliest: int = 0  # ... but not before this time
    initial: dict[str, bytes] = field(default_factory=dict)
    stops: int = 1
    crashes: int = 0
    stalls: int = 1  # how often time may pass, by any length, while somebody could run
    good: set[State] = field(default_factory=set)
    stores: Numbered = field(default_factory=Numbered)
    ranks: Numbered = field(default_factory=Numbered)
    moves: dict[tuple[int, int, int, int], tuple[int, int, bool]] = field(default_factory=dict)

    def first(self) -> State:
        nobody = self.ranks.number(Rank())
        store = self.stores.number(tuple(sorted(self.initial.items())))
        state = State(
            0, up=True, stops=self.stops, crashes=self.crashes, stalls=self.stalls, store=store, ranks=(nobody,) * len(self.automata)
        )
        for rank in range(self.late or len(self.automata)):
            state = self.performed(state, rank)
        return state

    def after(self, state: State) -> Iterator[State]:
        for rank, number in enumerate(state.ranks):
            yield from self._after_rank(state, rank, self.ranks[number])
        if state.now < self.horizon and not any(self.can_run(state, rank) for rank in range(len(state.ranks))):
            yield state._replace(now=state.now + 1)
        elif state.stalls:
            yield from (state._replace(now=now, stalls=state.stalls - 1) for now in range(state.now + 1, self.horizon + 1))
        if not state.up:
            yield state._replace(up=True)
        elif state.stops:
            yield state._replace(up=False, stops=state.stops - 1)

    def _after_rank(self, state: State, rank: int, it: Rank) -> Iterator[State]:
        if self.over(state, rank) and it.node >= 0:
            return
        operation = self.operation(rank, it)
        asleep = operation is None or isinstance(operation, Sleep)
        if self.can_run(state, rank) if operation is not None else state.now >= self.earliest:
            yield self.performed(state, rank)
        if not asleep and not state.up and it.state == "alive" and state.now >= it.promise:
            yield self._with(state, rank, replace(it, state="doubt"))
        if state.crashes and operation is not None:
            yield self._with(state, rank, replace(it, state="dead"))._replace(crashes=state.crashes - 1)

    def can_run(self, state: State, rank: int) -> bool:
        it: Rank = self.ranks[state.ranks[rank]]
        if self.over(state, rank):
            return False
        return it.wake <= state.now if isinstance(self.operation(rank, it), Sleep) else state.up

    def operation(self, rank: int, it: Rank) -> Any:
        return self.automata[rank].emits[it.node] if it.node >= 0 else None

    def performed(self, state: State, rank: int) -> State:
        """The rank's operation takes place, and the rank goes on to its next one."""
        key = (rank, state.ranks[rank], state.store, state.now)
        if key not in self.moves:
            self.moves[key] = self._move(*key)
        it, store, yes = self.moves[key]
        in_doubt = yes and any(self.ranks[number].state in ("doubt", "freed") for number in state.ranks)
        ranks = (*state.ranks[:rank], it, *state.ranks[rank + 1 :])
        return state._replace(store=store, ranks=ranks, late_yes=state.late_yes or in_doubt)

    def _move(self, rank: int, number: int, store_number: int, now: int) -> tuple[int, int, bool]:
        it: Rank = self.ranks[number]
        operation, store = self.operation(rank, it), dict(self.stores[store_number])
        reply: Any = None
        if isinstance(operation, Set):
            store[operation.key] = operation.value
        elif isinstance(operation, Read):
            reply = {key: store[key] for key in operation.keys if key in store}
        elif isinstance(operation, CompareSet):
            if store.get(operation.key, b"") == operation.expected:
                store[operation.key] = operation.value
            reply = store.get(operation.key, operation.expected)
        if it.state == "doubt":
            it, reply = replace(it, state="freed"), GaveUpError()
        node, said = self.automata[rank].follow(it.node, reply, now)
        operation = self.automata[rank].emits[node]
        for word in said:
            it = replace(it, told=(*it.told, word)) if isinstance(word, Told) else replace(it, promise=word - self.automata[rank].clock)
        it = replace(it, node=node, wake=now + max(1, int(operation.seconds)) if isinstance(operation, Sleep) else 0)
        return self.ranks.number(it), self.stores.number(tuple(sorted(store.items()))), _is_yes(operation)

    def _with(self, state: State, rank: int, it: Rank) -> State:
        return state._replace(ranks=(*state.ranks[:rank], self.ranks.number(it), *state.ranks[rank + 1 :]))

    def over(self, state: State, rank: int) -> bool:
        it: Rank = self.ranks[state.ranks[rank]]
        return it.node < 0 or it.state == "dead" or self.automata[rank].emits[it.node] is OVER

    def fault(self, state: State) -> str:
        """What is wrong with the state; empty if nothing."""
        if state.late_yes:
            return "a yes was decided after a rank had given up in doubt"
        ranks: list[Rank] = [self.ranks[number] for number in state.ranks]
        if any(it.state in ("doubt", "freed") for it in ranks):
            return ""  # who lost the store may stand alone: the protocol's text says why
        words = {word for it in ranks for word in it.told}
        for yes in (word for word in words if word.outcome == "yes"):
            if any(it.node < 0 for it in ranks):
                return f"one rank acts on {yes}, another one has never come"
            if any(word.label == yes.label and word != yes for word in words):
                return f"ranks act on different verdicts: {sorted(map(str, words))}"
            if any(self.over(state, rank) and it.node >= 0 and it.state == "alive" and yes not in it.told for rank, it in enumerate(ranks)):
                return f"one rank acts on {yes}, another one has ended without"
        return ""

    def end(self, state: State, ticks: int) -> str:
        """What is wrong if from here on the store answers and everyone runs; empty if all come to an end."""
        state, last, path = state._replace(up=True, stops=0, stalls=0, crashes=0), state.now + ticks, set()
        while state.now <= last:
            if state in self.good:
                self.good |= path
                return ""
            path.add(state)
            moved = False
            for rank in range(len(state.ranks)):
                it: Rank = self.ranks[state.ranks[rank]]
                if not self.over(state, rank) and it.wake <= state.now:
                    state, moved = self.performed(state, rank), True
            if all(self.over(state, rank) for rank in range(len(state.ranks))):
                self.good |= path if not self.fault(state) else set()
                return self.fault(state)
            if not moved:
                state = state._replace(now=state.now + 1)
        return "somebody waits for ever"


@dataclass
class Found:
    states: int
    fault: str
    outcomes: set[tuple[str, ...]]


def search(world: World, *, ticks: int = 12, most: int = 10**6) -> Found:
    todo = [world.first()]
    seen, outcomes = set(todo), set()
    while todo:
        state = todo.pop()
        fault = world.fault(state) or (world.end(state, ticks) if state.now == world.horizon else "")
        if fault:
            return Found(len(seen), fault, outcomes)
        if all(world.over(state, rank) for rank in range(len(state.ranks))):
            ranks: list[Rank] = [world.ranks[number] for number in state.ranks]
            outcomes.add(tuple(it.told[-1].outcome if it.told else it.state for it in ranks))
        for following in world.after(state):
            if following not in seen:
                seen.add(following)
                todo.append(following)
        assert len(seen) < most, "the world is too large for this test"
    return Found(len(seen), "", outcomes)


def _is_yes(operation: Any) -> bool:
    if not isinstance(operation, CompareSet) or not operation.key.endswith("/verdict") or operation.value == b"void":
        return False
    return bool(json.loads(operation.value.partition(b"\n")[2])["outcome"] != "no")


def wander(world: World, random: Random, *, walks: int, ticks: int = 25) -> Found:
    """Random ways through a world that is too large to search."""
    seen, outcomes = set(), set()
    for _ in range(walks):
        state = world.first()
        while ways := list(world.after(state)):
            quiet = [way for way in ways if way[1:5] == state[1:5]]  # no fault
            state = random.choice(quiet if quiet and random.random() < QUIET else ways)
            seen.add(state)
            if fault := world.fault(state):
                return Found(len(seen), fault, outcomes)
        if fault := world.end(state, ticks):
            return Found(len(seen), fault, outcomes)
        ranks: list[Rank] = [world.ranks[number] for number in state.ranks]
        outcomes.add(tuple(it.told[-1].outcome if it.told else it.state for it in ranks))
    return Found(len(seen), "", outcomes)


def world(size: int, program: Program, **options: Any) -> World:
    automata = [Automaton(lambda rank=rank: program(rank), CLOCKS[rank]) for rank in range(size)]  # type: ignore[misc]
    initial = {f"cell/{rank}": UNWRITTEN for rank in range(size)}
    return World(automata, **{"horizon": 3, **options, "initial": {**initial, **options.get("initial", {})}})
