"""Is this the validator we know? By fingerprint, else by what it answers on a made-up workspace."""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from fi_shim.patches.known_code import changed_functions
from fi_shim.registry import UnknownCodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType, ModuleType

_PARAMETERS: Final = ("self", "tp_size", "num_tokens", "hidden_dim", "dtype", "use_oneshot")
_WORKSPACE: Final = "TRTLLMAllReduceFusionWorkspace"
_CHECK: Final = "check_trtllm_allreduce_fusion_workspace_metadata"


def recognise(module: ModuleType, workspace: type) -> str:
    """How the validator was recognised. UnknownCodeError where neither its code nor its answers are as known."""
    validator = vars(workspace).get("is_buffer_size_sufficient")
    if not callable(validator) or not inspect.isfunction(inspect.unwrap(validator)):
        raise UnknownCodeError(f"{_WORKSPACE}.is_buffer_size_sufficient is not a function")
    if tuple(inspect.signature(validator).parameters) != _PARAMETERS:
        raise UnknownCodeError(f"{_WORKSPACE}.is_buffer_size_sufficient has the signature {inspect.signature(validator)}")
    check = getattr(module, _CHECK, None)
    changed = _changed_functions(validator, check, workspace)
    if not changed:
        return "fingerprint"
    wrong = _wrong_answers(module, validator, workspace)
    if wrong:
        raise UnknownCodeError(f"{', '.join(changed)} changed, and {wrong}")
    return f"behavioural probe ({', '.join(changed)} changed)"


def _changed_functions(validator: Any, check: Any, workspace: type) -> list[str]:
    """Names of the functions that are not, to the letter of their syntax trees, those that were read."""
    found = {
        f"{_WORKSPACE}.is_buffer_size_sufficient": validator,
        f"{_WORKSPACE}.__getattr__": vars(workspace).get("__getattr__"),
        f"{_WORKSPACE}.destroy": vars(workspace).get("destroy"),
        _CHECK: check,
    }
    return changed_functions("validator", found)


def _wrong_answers(module: ModuleType, validator: Callable[..., bool], workspace: type) -> str:
    """Ask about a made-up workspace; the first answer that is not as known, or an empty text."""
    innermost: FunctionType = inspect.unwrap(validator)
    if "print" in innermost.__code__.co_names:
        return "it prints, so that it cannot be asked quietly"
    made_up: Any = object.__new__(workspace)
    made_up._destroyed = True  # or its destructor complains  # noqa: SLF001
    made_up.metadata = {
        "tp_rank": 0, "tp_size": 4, "max_token_num": 16, "hidden_dim": 64, "use_fp32_lamport": False, "buffer_size": 8192,
        "flag_size": 4096, "lamport_comm_size": 8192, "lamport_buffer_size": 24576,
    }  # fmt: skip
    quiet = _DropThisThread()
    logger = getattr(module, "logger", None)
    loggers = [logger for logger in (logger, logging.getLogger(module.__name__)) if isinstance(logger, logging.Logger)]
    for each in loggers:
        each.addFilter(quiet)
    try:
        return _first_wrong(validator, made_up)
    finally:
        for each in loggers:
            each.removeFilter(quiet)


def _first_wrong(validator: Callable[..., bool], made_up: Any) -> str:
    for is_fp32, arguments, expected in _cases():
        made_up.metadata["use_fp32_lamport"] = is_fp32
        try:
            answer = validator(made_up, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever it raises, it is not the answer that we would give
            return f"it raises {error!r} for {arguments}"
        if answer is not expected:
            return f"it answers {answer!r} for {arguments}, {expected} was expected"
    return ""


def _cases() -> Iterator[tuple[bool, tuple[Any, ...], bool]]:
    """(fp32 mode, arguments, answer) for a workspace of 16 tokens of 64 elements on 4 ranks."""
    from torch import bfloat16, float16, float32

    sizes = [
        (16, 64),
        (1024, 1),
        (1, 1024),
        (0, 64),
        (-1, 64),
        (17, 64),
        (16, 65),
        (1025, 1),
        (8192, 12288),
        (1 << 20, 1 << 20),
        (1, 1 << 40),
    ]
    for is_fp32, dtype, tp_size, (tokens, hidden) in itertools.product([False, True], [bfloat16, float16, float32], [4, 8], sizes):
        fits = tp_size == 4 and tokens * hidden <= 16 * 64 and is_fp32 is (dtype is float32)  # noqa: PLR2004
        yield is_fp32, (tp_size, tokens, hidden, dtype), fits
        for use_oneshot in (None, True, False):
            yield is_fp32, (tp_size, tokens, hidden, dtype, use_oneshot), fits


class _DropThisThread(logging.Filter):
    """Drops what the probing thread logs; other threads are heard."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread
