"""FlashInfer's own code builds under guard; then all ranks keep what they built, or none does."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.patches.replaced_names import WINDOW
from fi_shim.patches.restoring import memories_of
from fi_shim.patches.undoing import undo
from fi_shim.seams.building import Building
from fi_shim.seams.collectives import guarded_backend
from fi_shim.seams.window import building
from fi_shim.workspace.ballot.gathering import BUILDING, Gathering, StoppedError
from fi_shim.workspace.store import transport_of
from fi_shim.workspace.transaction import Preparation, commit, without
from fi_shim.workspace.vote import OWN_CALL, OWN_ERROR, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.patches.asked import Asked
    from fi_shim.seams.groups import Electorate

_PACKAGE: Final = Path(__file__).parents[1]
USE: Final = (TypeError, ValueError, AssertionError, NotImplementedError, ImportError)
"""What FlashInfer raises for wrong use; where all ranks get it, it is not a decline."""


class GuardedBuild:
    """One build: `make` it, then look at `verdict`.

    Args:
        asked: what was asked for.
        electorate: by whom.
        prepared: the outcome of the votes so far, with an open session.
        workspace: the object that is made or restored; None for the legacy creator.
        objection: (what was built, its journal) -> why it is not to be kept, or an empty text.
    """

    def __init__(
        self, asked: Asked, electorate: Electorate, prepared: Preparation, workspace: Any, objection: Callable[[Any, Building], str]
    ) -> None:
        assert prepared.session is not None
        store = transport_of(electorate.group).origin
        self._build = Building(
            Gathering(prepared.session, prepared.record.where, prepared.record.flashinfer), electorate.group, store, prepared.reserve
        )
        if asked.kind == "restore":
            self._build.memories = memories_of(workspace)
        self._asked = asked
        self._prepared = prepared
        self._objection = objection
        self.verdict = Verdict("no", "not built yet")
        self._decided = False
        self._built: Any = None
        self.refusal: Exception | None = None
        """FlashInfer refuses the arguments, on all ranks: its own exception, one of USE."""

    def make(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call FlashInfer's own code.

        Returns:
            What it returned; None where `verdict` is a no and all is given back.
        """
        try:
            with WINDOW.opened(), building(self._build):
                self._make_together(original, args, kwargs)
        except BaseException as error:
            if not self._decided or not isinstance(error, Exception):
                self._interrupted(error, args)
                raise
            _say_not_tidied(error)  # what is decided holds on all ranks
        finally:
            for tidy in (self._prepared.drop_reserve, self._build.end):
                try:
                    tidy()
                except Exception as error:  # noqa: BLE001  # the same
                    _say_not_tidied(error)
        built, self._built = self._built, None
        return built

    def _make_together(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kind, build = self._asked.kind, self._build
        built, error = self._run(original, args, kwargs)
        its_own = error is not None and not _passed_through_us(error)
        workspace = built if kind == "legacy" else args[0]
        failure = self._failure(workspace, error)
        lost = error.failure if isinstance(error, StoppedError) and error.failure.lost else None
        self.verdict = commit(self._prepared, failure) if lost is None else without(self._prepared, lost.rank, str(lost))
        self._decided = True
        if not self.verdict.declined:
            self._built = built
            self._keep(workspace)
            build.gathering.tidy()
            return
        del built
        with contextlib.suppress(Exception):  # declined it is, also where something cannot be given back
            undo(build, kind, workspace, error)
        if its_own and error is not None and self._is_refusal(error):
            self.refusal = error.with_traceback(None)

    def _run(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Exception | None]:
        assert self._prepared.session is not None
        args, kwargs = self._with_backend(original, args, kwargs)
        try:
            with self._prepared.session.working(BUILDING):
                return original(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001  # told to all ranks
            return None, error

    def _failure(self, workspace: Any, error: Exception | None) -> tuple[str, int] | None:
        """What this rank says against the build, and how surely it is its own fault. The others hear of it at once."""
        build = self._build
        if error is None:
            objection = self._objection(workspace, build)
            if not objection:
                return None
            build.gathering.fail(objection)
            return objection, OWN_ERROR
        if isinstance(error, StoppedError):
            return f"stopped, since {error.failure}", 0
        text = f"{type(error).__name__}: {error}"
        if build.journal.last_failure:
            text = f"{build.journal.last_failure} ({text})"
        try:
            counts = build.gathering.fail(text)
        except Exception as lost:  # noqa: BLE001  # they will miss this rank
            return f"{text} ({lost})", OWN_ERROR
        if build.journal.last_failure:
            return text, OWN_CALL
        own = counts.rank == build.gathering.rank or counts.reason == text or isinstance(error, USE)
        return (text, OWN_ERROR) if own else (f"{text}, since {counts}", 0)

    def _is_refusal(self, error: Exception) -> bool:
        """Whether FlashInfer says no to the request itself, on all ranks: then its own exception is the clear one."""
        records = self.verdict.records
        if not all(record.blame for record in records):
            return False
        unprobed = self._prepared.verdict.outcome == "abstain" and len({record.reason for record in records}) == 1
        return unprobed or isinstance(error, USE)

    def _with_backend(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            bound = inspect.signature(original).bind(*args, **kwargs)
        except TypeError:
            return args, kwargs  # FlashInfer says so itself
        if "comm_backend" not in bound.signature.parameters:
            return args, kwargs
        bound.arguments["comm_backend"] = guarded_backend(self._build, lambda: self._callers_backend, _mnnvl().TorchDistBackend)
        return bound.args, bound.kwargs

    @functools.cached_property
    def _callers_backend(self) -> Any:
        """What the caller passed, or what FlashInfer would have made."""
        if self._asked.comm_backend is not None:
            return self._asked.comm_backend
        return _mnnvl().MPIBackend() if self._asked.kind == "mnnvl" else _mnnvl().TorchDistBackend(group=self._asked.group)

    def _keep(self, workspace: Any) -> None:
        """The build stands: the caller's backend is put where FlashInfer kept ours, and nothing of ours stays."""
        for memory in self._build.memories:
            self._put_back(memory)
            self._put_back(vars(memory).get("_exchanger"))
        if self._asked.kind != "legacy":
            self._put_back(workspace)
        self._build.memories.clear()
        self._build.journal.forget()

    def _put_back(self, owner: Any) -> None:
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if type(value).__name__ == "GuardedBackend" and getattr(value, "_build", None) is self._build:
                vars(owner)[name] = self._callers_backend  # some of FlashInfer's objects are frozen

    def _interrupted(self, interrupt: BaseException, args: tuple[Any, ...]) -> None:
        """KeyboardInterrupt, SystemExit, or a fault of ours: the others hear of it, and nothing stays."""
        build = self._build
        if self._decided and not self.verdict.declined:
            return
        if not self._decided:
            assert self._prepared.session is not None
            with contextlib.suppress(Exception):  # the interrupt itself is what the caller must see
                build.gathering.fail(f"{type(interrupt).__name__}: {interrupt}".rstrip(": "))
            with contextlib.suppress(Exception):
                self._prepared.session.close(f"{type(interrupt).__name__}")
        with contextlib.suppress(Exception):
            undo(build, self._asked.kind, None if self._asked.kind == "legacy" else args[0], None)


def _passed_through_us(error: BaseException) -> bool:
    """Whether what FlashInfer raised came from below a stand-in, or from what it builds upon: then it may be a fault of ours, or of a call."""
    frame = error.__traceback__
    while frame is not None:
        folder = Path(frame.tb_frame.f_code.co_filename).parent
        if any(folder.is_relative_to(_PACKAGE / ours) for ours in ("seams", "workspace")):
            return True
        frame = frame.tb_next
    return False


def _say_not_tidied(error: Exception) -> None:
    with contextlib.suppress(Exception):
        log.event("warning", "not_given_back", what=f"after a build: {type(error).__name__}: {error}")


def _mnnvl() -> Any:
    return sys.modules["flashinfer.comm.mnnvl"]
