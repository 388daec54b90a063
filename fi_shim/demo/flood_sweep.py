"""The child of `fi-shim demo flood`: make a workspace with FlashInfer's own code, ask it about every shape, report as JSON lines.

usage: python -m fi_shim.demo.flood_sweep CALLS LOGFILE
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

# The token counts that an engine captures prefill graphs for: small ones, then every 128.
TOKEN_COUNTS: Final = (4, 8, 16, 24, 32, 48, 64, 80, 96, *range(128, 8192 + 1, 128))
WORLD_SIZE: Final = 4
MAX_TOKEN_NUM: Final = 2048
HIDDEN_DIM: Final = 2880


def main() -> int:
    """Sweep with FI_SHIM as the environment says."""
    calls, log_file = int(sys.argv[1]), Path(sys.argv[2])
    progress = os.fdopen(os.dup(1), "w", buffering=1)
    warnings.simplefilter("ignore")
    logging.basicConfig(filename=log_file, format="[%(asctime)s] %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    import torch

    import fi_shim
    from fi_shim.testing.recording import created_alone

    request: dict[str, Any] = {"world_size": WORLD_SIZE, "max_token_num": MAX_TOKEN_NUM, "hidden_dim": HIDDEN_DIM, "dtype": torch.bfloat16}
    printed = log_file.with_name("printed")
    with printed.open("w") as file, contextlib.redirect_stdout(file), created_alone(backend="trtllm", **request) as (workspace, _):
        before = _lines(log_file) + _lines(printed, file)
        started = time.perf_counter()
        answers = sweep(workspace, calls, torch.bfloat16, progress)
        seconds = time.perf_counter() - started
        lines = _lines(log_file) + _lines(printed, file) - before
    result = {
        "flashinfer": fi_shim.status()["flashinfer"],
        "calls": len(answers),
        "rejected": answers.count(0),
        "log_lines": lines,
        "seconds": seconds,
        "ns_a_call": seconds / len(answers) * 1e9,
        "answers": hashlib.sha256(answers).hexdigest(),
    }
    progress.write(json.dumps(result) + "\n")
    return 0


def sweep(workspace: Any, calls: int, dtype: Any, progress: Any) -> bytes:
    """`calls` questions, all layers for one token count after the other. One byte an answer."""
    layers = calls // len(TOKEN_COUNTS)
    answers = bytearray()
    for tokens in TOKEN_COUNTS:
        answers += bytes([workspace.is_buffer_size_sufficient(WORLD_SIZE, tokens, HIDDEN_DIM, dtype) for _ in range(layers)])
        progress.write(json.dumps({"done": len(answers)}) + "\n")
    return bytes(answers)


def _lines(path: Path, file: Any = None) -> int:
    if file is not None:
        file.flush()
    for handler in logging.getLogger().handlers:
        handler.flush()
    return path.read_bytes().count(b"\n") if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
