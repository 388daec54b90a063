"""All numbers of README's table, measured in one run; ratios, since machines differ.

usage: PYTHONPATH=<FlashInfer release folder> python benchmarks/run.py        (or `make bench`)
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROUNDS = 30
WORLD_SIZE, MAX_TOKEN_NUM, HIDDEN_DIM = 4, 2048, 2880


def import_seconds(statement: str, repeats: int = 12) -> float:
    code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(repeats)]
    return min(times)


def best_ns(functions: dict[str, tuple[Any, int]], workspace: Any, dtype: Any, repeats: dict[str, int]) -> dict[str, float]:
    """Best of interleaved rounds, nanoseconds a call."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, (function, tokens) in functions.items():
            count = repeats[name]
            started = time.perf_counter()
            for _ in range(count):
                function(workspace, WORLD_SIZE, tokens, HIDDEN_DIM, dtype)
            best[name] = min(best[name], (time.perf_counter() - started) / count * 1e9)
    return best


def validator_rows() -> list[tuple[str, str, str, str]]:
    import torch

    from fi_shim.patches.validator import remember_limits
    from fi_shim.registry import REGISTRY
    from fi_shim.testing.recording import created_alone

    dtype = torch.bfloat16
    request = {"world_size": WORLD_SIZE, "max_token_num": MAX_TOKEN_NUM, "hidden_dim": HIDDEN_DIM, "dtype": dtype}
    with created_alone(backend="trtllm", **request) as (created, _):
        cls, metadata = type(created), created.metadata
    # Measured outside the block, in which FlashInfer's modules see doubles of torch: attributes of a double cost more.
    workspace: Any = object.__new__(cls)
    workspace._destroyed, workspace.metadata = True, metadata
    remember_limits(workspace)
    ours = cls.is_buffer_size_sufficient
    theirs = next(p.original for p in REGISTRY.records["validator"].points if p.attribute == "is_buffer_size_sufficient")
    fits, too_large = 100, 4096
    functions = {"ours+": (ours, fits), "theirs+": (theirs, fits), "ours-": (ours, too_large), "theirs-": (theirs, too_large)}
    best = best_ns(functions, workspace, dtype, {"ours+": 20000, "theirs+": 20000, "ours-": 20000, "theirs-": 500})
    faster, slower = best["theirs-"] / best["ours-"], best["ours+"] / best["theirs+"]
    return [
        ("rejected call, FlashInfer (logging to a file)", f"{best['theirs-']:,.0f} ns", "", ""),
        ("rejected call, fi_shim", f"{best['ours-']:,.0f} ns", f"{faster:.0f} times faster", "at least 50, under 500 ns"),
        ("accepted call, FlashInfer", f"{best['theirs+']:,.0f} ns", "", ""),
        ("accepted call, fi_shim", f"{best['ours+']:,.0f} ns", f"{slower:.2f} times", "at most 1.3"),
    ]


def preflight_rows() -> list[tuple[str, str, str, str]]:
    import json
    import os

    environ = {**os.environ, "FI_SHIM_SIMULATE": "4x8GiB", "FI_SHIM_LOG": "error", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, str(Path(__file__).with_name("preflight.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    vote, plain, guarded = (seen[name] for name in ("preflight", "without", "with"))
    more = {key: guarded[key] - plain[key] for key in plain}
    return [
        ("probe and vote, 4 simulated ranks", f"{vote['best_ms']:.1f} ms", f"median {vote['median_ms']:.1f} ms", "under 20 ms"),
        ("creation, 4 simulated ranks, FlashInfer", f"{plain['best_ms']:.1f} ms", f"median {plain['median_ms']:.1f} ms", ""),
        ("creation, fi_shim: more", f"{more['best_ms']:.1f} ms", f"median {more['median_ms']:.1f} ms", "at most 25 ms"),
    ]


def import_rows() -> list[tuple[str, str, str, str]]:
    reference, own = import_seconds("import wrapt, packaging.version"), import_seconds("import fi_shim")
    return [
        ("import wrapt, packaging.version", f"{reference * 1e3:.1f} ms", "", ""),
        ("import fi_shim", f"{own * 1e3:.1f} ms", f"{own / reference:.2f} times", "at most 1.3"),
    ]


def main() -> int:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fi_shim-bench-") as folder:
        log = Path(folder, "log")
        logging.basicConfig(filename=log, format="[%(asctime)s] %(levelname)s %(name)s: %(message)s", level=logging.INFO)
        import fi_shim

        rows = import_rows() + validator_rows() + preflight_rows()
        headers = ("measured", "best", "ratio", "wanted")
        print(f"FlashInfer {fi_shim.status()['flashinfer']}, Python {sys.version.split()[0]}\n")
        print(tabulate(rows, headers=headers, colalign=("left", "right", "right", "left"), disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
