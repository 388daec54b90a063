from __future__ import annotations

import pytest

from fi_shim.state.reasons import REASONS, reason_of
from fi_shim.workspace.vote import Record, Verdict, decide

YES = Record(rank=0, vote="yes")


def no(reason: str, needed: int | None = None) -> Record:
    return Record(rank=1, vote="no", reason=reason, bytes_needed=needed)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "failed"),
        (decide([YES, no("not enough free memory", 100)]), "memory"),
        (decide([YES, no("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY", 100)]), "memory"),
        (decide([YES, no("cuMemCreate: CUDA_ERROR_NOT_PERMITTED", 100)]), "driver"),
        (decide([YES, Record(rank=1, vote="absent")]), "missing_rank"),
        (decide([YES, Record(rank=1, vote="yes", flashinfer="0.7.4"), Record(rank=2, vote="yes", flashinfer="0.7.2")]), "difference"),
        (decide([YES, no("allocated otherwise than planned: +2 bytes")]), "drift"),
        (decide([YES, no("remembered: not enough free memory", 100)]), "remembered"),
        (decide([YES, no("a CUDA graph is being captured")]), "capturing"),
        (Verdict("no", "fi_shim failed on this rank before it could vote: OSError"), "failed"),
        (decide([YES, no("the device does not support NVLink multicast")]), "other"),
        (Verdict("no", "user text \n with anything"), "other"),
    ],
)
def test_every_verdict_has_one_of_few_words(verdict: Verdict | None, expected: str) -> None:
    assert reason_of(verdict) == expected
    assert expected in REASONS
