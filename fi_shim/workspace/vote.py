"""One record a rank, one verdict for all: the words of the vote, and the rule that turns records into a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

FORMAT: Final = 1
"""Version of the record; ranks of different versions cannot agree."""

Vote: TypeAlias = Literal["yes", "no", "abstain", "absent"]
Outcome: TypeAlias = Literal["yes", "no", "abstain"]
Scalar: TypeAlias = str | int | float | bool | None

OWN_ERROR: Final = 1
"""FlashInfer raised on this rank; perhaps since it had been told of another rank."""
OWN_CALL: Final = 2
"""A call of this rank failed."""

_NAMED: Final = 3  # at most so many ranks are quoted in full in one reason


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one rank says in one round. Everything is JSON; sizes are bytes."""

    rank: int
    vote: Vote
    reason: str = ""
    phase: str = ""
    host: str = ""
    device: int | None = None
    flashinfer: str = ""
    regime: str = ""
    request: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    bytes_needed: int | None = None
    bytes_free: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    guarded: bool = False
    """Whether this rank builds under guard if all do."""
    blame: int = 0
    """Of a rank that could not build: OWN_CALL, OWN_ERROR or, where another rank's failure ended its wait, 0."""
    format: int = FORMAT

    @property
    def where(self) -> str:
        """The rank with its host and device, as far as known."""
        known = [*([self.host] if self.host else []), *([f"device {self.device}"] if self.device is not None else [])]
        return f"rank {self.rank} ({', '.join(known)})" if known else f"rank {self.rank}"


@dataclass(frozen=True)
class Verdict:
    """What all ranks do. `records` is by group rank; who never voted is in it with vote "absent", and in `missing`."""

    outcome: Outcome
    reason: str
    records: tuple[Record, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def guarded(self) -> bool:
        """True if all ranks build under guard; one that does not would wait in other collectives than they do."""
        return bool(self.records) and all(record.guarded for record in self.records)

    @property
    def declined(self) -> bool:
        """True: no rank builds. False: all do, with a preflight (yes) or without (abstain)."""
        return self.outcome == "no"


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the record as a JSON object."""
    return {**vars(record), "request": dict(record.request), "settings": dict(record.settings), "facts": dict(record.facts)}


def record_from_json(value: object) -> Record:
    """Return the record in a JSON object. Unknown fields are a newer version's and are passed over; ValueError if a known one is malformed."""
    if not isinstance(value, dict):
        raise ValueError(f"a record is a JSON object, not {value!r:.80}")  # noqa: TRY004  # malformed input is one error
    known = {name: value[name] for name in _FITS if name in value}
    for name, item in known.items():
        if not _FITS[name](item):
            raise ValueError(f"record with {name}={item!r:.80}")
    if not {"rank", "vote"} <= known.keys():
        raise ValueError("record without rank or vote")
    return Record(**known)


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as a JSON object."""
    return {**vars(verdict), "records": [record_to_json(record) for record in verdict.records]}


def verdict_from_json(value: Any) -> Verdict:  # whatever JSON held
    """Return the verdict in a JSON object. Raises ValueError if it is malformed."""
    try:
        outcome, reason, records, missing = value["outcome"], value["reason"], value["records"], value["missing"]
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a verdict: {value!r:.80}") from error
    lists = isinstance(records, list | tuple) and isinstance(missing, list | tuple)
    if outcome not in get_args(Outcome) or not isinstance(reason, str) or not lists or not all(map(_is_int, missing)):
        raise ValueError(f"not a verdict: {value!r:.80}")
    return Verdict(outcome, reason, tuple(map(record_from_json, records)), tuple(missing))


def decide(records: Sequence[Record]) -> Verdict:
    """Return the verdict on one record a group rank, in the order of ranks. A pure function: all ranks derive the same."""
    ballots = tuple(records)
    missing = tuple(r.rank for r in ballots if r.vote == "absent")
    against = [r for r in ballots if r.vote == "no"]
    against = [r for r in against if r.blame == max(one.blame for one in against)]
    undecided = [r for r in ballots if r.vote == "abstain"]
    objections = [
        *([f"{ranks(missing)} did not vote"] if missing else []),
        *differences([r for r in ballots if r.vote != "absent"]),
        *_quoted(against, "votes no"),
    ]
    if objections:
        return Verdict("no", _one_line(objections), ballots, missing)
    if undecided:
        return Verdict("abstain", "FlashInfer runs without preflight: " + _one_line(_quoted(undecided, "abstains")), ballots)
    return Verdict("yes", f"all {len(ballots)} ranks agree", ballots)


def differences(records: Sequence[Record]) -> list[str]:
    """Return one line for every thing that must be equal on all ranks and is not, with both sides.

    Who abstains may not know the release's regime or a setting: what it leaves empty is not held against it.
    """
    if len({_agreed(record) for record in records}) <= 1:
        return []
    sides: dict[str, dict[str, list[int]]] = {}
    stated = [(record, _must_agree(record)) for record in records]
    for name in dict.fromkeys(name for _, values in stated for name in values):
        for record, values in stated:
            value = values.get(name)
            if value is None and record.vote == "abstain":
                continue
            sides.setdefault(name, {}).setdefault("nothing" if value is None else value, []).append(record.rank)
    return [
        f"{name} differs: " + ", ".join(f"{value} on {ranks(where)}" for value, where in values.items())
        for name, values in sides.items()
        if len(values) > 1
    ]


def ranks(numbers: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0, 2"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _one_line(parts: Sequence[str]) -> str:
    return " ".join("; ".join(parts).split())


def _agreed(record: Record) -> str:
    return json.dumps([record.format, record.phase, record.flashinfer, record.regime, *map(dict, (record.request, record.settings))])


def _must_agree(record: Record) -> dict[str, str]:
    single = {"record format": record.format, "phase": record.phase, "FlashInfer version": record.flashinfer, "regime": record.regime}
    named = {f"{kind} {name}": value for kind in ("request", "settings") for name, value in getattr(record, kind).items()}
    return {name: json.dumps(value) for name, value in {**single, **named}.items() if value != ""}


def _quoted(records: Sequence[Record], verb: str) -> list[str]:
    lines = [f"{r.where} {verb}{': ' if r.reason else ''}{r.reason}{_bytes(r)}" for r in records[:_NAMED]]
    return [*lines, *([f"so do {len(records) - _NAMED} more"] if len(records) > _NAMED else [])]


def _bytes(record: Record) -> str:
    if record.bytes_needed is None:
        return ""
    free = "unknown" if record.bytes_free is None else f"{record.bytes_free:,}"
    return f" (needs {record.bytes_needed:,} bytes, free {free})"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping) and set(map(type, value)) <= {str}


def _is_flat(value: object) -> bool:
    return _is_object(value) and set(map(type, value.values())) <= _SCALARS  # type: ignore[attr-defined]


def _is_count(value: object) -> bool:
    return value is None or _is_int(value)


_VOTES: Final = get_args(Vote)
_SCALARS: Final = {str, int, float, bool, type(None)}
_FITS: Final = {
    "rank": _is_int,
    "vote": lambda value: value in _VOTES,
    **dict.fromkeys(("reason", "phase", "host", "flashinfer", "regime"), _is_text),
    **dict.fromkeys(("request", "settings"), _is_flat),
    **dict.fromkeys(("device", "bytes_needed", "bytes_free"), _is_count),
    "facts": _is_object,
    "guarded": lambda value: isinstance(value, bool),
    **dict.fromkeys(("blame", "format"), _is_int),
}
