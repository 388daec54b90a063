"""Write the table of one FlashInfer release, `compat/releases/<version>.toml`, from the release's own code.

Run it in an interpreter where that release is importable (see tools/fetch_flashinfer.py). The regimes are those that reproduce every
witness; new arithmetic is refused: write the regime first.

usage: PYTHONPATH=<release folder> python tools/record_release.py [--output compat]
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from fi_shim.compatibility import REFUSED, folders
from fi_shim.drift.fingerprint import file_digest, fingerprint
from fi_shim.testing.recording import record
from fi_shim.workspace.planning import installed_flashinfer
from fi_shim.workspace.request import workspace_shape
from fi_shim.workspace.sizes import Granularities, Regime, load_regime

MIB = 1 << 20
CONFIDENTIAL = "FLASHINFER_CONFIDENTIAL_COMPUTE"

# world size, tokens, hidden, dtype: the sizes that engines ask for, rounding edges (the 2048-byte pad at 2 MiB and at 512 MiB),
# the lamport cap, odd shapes, world sizes 1 to 16.
TRTLLM_SHAPES: list[tuple[int, int, int, str]] = [
    (2, 2048, 4096, "bfloat16"), (2, 2048, 4096, "float32"), (4, 2048, 2880, "bfloat16"), (8, 2048, 12288, "bfloat16"),
    (8, 2048, 12288, "float32"), (16, 8192, 16384, "bfloat16"), (16, 8192, 16384, "float32"), (1, 1023, 1024, "float16"),
    (1, 1, 1047553, "float16"), (3, 5, 7, "float16"), (16, 1, 64, "float32"), (2, 1, 178956288, "float16"),
]  # fmt: skip
MNNVL_SHAPES: list[tuple[int, int, int, str]] = [
    (2, 2048, 4096, "bfloat16"), (2, 2048, 4096, "float32"), (4, 2048, 2880, "bfloat16"), (8, 2048, 8192, "bfloat16"),
    (8, 13, 4096, "bfloat16"), (16, 1, 64, "float32"), (1, 87381, 512, "bfloat16"), (1, 87382, 512, "bfloat16"),
    (3, 5, 7, "float16"), (1, 1, 1, "float8_e4m3fn"), (16, 8192, 4096, "float32"), (7, 100, 333, "float32"),
]  # fmt: skip
ONESHOT_SHAPES: list[tuple[int, int, int, str]] = [(8, 2048, 4096, "bfloat16"), (3, 5, 7, "float16")]
GRANULARITIES = {"allocation_granularity": 4 * MIB, "multicast_granularity": 8 * MIB, "signal_pad_size": 9216}

FUNCTIONS = {
    "allreduce": [
        "TRTLLMAllReduceFusionWorkspace.__init__", "TRTLLMAllReduceFusionWorkspace.__getattr__",
        "TRTLLMAllReduceFusionWorkspace.is_buffer_size_sufficient", "TRTLLMAllReduceFusionWorkspace.destroy",
        "create_allreduce_fusion_workspace",
    ],
    "trtllm_ar": [
        "BarrierFlagCount", "MAX_COMM_SIZE", "trtllm_create_ipc_workspace_for_all_reduce_fusion",
        "trtllm_destroy_ipc_workspace_for_all_reduce_fusion", "trtllm_lamport_initialize", "_initialize_allreduce_fusion_protocol",
        "check_trtllm_allreduce_fusion_workspace_metadata",
    ],
    "mnnvl": ["SIGNAL_PAD_SIZE", "round_up", "SymmDeviceMemory", "McastGPUBuffer.__init__", "is_mnnvl_fabric_supported",
              "choose_mnnvl_handle_type", "allocate_mnnvl_handles", "_create_and_import_handles"],
    "trtllm_mnnvl_ar": ["MNNVL_ONE_SHOT_THRESHOLD", "MNNVLAllReduceFusionWorkspace.__init__",
                        "MNNVLAllReduceFusionWorkspace.get_required_buffer_size_bytes", "MNNVLAllReduceFusionWorkspace.destroy"],
    "torch_symmetric_memory": ["_alloc_symm_buffer_bytes"],
    "workspace_base": ["AllReduceFusionWorkspace.__init__", "AllReduceFusionWorkspace.__del__"],
    "cuda_ipc": ["create_shared_buffer"],
}  # fmt: skip


def main() -> int:
    """Record the FlashInfer of this interpreter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=folders()[-1], help="the compat folder")
    output: Path = parser.parse_args().output
    warnings.simplefilter("ignore")
    version = installed_flashinfer()
    ordinary = {"trtllm": witnesses("trtllm"), "mnnvl": witnesses("mnnvl")}
    regimes = {backend: matching_regime(backend, rows) for backend, rows in ordinary.items()}
    confidential = confidential_regimes(ordinary)
    text = table(version, regimes, confidential, ordinary)
    path = output / "releases" / f"{version}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{version}: {regimes} {confidential or ''}")
    return 0


