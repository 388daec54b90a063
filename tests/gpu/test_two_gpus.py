"""Needs two GPUs of one host: what simulated devices say, real ones must do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
FOLDER = Path(__file__).parent
SMALL_ONES = 4 << 20  # bytes: pointer tables, flags and a tensor besides the big buffers


@pytest.fixture(scope="module", autouse=True)
def _two_gpus() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def ranks(backend: str, program: str = "two_gpus.py", **variables: str) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "FI_SHIM_LOG": "error", **variables}
    started = [
        subprocess.Popen(
            [sys.executable, str(FOLDER / program), backend], env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_plan_vote_and_decline_on_real_devices(backend: str) -> None:
    for result in ranks(backend):
        assert {name: result["patches"][name] for name in ("creation", "validator")} == {"creation": "applied", "validator": "applied"}
        for row in result["taken"]:
            assert 0 <= row["taken"] - row["planned"] <= SMALL_ONES, row
        assert result["cached"] == "built"
        assert result["declined"]["outcome"] == "WorkspaceDeclined"
        assert "rank 1" in result["declined"]["text"]
        assert result["declined"]["seconds"] < 1


def test_the_hang_and_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fi_shim", "demo", "hang", "--world-size", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    seen = json.loads(done.stdout)
    assert seen["devices"] == "real"
    assert [rank["outcome"] for rank in seen["with"]["ranks"]] == ["WorkspaceDeclined"] * 2
    assert all(rank["seconds"] < 1 for rank in seen["with"]["ranks"])
    if seen["with"]["flashinfer"] != "0.7.4":  # which tells its peers of this one failure
        assert seen["without"]["ranks"][0]["outcome"] == "hangs"


FAULTS = ("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemAlloc")


@pytest.mark.parametrize("preflight", ["probe", "reserve"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_faults_after_the_vote_on_real_devices(backend: str, preflight: str) -> None:
    for result in ranks(backend, "two_gpus_faults.py", FI_SHIM_PREFLIGHT=preflight):
        by_torch = result["flashinfer"].startswith(("0.6.10", "0.6.11", "0.6.12", "0.6.13", "0.6.14"))
        reserved = preflight == "reserve" and not by_torch
        assert result["healthy"]["outcome"] == result["again"]["outcome"] == "built"
        assert result["grabbed"]["outcome"] == ("built" if reserved else "WorkspaceDeclined"), result["grabbed"]
        for name in () if by_torch else FAULTS:
            assert result[name]["outcome"] == "WorkspaceDeclined", result[name]
            assert "rank 1 " in result[name]["text"]
            assert name in result[name]["text"]
            assert result[name]["seconds"] < 2
        for name in ("grabbed", *FAULTS):
            if result[name]["outcome"] != "built":
                assert result[name]["left"] <= 0, result[name]
                assert result[name]["files"] == 0, result[name]
