from __future__ import annotations

import pytest

from fi_shim.state.reasons import REASONS, reason_of
from fi_shim.workspace.vote import Record, Verdict, decide

YES = Record(rank=0, vote="yes")


def no(reason: str, needed: int | None = None, phase: str = "probe") -> Record:
    return Record(rank=1, vote="no", reason=reason, bytes_needed=needed, phase=phase)


def records(*votes: Record) -> Verdict:
    return decide([Record(rank=0, vote="yes", phase=votes[0].phase), *votes])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "failed"),
        (records(no("not enough free memory", 100)), "memory"),
        (records(no("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY", 100)), "memory"),
        (records(no("cuMemCreate: CUDA_ERROR_NOT_PERMITTED", 100)), "driver"),
        (decide([YES, Record(rank=1, vote="absent")]), "missing_rank"),
        (decide([YES, Record(rank=1, vote="yes", flashinfer="0.7.4"), Record(rank=2, vote="yes", flashinfer="0.7.2")]), "difference"),
        (records(no("allocated otherwise than planned: +2 bytes")), "drift"),
        (records(no("RuntimeError: CUDA_ERROR_OUT_OF_MEMORY", 100, "commit")), "memory"),
        (records(no("RuntimeError: nvcc is missing", 100, "commit")), "failed"),
        (Verdict("no", "rank 1 does not vote: this request was declined before: not enough free memory"), "remembered"),
        (records(no("a CUDA graph is being captured")), "capturing"),
        (Verdict("no", "fi_shim failed on this rank before it could vote: OSError"), "failed"),
        (records(no("the device does not support NVLink multicast")), "other"),
        (Verdict("no", "user text \n with anything"), "other"),
    ],
)
def test_every_verdict_has_one_of_few_words(verdict: Verdict | None, expected: str) -> None:
    assert reason_of(verdict) == expected
    assert expected in REASONS


def test_what_was_not_voted_on_again_is_remembered() -> None:
    assert reason_of(records(no("not enough free memory", 100)), voted=False) == "remembered"
    alone = no("a CUDA stream is being captured on rank 1")
    assert reason_of(Verdict("no", alone.reason, (alone,)), voted=False) == "capturing"