def witnesses(backend: str) -> list[dict[str, Any]]:
    """What the release asks for, over the shapes of its backend."""
    shapes = TRTLLM_SHAPES if backend == "trtllm" else MNNVL_SHAPES
    rows = [witness(backend, shape) for shape in shapes] + [witness(backend, shapes[0], **GRANULARITIES)]
    if backend == "mnnvl":
        rows += [witness(backend, shape, force_oneshot_support=True) for shape in ONESHOT_SHAPES]
    return rows


def witness(backend: str, shape: tuple[int, int, int, str], **options: Any) -> dict[str, Any]:
    """One row: the request and the bytes."""
    import torch

    world_size, tokens, hidden, dtype = shape
    request = {"world_size": world_size, "max_token_num": tokens, "hidden_dim": hidden}
    recorded = record(backend=backend, dtype=getattr(torch, dtype), **request, **options)
    return {
        **request, "dtype": dtype, **options,
        "allocator": recorded.allocations[0].allocator,
        "requested": [a.requested for a in recorded.allocations],
        "allocated": [a.allocated for a in recorded.allocations],
        "metadata": recorded.metadata,
    }  # fmt: skip


def confidential_regimes(ordinary: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Map backend to regime under confidential computing, where the release asks about it; adds its witnesses to `ordinary`."""
    import flashinfer.utils

    if not hasattr(flashinfer.utils, "is_confidential_compute"):
        return {}
    os.environ[CONFIDENTIAL] = "1"
    try:
        rows = [witness("trtllm", shape) for shape in (TRTLLM_SHAPES[1], TRTLLM_SHAPES[4], TRTLLM_SHAPES[9])]
        rows.append(witness("trtllm", TRTLLM_SHAPES[0], **GRANULARITIES))
        try:
            witness("mnnvl", MNNVL_SHAPES[0])
        except ValueError:
            mnnvl = REFUSED
        else:
            raise SystemExit("mnnvl is built under confidential computing: teach this tool to witness that")
    finally:
        del os.environ[CONFIDENTIAL]
    regime = matching_regime("trtllm", rows)
    ordinary["trtllm"] += [{**row, "confidential_computing": True} for row in rows]
    return {"trtllm": regime, "mnnvl": mnnvl}


def matching_regime(backend: str, rows: list[dict[str, Any]]) -> str:
    """Name of the one regime that reproduces every row. SystemExit if there is none, with what the first row asks for."""
    names = sorted(path.stem for path in (folders()[-1] / "regimes").glob("*.toml"))
    regimes = [regime for regime in map(load_regime, names) if regime.backend == backend]
    fitting = [regime.name for regime in regimes if all(reproduces(regime, backend, row) for row in rows)]
    if len(fitting) != 1:
        raise SystemExit(
            f"{backend}: regimes that allocate like this release: {fitting or 'none'}; one is needed. First witness: {rows[0]}"
        )
    return fitting[0]


def reproduces(regime: Regime, backend: str, row: dict[str, Any]) -> bool:
    """Whether the regime gives the row's bytes and metadata."""
    names = ("world_size", "max_token_num", "hidden_dim", "dtype")
    shape = workspace_shape(backend=backend, **{n: row[n] for n in names}, force_oneshot_support=row.get("force_oneshot_support", False))
    given = {n.removesuffix("_granularity").removesuffix("_size"): row[n] for n in GRANULARITIES if n in row}
    plan = regime.plan(shape, Granularities(**given))
    return (
        [a.requested for a in plan.allocations] == row["requested"]
        and [a.allocated for a in plan.allocations] == row["allocated"]
        and plan.allocations[0].allocator == row["allocator"]
        and all(row["metadata"].get(key, value) == value for key, value in plan.metadata.items())
    )


def table(version: str, regimes: dict[str, str], confidential: dict[str, str], rows: dict[str, list[dict[str, Any]]]) -> str:
    """The file's text: one line a witness, so that a person can compare two releases."""
    import flashinfer

    root = Path(flashinfer.__file__).parent
    lines = [f'version = "{version}"']
    if version.startswith("0.6.16") and not version.endswith("post4"):
        lines += ['importable = "Python 3.12 and newer: flashinfer/comm/fd_exchange.py subscripts array.array in an annotation"']
    lines += ["", "[regimes]", *(f'{backend} = "{name}"' for backend, name in regimes.items())]
    if confidential:
        lines += ["", "[confidential_computing]", *(f'{backend} = "{name}"' for backend, name in confidential.items())]
    lines += ["", "[rules]", *(f'{key} = "{value}"' for key, value in rules(root / "comm", regimes["trtllm"]).items())]
    files = {f"flashinfer/comm/{name}.py": root / "comm" / f"{name}.py" for name in [*FUNCTIONS, "comm_backend", "fd_exchange"]}
    lines += ["", "[files]", *(f'"{name}" = "{file_digest(path)}"' for name, path in files.items() if path.is_file())]
    lines += ["", "[functions]"]
    for module, names in FUNCTIONS.items():
        path = root / "comm" / f"{module}.py"
        if path.is_file():
            source = path.read_text(encoding="utf-8")
            found = {name: fingerprint(source, name) for name in names}
            lines += [f'"flashinfer.comm.{module}.{name}" = "{digest}"' for name, digest in found.items() if digest]
    lines += ["", "[witness]"]
    for backend, witnessed in rows.items():
        lines += [f"{backend} = [", *(f"    {inline(row)}," for row in witnessed), "]"]
    return "\n".join(lines) + "\n"


def rules(comm: Path, trtllm: str) -> dict[str, str]:
    """What the probe must know besides sizes: who decides the handle type, on which device, how the legacy creator allocates."""
    creator = (comm / "trtllm_ar.py").read_text(encoding="utf-8")
    collective = "def choose_mnnvl_handle_type" in (comm / "mnnvl.py").read_text(encoding="utf-8")
    by_rank = 'torch.device("cuda", tp_rank)' in creator
    # With its defaults the legacy creator takes cudaMalloc memory where FlashInfer has no symmetric memory yet, else that.
    legacy = {"T1": "L1", "T2": "T2", "T3": "T2", "T4": "T4-confidential"}[trtllm]
    return {"handle_type": "group" if collective else "rank", "device": "rank" if by_rank else "current", "legacy_creator": legacy}


def inline(row: dict[str, Any]) -> str:
    """A TOML inline table."""

    def value(item: Any) -> str:
        if isinstance(item, bool):
            return str(item).lower()
        return f'"{item}"' if isinstance(item, str) else str(item)

    return "{ " + ", ".join(f"{key} = {value(item)}" for key, item in row.items() if key not in {"metadata", "allocator"}) + " }"


if __name__ == "__main__":
    sys.exit(main())
