"""For each release: the tables against its real code, the validator against its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fi_shim.compatibility import load_release
from fi_shim.workspace.planning import plan

if TYPE_CHECKING:
    from conftest import Host

pytestmark = pytest.mark.flashinfer
EXAMPLES = 120


def test_the_validator_answers_as_flashinfer_does(release: str, host: Host) -> None:
    seen = host.program("validator_equality", FI_SHIM="1")
    assert (seen["state"], seen["how"]) == ("applied", "fingerprint")
    assert seen["silent"] == 0
    assert seen["compared"] > 20_000
    # Before 0.6.6 the validator prints instead of logging.
    assert seen["heard"] == (0 if release in {"0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4", "0.6.5"} else 2)


def test_the_plan_is_what_the_release_allocates(release: str, host: Host) -> None:
    seen = host.program("plan_equals_real", str(EXAMPLES), FI_SHIM="0")
    assert seen["compared"] > EXAMPLES
    assert release == load_release(release).version


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
