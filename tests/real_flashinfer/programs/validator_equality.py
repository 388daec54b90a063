"""Every answer of the patched validator against FlashInfer's own, on a workspace that FlashInfer's own code made."""

from __future__ import annotations

import itertools
import json
import logging
import warnings
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402

import fi_shim  # noqa: E402
from fi_shim.registry import REGISTRY  # noqa: E402
from fi_shim.testing.recording import created_alone  # noqa: E402

RECORDS: list[str] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "fi_shim":
            RECORDS.append(record.getMessage())


class Odd:
    """Multiplies, but not to a number."""

    def __mul__(self, other: object) -> str:
        return "odd"

    def __rmul__(self, other: object) -> str:
        return "odd"


TP_SIZES = [4, 2, 0, -4, 4.0, True, None, "4", np.int64(4)]
TOKENS = [
    0,
    1,
    15,
    16,
    17,
    1 << 20,
    1 << 70,
    -1,
    -(1 << 70),
    16.0,
    16.5,
    float("nan"),
    True,
    None,
    "16",
    np.int32(16),
    np.int32(1 << 30),
    Odd(),
]
HIDDEN = [64, 63, 65, 0, 1, -64, 1 << 70, 64.0, None, np.int64(64), np.int32(1 << 10)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int8, None, "float32", np.dtype("float32"), 4]


def outcome(function: Any, *arguments: Any) -> tuple[str, Any]:
    try:
        answer = function(*arguments)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error)
    return type(answer).__name__, answer


def compare(workspace: Any, original: Any, label: str) -> int:
    """Number of calls compared; AssertionError at the first difference."""
    compared = 0
    for tp_size, tokens, hidden, dtype in itertools.product(TP_SIZES, TOKENS, HIDDEN, DTYPES):
        theirs = outcome(original, workspace, tp_size, tokens, hidden, dtype)
        ours = outcome(type(workspace).is_buffer_size_sufficient, workspace, tp_size, tokens, hidden, dtype)
        assert ours == theirs, (label, tp_size, tokens, hidden, dtype, ours, theirs)
        compared += 1
    return compared


def odd_metadata(workspace: Any, original: Any) -> None:
    good = workspace.metadata
    for key in ("tp_size", "max_token_num", "hidden_dim", "use_fp32_lamport"):
        for value in (None, "16", 3.5, True, 1 << 70, np.int64(5), 10_000):
            kept = good[key]
            good[key] = value  # the same object, changed under us
            compare_some(workspace, original, f"in place {key}={value!r}")
            good[key] = kept
            workspace.metadata = {**good, key: value}
            compare_some(workspace, original, f"replaced {key}={value!r}")
            workspace.metadata = good
        kept = good.pop(key)
        compare_some(workspace, original, f"without {key}")
        good[key] = kept
    for other in ({}, None, [], "metadata"):
        workspace.metadata = other
        compare_some(workspace, original, f"metadata={other!r}")
    workspace.metadata = good


def compare_some(workspace: Any, original: Any, label: str) -> None:
    for tp_size, tokens, dtype in itertools.product([4, 2], [1, 16, 17, 1 << 20, None], [torch.bfloat16, torch.float32, None]):
        arguments = (workspace, tp_size, tokens, 64, dtype)
        theirs = outcome(original, *arguments)
        ours = outcome(type(workspace).is_buffer_size_sufficient, *arguments)
        assert ours == theirs, (label, arguments[1:], ours, theirs)


def lines_of(function: Any, *arguments: Any) -> int:
    before = len(RECORDS)
    function(*arguments)
    return len(RECORDS) - before


def main() -> None:
    logging.getLogger().addHandler(Keep())
    compared = 0
    silent = heard = 0
    for dtype in (torch.bfloat16, torch.float32):
        with created_alone(backend="trtllm", world_size=4, max_token_num=16, hidden_dim=64, dtype=dtype) as (workspace, _):
            original = next(p.original for p in REGISTRY.records["validator"].points if p.attribute == "is_buffer_size_sufficient")
            assert "_fi_shim_limits" in vars(workspace)
            other = torch.float32 if dtype is torch.bfloat16 else torch.bfloat16
            rejections = fi_shim.status()["suppressed"]["rejections"]
            silent += lines_of(workspace.is_buffer_size_sufficient, 4, 17, 64, dtype)
            silent += lines_of(workspace.is_buffer_size_sufficient, 4, 1, 64, other, True)
            assert fi_shim.status()["suppressed"]["rejections"] == rejections + 2
            heard += lines_of(workspace.is_buffer_size_sufficient, 2, 17, 64, dtype)  # another tp_size is FlashInfer's to judge
            compared += compare(workspace, original, str(dtype))
            odd_metadata(workspace, original)
            workspace.destroy()
            assert "_fi_shim_limits" not in vars(workspace)
            compare_some(workspace, original, "after destroy")
            assert outcome(workspace.is_buffer_size_sufficient, 4, 1, 64, dtype)[0] == "AttributeError"
    state = fi_shim.status()["patches"]["validator"]
    print(json.dumps({"compared": compared, "silent": silent, "heard": heard, "state": state["state"], "how": state["reason"]}))


main()
