"""The table of a release, `compat/releases/<version>.toml`, written from the release's own code. Invents no regime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fi_shim.compatibility import REFUSED
from fi_shim.drift.dry_run import dry_run
from fi_shim.drift.fingerprint import definitions, file_digest
from fi_shim.drift.fitting import Witness, difference, fitting, nearest, planned
from fi_shim.drift.private.journal import RANK
from fi_shim.drift.shapes import confidential_requests, further_requests, legacy_requests, witness_requests
from fi_shim.drift.watched import ALSO_HASHED, WATCHED, file_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

BACKENDS: Final = ("trtllm", "mnnvl")
_NOT_SHOWN: Final = 3  # more examples would not say more
# Known obstacles to importing a release, by the text of the file that causes them.
_UNIMPORTABLE: Final = (
    (
        "flashinfer/comm/fd_exchange.py",
        "tuple[tuple[int, int, array.array[int]]]",
        "from __future__ import annotations",
        "Python 3.12 and newer: flashinfer/comm/fd_exchange.py subscripts array.array in an annotation",
    ),
)


class NewArithmeticError(ValueError):
    """No regime, or more than one, gives what the release asks for; the text says what a new regime file needs."""


@dataclass
class Behaviour:
    """What a release does, by a dry run."""

    witnesses: list[Witness] = field(default_factory=list)

    def of(self, entry: str, *, confidential: bool = False) -> list[Witness]:
        """The witnesses of one entry and mode."""
        return [w for w in self.witnesses if w.entry == entry and bool(w.request.get("confidential_computing")) == confidential]

    @property
    def asks_about_confidential_computing(self) -> bool:
        """Whether that mode makes a difference."""
        ordinary = {_key(w.request): w.outcome.allocations for w in self.of("trtllm")}
        return any(ordinary[_key(w.request)] != w.outcome.allocations for w in self.of("trtllm", confidential=True))


def observe(root: Path, *, questions: Sequence[Any] = (), further: bool = False) -> Behaviour:
    """Run the release's code over the witnesses' shapes, and over `further` ones. DryRunError if it cannot be run."""
    requests: list[tuple[str, Mapping[str, Any]]] = [(backend, row) for backend in BACKENDS for row in witness_requests(backend)]
    requests += [(backend, row) for backend in BACKENDS for row in further_requests(backend)] if further else []
    requests += [(backend, row) for backend in BACKENDS for row in confidential_requests(backend)]
    requests += [("legacy", row) for row in legacy_requests()]
    outcomes = dry_run(root, requests, questions=questions)
    return Behaviour([Witness(entry, request, outcome) for (entry, request), outcome in zip(requests, outcomes, strict=True)])


NameRegime: TypeAlias = "Callable[[str, Sequence[Witness]], str]"


def regimes_of(behaviour: Behaviour, name_regime: NameRegime | None = None) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """(backend -> regime, the same under confidential computing or empty, rules).

    Args:
        behaviour: what the release does.
        name_regime: names the regime of an entry's witnesses; None: the one that fits. NewArithmeticError where none does.
    """
    name_regime = name_regime or _only_fitting
    regimes = {backend: name_regime(backend, behaviour.of(backend)) for backend in BACKENDS}
    confidential = {}
    if behaviour.asks_about_confidential_computing:
        (mnnvl,) = behaviour.of("mnnvl", confidential=True)
        confidential = {
            "trtllm": name_regime("trtllm under confidential computing", behaviour.of("trtllm", confidential=True)),
            "mnnvl": REFUSED if mnnvl.outcome.refused else name_regime("mnnvl under confidential computing", [mnnvl]),
        }
    devices = {device for witness in behaviour.of("trtllm") for device in witness.outcome.devices}
    rules = {
        "device": "rank" if devices == {RANK} else "current",
        "legacy_creator": name_regime("the legacy creator", behaviour.of("legacy")),
        "metadata": " ".join(behaviour.of("trtllm")[0].outcome.metadata),
    }
    return regimes, confidential, rules


def _only_fitting(what: str, witnesses: Sequence[Witness]) -> str:
    names = fitting(witnesses)
    if len(names) == 1:
        return names[0]
    if names:
        raise NewArithmeticError(f"{what}: the regimes {', '.join(names)} all allocate like this release; one is needed")
    raise NewArithmeticError(f"{what}: no regime allocates like this release.\n{what_a_regime_needs(witnesses)}")


def what_a_regime_needs(witnesses: Sequence[Witness]) -> str:
    """For the person who writes a new regime file: requests per shape, the regime that fits best, what it leaves unexplained."""
    guess = nearest(witnesses)
    wrong = [witness for witness in witnesses if difference(guess, witness)]
    lines = [
        f"Nearest is {guess.name} ({guess.path.name}): right for {len(witnesses) - len(wrong)} of {len(witnesses)} shapes. A new file needs:"
    ]
    for witness in witnesses:
        plan = planned(guess, witness)
        known = [0] if isinstance(plan, str) else [a.allocated for a in plan.allocations]
        seen = [allocated for _, _, allocated in witness.outcome.allocations]
        residue = (
            [a - b for a, b in zip(seen, known, strict=False)] if len(seen) == len(known) else f"{len(seen)} buffers, not {len(known)}"
        )
        shape = ", ".join(f"{key}={value}" for key, value in witness.request.items())
        asks = [requested for _, requested, _ in witness.outcome.allocations]
        lines.append(
            f"  {shape}: {witness.outcome.failed or witness.outcome.refused or f'requested {asks} allocated {seen} residue {residue}'}"
        )
    if wrong:
        lines += [f"  multicast {wrong[0].outcome.multicast}, metadata {wrong[0].outcome.metadata}"]
    return "\n".join(lines)


def table(root: Path, version: str, behaviour: Behaviour) -> str:
    """The file's text: one line a witness, so that a person can compare two releases. NewArithmeticError."""
    regimes, confidential, rules = regimes_of(behaviour)
    lines = [f'version = "{version}"']
    if reason := _unimportable(root):
        lines += [f'importable = "{reason}"']
    lines += ["", "[regimes]", *(f'{backend} = "{name}"' for backend, name in regimes.items())]
    if confidential:
        lines += ["", "[confidential_computing]", *(f'{backend} = "{name}"' for backend, name in confidential.items())]
    lines += ["", "[rules]", f'handle_type = "{handle_rule(root)}"', *(f'{key} = "{value}"' for key, value in rules.items())]
    files = [file_of(module) for module in (*WATCHED, *ALSO_HASHED)]
    lines += ["", "[files]", *(f'"{file}" = "{file_digest(root / file)}"' for file in files if (root / file).is_file())]
    lines += ["", "[functions]"]
    for module, names in WATCHED.items():
        if (path := root / file_of(module)).is_file():
            found = definitions(path.read_text(encoding="utf-8"), names)
            lines += [f'"{module}.{name}" = "{definition.digest}"' for name, definition in found.items()]
    lines += ["", "[witness]"]
    for backend in BACKENDS:
        rows = behaviour.of(backend) + [w for w in behaviour.of(backend, confidential=True) if confidential and not w.outcome.refused]
        lines += [f"{backend} = [", *(f"    {_inline(row)}," for row in rows), "]"]
    return "\n".join(lines) + "\n"


def handle_rule(root: Path) -> str:
    """Who decides which handles memory is shared through: each "rank", or the "group" (from 0.7.4 on)."""
    return "group" if "def choose_mnnvl_handle_type" in (root / file_of("flashinfer.comm.mnnvl")).read_text(encoding="utf-8") else "rank"


def write(root: Path, version: str, output: Path) -> Path:
    """Write or update the table of the release under `root` below `output`, and give back its path.

    Raises:
        NewArithmeticError: a regime must be written first.
        DryRunError: the release's code cannot be run.
        OSError: the folder cannot be written; the packaged tables may be read-only, an overlay is not.
    """
    text = table(root, version, observe(root))
    path = output / "releases" / f"{version}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _unimportable(root: Path) -> str:
    for file, culprit, cure, reason in _UNIMPORTABLE:
        path = root / file
        if path.is_file() and culprit in (text := path.read_text(encoding="utf-8")) and cure not in text:
            return reason
    return ""


def _key(request: Mapping[str, Any]) -> str:
    return repr(sorted((key, value) for key, value in request.items() if key != "confidential_computing"))


def _inline(witness: Witness) -> str:
    """A TOML inline table."""
    outcome = witness.outcome
    row = {
        **{key: value for key, value in witness.request.items() if key != "confidential_computing"},
        "requested": [requested for _, requested, _ in outcome.allocations],
        "allocated": [allocated for _, _, allocated in outcome.allocations],
        **{key: value for key, value in witness.request.items() if key == "confidential_computing"},
    }
    return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in row.items()) + " }"


def _value(item: Any) -> str:
    if isinstance(item, bool):
        return str(item).lower()
    return f'"{item}"' if isinstance(item, str) else str(item)
