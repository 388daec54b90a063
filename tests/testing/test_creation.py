"""Real FlashInfer creation in real processes, against the size table and against what was measured on two H200s."""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("flashinfer", reason="no FlashInfer is importable")
sys.path.insert(0, str(Path(__file__).parent))
import sizes
from conftest import PROGRAMS, Nursling
from packaging.version import Version

pytestmark = pytest.mark.flashinfer

MIB = 1 << 20
SMALL = 2 * MIB  # pointer tables and flags, together
HANG = 4.0  # seconds that a rank may take after its peer has failed


@pytest.fixture(scope="module")
def version() -> Version:
    from fi_shim.testing import import_aids

    import_aids.install()
    import flashinfer

    return Version(flashinfer.__version__)


@pytest.fixture
def group(request: pytest.FixtureRequest, simulated_environ: Any, tmp_path: Path) -> Any:
    """Start the ranks of a group; they are killed at the end."""
    nursery = request.getfixturevalue("nursery")
    started: list[Nursling] = []

    def start(world_size: int, requests: list[tuple[Any, ...]], **options: str) -> list[Nursling]:
        program = str(PROGRAMS / "rank.py")
        for rank in range(world_size):
            command = [program, str(rank), str(world_size), str(tmp_path / "store"), json.dumps(requests)]
            started.append(Nursling(nursery, command, simulated_environ(**options)))
        return started

    yield start
    for process in started:
        process.kill()


def line(process: Nursling) -> dict[str, Any]:
    text = process.stdout.readline()
    if not text:
        pytest.fail(process.errors())
    answer: dict[str, Any] = json.loads(text)
    assert "error" not in answer, answer["error"]
    return answer


def hangs(process: Nursling) -> bool:
    """Whether a rank says nothing for HANG seconds, its peer having failed and being alive."""
    return not select.select([process.stdout], [], [], HANG)[0]


def error(process: Nursling) -> str:
    text = process.stdout.readline()
    if not text:
        pytest.fail(process.errors())
    return str(json.loads(text)["error"])


def total(version: Version, backend: str, world_size: int, tokens: int, hidden: int) -> int:
    pad = {"g": 2 * MIB, "m": 512 * MIB, "pad": 9216 if Version("0.6.10") <= version < Version("0.6.15") else 2048}
    if backend == "mnnvl":
        return sum(one[2] for one in sizes.mnnvl(str(version), world_size, tokens, hidden, 2, **pad, oneshot=False))
    return sum(one[2] for one in sizes.trtllm(str(version), world_size, tokens, hidden, 2, **pad, confidential=False))


def uses_torch_symmetric_memory(version: Version) -> bool:
    return Version("0.6.10") <= version < Version("0.6.15")


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_creation_and_what_destroy_leaves(version: Version, group: Any, world_size: int) -> None:
    ranks = group(world_size, [(backend, 512, 4096, "bfloat16", "") for backend in ("mnnvl", "trtllm")], simulate=f"{world_size}x8GiB")
    early = version < Version("0.6.10")
    for backend in ("mnnvl", "trtllm"):
        size = total(version, backend, world_size, 512, 4096)
        small = 0 if backend == "mnnvl" and uses_torch_symmetric_memory(version) else SMALL
        for rank, process in enumerate(ranks):
            seen = line(process)
            gained = {device: seen["during"][device] - seen["before"].get(device, 0) for device in seen["during"]}
            assert gained == {str(device): size + small for device in range(world_size)}
            left = {name: seen[name] for name in ("handles", "mappings", "descriptors", "linear")}
            if backend == "mnnvl":
                assert left == {"handles": 0, "mappings": 0, "descriptors": (2 + (rank == 0)) * early, "linear": 0}
                assert seen["after"] == ({str(device): size for device in range(world_size)} if early else {})
            elif early:
                assert left == {"handles": 0, "mappings": 0, "descriptors": 6 + 2 + (rank == 0), "linear": 1}
                assert seen["after"] == seen["during"]
            else:
                tables = 0 if uses_torch_symmetric_memory(version) else 3
                assert left == {"handles": 3 * world_size, "mappings": 3 * world_size, "descriptors": 0, "linear": 1 + tables}
                assert seen["after"] == seen["during"]


MEASURED = {  # bytes on two H200s: release -> (tokens, hidden, dtype) -> bytes
    "0.6.9": {(2048, 4096, "bfloat16"): 1610612736, (2048, 12288, "bfloat16"): 1610612736, (2048, 4096, "float32"): 1610612736},
    "0.6.12": {(2048, 12288, "bfloat16"): 408944640},
    "0.7.2": {(2048, 4096, "bfloat16"): 140509184, (2048, 12288, "bfloat16"): 408944640, (2048, 4096, "float32"): 274726912},
    "0.7.4": {(2048, 4096, "bfloat16"): 140509184, (2048, 12288, "bfloat16"): 408944640, (2048, 4096, "float32"): 274726912},
}


