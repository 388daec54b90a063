"""A dry run: a release's own creation code, executed from source in a child interpreter that sees no CUDA device."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.creation_run import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TIME_LIMIT_S: Final = 60.0
_CHILD: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fi_shim.drift.dry_run import child; child()"


class DryRunError(RuntimeError):
    """The release's code could not be run, or did not end in time; the text says why."""


def dry_run(
    root: Path, requests: Sequence[tuple[str, Mapping[str, Any]]], *, questions: Sequence[Any] = (), time_limit_s: float = TIME_LIMIT_S
) -> list[Outcome]:
    """What the creation code under `root` asks for.

    Args:
        root: folder that contains `flashinfer/`.
        requests: (entry, arguments), as `ReleaseCode.create` takes them.
        questions: to ask the validator of the first workspace of backend trtllm.
        time_limit_s: seconds after which the child is killed.

    Returns:
        One outcome a request, in order.

    Raises:
        DryRunError: the modules cannot be executed, or the time limit passed.
    """
    order = {"root": str(root.resolve()), "requests": requests, "questions": questions}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FI_SHIM"))}
    process = subprocess.Popen(  # noqa: S603  # this interpreter, our own program
        [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**environment, "FI_SHIM": "0", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    try:
        output, errors = process.communicate(json.dumps(order), timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise DryRunError(f"the dry run did not end within {time_limit_s:.0f} s") from None
    finally:
        _end(process)
    try:
        answer = json.loads(output)
    except ValueError:
        raise DryRunError(f"the dry run broke off (exit {process.returncode}): {errors.strip()[-2000:]}") from None
    if "error" in answer:
        raise DryRunError(answer["error"])
    return [Outcome.from_json(outcome) for outcome in answer["outcomes"]]


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the child, with all that it started; it has a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def child() -> None:
    """In the child: one order on stdin, one answer on stdout."""
    order = json.loads(sys.stdin.read())
    answer_to, sys.stdout = sys.stdout, sys.stderr
    answer_to.write(json.dumps(_answer(order)))
    answer_to.flush()


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from fi_shim.drift.creation_run import ReleaseCode

    try:
        code = ReleaseCode(Path(order["root"]))
    except Exception as error:  # noqa: BLE001  # the release's code: anything may come
        return {"error": f"its modules cannot be executed: {type(error).__name__}: {error}"}
    questions, outcomes = order["questions"], []
    for entry, request in order["requests"]:
        asks = questions if entry == "trtllm" else ()
        outcomes.append(code.create(entry, request, asks).as_json())
        questions = () if asks else questions
    return {"outcomes": outcomes}
