"""For each release: the tables against its real code, the validator against its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fetch_flashinfer
import pytest

from fi_shim.compatibility import folders, known_releases, load_release
from fi_shim.drift import record
from fi_shim.drift.verify import verify
from fi_shim.workspace.planning import plan

if TYPE_CHECKING:
    from conftest import Host

pytestmark = pytest.mark.flashinfer
EXAMPLES = 120
EXAMPLES_A_REGIME = 2000  # on the newest release that has it, with --thorough
SMALL = 2 << 20  # bytes of tables and flags beside the planned buffers


def test_the_validator_answers_as_flashinfer_does(release: str, host: Host) -> None:
    seen = host.program("validator_equality", FI_SHIM="1")
    assert (seen["state"], seen["how"]) == ("applied", "fingerprint")
    assert seen["silent"] == 0
    assert seen["compared"] > 20_000
    # Before 0.6.6 the validator prints instead of logging.
    assert seen["heard"] == (0 if release in {"0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4", "0.6.5"} else 2)


def test_the_plan_is_what_the_release_allocates(release: str, host: Host, request: pytest.FixtureRequest) -> None:
    thorough = request.config.getoption("thorough") and release in newest_of_each_regime()
    examples = EXAMPLES_A_REGIME if thorough else EXAMPLES
    seen = host.program("plan_equals_real", str(examples), FI_SHIM="0")
    assert seen["compared"] > examples
    assert release == load_release(release).version


def newest_of_each_regime() -> set[str]:
    """A release for each combination of regimes."""
    newest = {tuple(load_release(release).regimes.values()): release for release in known_releases()}
    return set(newest.values())


def test_verify_finds_no_drift_and_a_dry_run_agrees(release: str, host: Host) -> None:
    found = json.loads(host.run("-m", "fi_shim", "verify", "--json", FI_SHIM="0").stdout)
    assert (found["release"], found["recognised_by"], found["drift"]) == (release, "files", False)
    report = verify(fetch_flashinfer.fetch(release), always_run=True)
    assert (report.dry_run, report.regimes) == ("equal", dict(load_release(release).regimes))
    assert record.table(report.identity.root, release, record.observe(report.identity.root)) == table_text(release)


def table_text(release: str) -> str:
    return (folders()[-1] / "releases" / f"{release}.toml").read_text(encoding="utf-8")


def test_two_ranks_build_what_was_planned(release: str, host: Host) -> None:
    shape: dict[str, Any] = {"world_size": 2, "max_token_num": 2048, "hidden_dim": 4096, "dtype": "float32"}
    requests = [[backend, 2048, 4096, "float32"] for backend in ("trtllm", "mnnvl")]
    ranks = host.program("ranks", "2", json.dumps(requests), FI_SHIM_SIMULATE="2x8GiB", FI_SHIM_ON_DRIFT="strict")
    for rank in ranks:
        assert rank["drift"] == {"state": "known release", "detail": f"the files are those of {release}", "audits": []}
        for backend, built in zip(("trtllm", "mnnvl"), rank["built"], strict=True):
            assert built["outcome"] == "built", built
            granularities = {"allocation_granularity": 2 << 20, "multicast_granularity": 512 << 20, "signal_pad_size": torch_pad()}
            planned = plan(release, backend=backend, **shape, **granularities).total_bytes
            assert planned <= built["taken"] <= planned + SMALL


def torch_pad() -> int:
    import torch.distributed._symmetric_memory as symmetric_memory

    return int(symmetric_memory.get_signal_pad_size())


def test_the_interpreter_reproduces_every_witness(release: str) -> None:
    table = load_release(release)
    for backend, rows in table.witnesses.items():
        assert len(rows) >= 12
        for row in rows:
            arguments = {key: value for key, value in row.items() if key not in {"requested", "allocated"}}
            defaults = {"allocation_granularity": 2 << 20, "multicast_granularity": 512 << 20, "signal_pad_size": 2048}
            planned = plan(release, backend=backend, **{**defaults, **arguments})
            assert [a.requested for a in planned.allocations] == row["requested"], arguments
            assert [a.allocated for a in planned.allocations] == row["allocated"], arguments