def test_bytes_are_those_measured_on_h200(version: Version, group: Any) -> None:
    if str(version) not in MEASURED:
        pytest.skip(f"{version} was not measured on GPUs; {', '.join(MEASURED)} were")
    measured = MEASURED[str(version)]
    ranks = group(2, [("trtllm", *request, "") for request in measured], simulate="2x141GiB")
    for number, size in enumerate(measured.values()):
        for process in ranks:
            seen = line(process)
            small = SMALL if number == 0 else 0  # one block of the small ones lasts
            assert seen["during"]["0"] - seen["before"].get("0", 0) == size + small


def test_every_cycle_loses_the_workspace_and_the_cures_help(version: Version, group: Any) -> None:
    early = version < Version("0.6.10")
    lost = total(version, "trtllm", 2, 2048, 12288)
    cure = "descriptors" if early else "references"
    request = ("trtllm", 2048, 12288, "bfloat16")
    ranks = group(2, [(*request, ""), (*request, ""), (*request, cure), (*request, cure)], simulate="2x141GiB")
    for process in ranks:
        first, second, cured, again = (line(process) for _ in range(4))
        for number, seen in enumerate((first, second), 1):
            assert seen["after"]["0"] == number * lost + SMALL
            assert seen["descriptors"] == (6 * number if early else 0)
        assert cured["after"] == again["after"] == {"0": SMALL, "1": SMALL}
        assert (again["descriptors"], again["handles"], again["mappings"]) == (0, 0, 0)
        assert again["reservations"] == 0


def test_a_rank_short_of_memory(version: Version, group: Any) -> None:
    ranks = group(2, [("trtllm", 2048, 12288, "bfloat16", "")], simulate="2x8GiB;0=64MiB")
    message = error(ranks[0])
    assert "OUT_OF_MEMORY" in message or "out of memory" in message
    if version < Version("0.7.4"):
        assert hangs(ranks[1])
    else:
        assert "OUT_OF_MEMORY" in error(ranks[1])


def test_a_failing_mapping_leaves_the_peer_waiting_in_every_release(group: Any) -> None:
    fault = "rank=0,call=cuMemMap,error=CUDA_ERROR_OUT_OF_MEMORY"
    ranks = group(2, [("trtllm", 512, 4096, "bfloat16", "")], simulate="2x8GiB", faults=fault)
    message = error(ranks[0])
    assert "OUT_OF_MEMORY" in message or "out of memory" in message
    assert hangs(ranks[1])


def test_a_failing_kernel_build_leaves_the_peer_waiting_in_every_release(group: Any) -> None:
    fault = "rank=1,call=lamport_initialize,error=exception"
    ranks = group(2, [("trtllm", 512, 4096, "bfloat16", "")], simulate="2x8GiB", faults=fault)
    assert "lamport_initialize on rank 1" in error(ranks[1])
    assert hangs(ranks[0])


def test_fabric_that_the_driver_promises_and_denies(version: Version, group: Any) -> None:
    ranks = group(2, [("trtllm", 512, 4096, "bfloat16", "")], simulate="2x8GiB;fabric=denied")
    if version >= Version("0.7.4") or uses_torch_symmetric_memory(version):
        for process in ranks:
            line(process)
    else:
        for process in ranks:
            assert "CUDA_ERROR_NOT_PERMITTED" in error(process)


def test_fabric_that_works(version: Version, group: Any) -> None:
    ranks = group(2, [("trtllm", 512, 4096, "bfloat16", ""), ("mnnvl", 512, 4096, "bfloat16", "")], simulate="2x8GiB;fabric=on")
    for process in ranks:
        trtllm, mnnvl = line(process), line(process)
        assert trtllm["descriptors"] == mnnvl["descriptors"] == 0  # nothing to leak
        assert trtllm["during"]["1"] == total(version, "trtllm", 2, 512, 4096) + SMALL


def test_devices_without_multicast(version: Version, group: Any) -> None:
    ranks = group(2, [("trtllm", 512, 4096, "bfloat16", "")], simulate="2x8GiB;multicast=off")
    for process in ranks:
        if version < Version("0.6.10"):
            assert "does not support multicasting" in error(process)
        else:
            line(process)


def test_processes_that_import_flashinfer_afterwards(version: Version, child: Any, tmp_path: Path) -> None:
    requests = json.dumps([("trtllm", 512, 4096, "bfloat16", ""), ("mnnvl", 512, 4096, "bfloat16", "")])
    ranks = [child("rank.py", rank, 2, tmp_path / "store", requests, simulate="2x8GiB", stdin=-1) for rank in range(2)]
    answers = [[json.loads(process.stdout.readline()) for _ in range(2)] for process in ranks]
    for process in ranks:
        process.communicate("\n")
    for trtllm, mnnvl in answers:
        assert trtllm["during"]["0"] == total(version, "trtllm", 2, 512, 4096) + SMALL
        assert mnnvl["during"]["0"] - mnnvl["before"]["0"] == total(version, "mnnvl", 2, 512, 4096)


def test_the_legacy_shared_buffer(child: Any, outcome: Any, tmp_path: Path) -> None:
    ranks = [child("shared_buffer.py", rank, tmp_path / "store") for rank in range(2)]
    for process in ranks:
        assert outcome(process) == "done\n"
