"""The rule that turns records into a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fi_shim.workspace.vote import Record, Verdict, decide, record_from_json, record_to_json, verdict_from_json, verdict_to_json

REQUEST = {"backend": "trtllm", "max_token_num": 2048, "hidden_dim": 4096}
YES = Record(
    rank=0, vote="yes", host="a", device=0, phase="facts", flashinfer="0.7.2", regime="T4", request=REQUEST, settings={"preflight": "probe"}
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
RECORDS = st.builds(
    Record,
    rank=st.integers(0, 100),
    vote=st.sampled_from(["yes", "no", "abstain", "absent"]),
    reason=st.text(max_size=5),
    phase=st.sampled_from(["facts", "probe"]),
    flashinfer=st.sampled_from(["", "0.7.2"]),
    regime=st.sampled_from(["", "T3", "T4"]),
    request=st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
    settings=st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
    bytes_needed=st.none() | st.integers(0),
    bytes_free=st.none() | st.integers(0),
    facts=st.dictionaries(st.text(max_size=3), SCALARS | st.lists(SCALARS), max_size=2),
    format=st.sampled_from([1, 2]),
)
GROUPS = st.lists(RECORDS, min_size=1, max_size=5).map(lambda rows: [replace(row, rank=rank) for rank, row in enumerate(rows)])


def group(*changes: dict[str, Any]) -> list[Record]:
    return [replace(YES, rank=rank, device=rank, **change) for rank, change in enumerate(changes)]


def test_all_yes_is_a_yes() -> None:
    verdict = decide(group({}, {}, {}))

    assert (verdict.outcome, verdict.reason, verdict.declined) == ("yes", "all 3 ranks agree", False)
    assert [record.rank for record in verdict.records] == [0, 1, 2]


def test_any_no_is_a_no_that_says_who_and_why() -> None:
    verdict = decide(
        group({}, {"vote": "no", "reason": "out of memory", "bytes_needed": 1_610_612_736, "bytes_free": 312}, {"vote": "abstain"})
    )

    assert verdict.declined
    assert verdict.reason == "rank 1 (a, device 1) votes no: out of memory (needs 1,610,612,736 bytes, free 312)"


def test_many_no_are_summed_up() -> None:
    assert decide(group(*[{"vote": "no"}] * 6)).reason.endswith("rank 2 (a, device 2) votes no; so do 3 more")


def test_an_abstention_lets_everyone_build_without_preflight() -> None:
    verdict = decide(group({}, {"vote": "abstain", "reason": "unknown release", "regime": "", "request": {}, "settings": {}}))

    assert (verdict.outcome, verdict.declined) == ("abstain", False)
    assert verdict.reason == "FlashInfer runs without preflight: rank 1 (a, device 1) abstains: unknown release"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flashinfer": "0.7.4"}, 'FlashInfer version differs: "0.7.2" on ranks 0, 2, "0.7.4" on rank 1'),
        ({"regime": "T3"}, 'regime differs: "T4" on ranks 0, 2, "T3" on rank 1'),
        ({"format": 2}, "record format differs: 1 on ranks 0, 2, 2 on rank 1"),
        ({"phase": "probe"}, 'phase differs: "facts" on ranks 0, 2, "probe" on rank 1'),
        ({"request": {**REQUEST, "hidden_dim": 8192}}, "request hidden_dim differs: 4096 on ranks 0, 2, 8192 on rank 1"),
        ({"request": {**REQUEST, "hidden_dim": 4096.0}}, "request hidden_dim differs: 4096 on ranks 0, 2, 4096.0 on rank 1"),
        ({"request": {**REQUEST, "group": "tp"}}, 'request group differs: nothing on ranks 0, 2, "tp" on rank 1'),
        ({"settings": {"preflight": "off"}}, 'settings preflight differs: "probe" on ranks 0, 2, "off" on rank 1'),
        ({"settings": {}}, 'settings preflight differs: "probe" on ranks 0, 2, nothing on rank 1'),
        ({"vote": "abstain", "flashinfer": "0.7.4"}, 'FlashInfer version differs: "0.7.2" on ranks 0, 2, "0.7.4" on rank 1'),
    ],
)
def test_what_must_be_equal_and_is_not_is_a_no_with_both_sides(change: dict[str, Any], reason: str) -> None:
    verdict = decide(group({}, change, {}))

    assert (verdict.outcome, verdict.reason) == ("no", reason)


def test_who_never_voted_is_named() -> None:
    verdict = decide([YES, Record(rank=1, vote="absent"), replace(YES, rank=2)])

    assert (verdict.outcome, verdict.reason, verdict.missing) == ("no", "rank 1 did not vote", (1,))


@given(GROUPS)
def test_properties_of_every_verdict(records: list[Record]) -> None:
    verdict = decide(records)

    assert verdict == decide(list(records))
    assert verdict.records == tuple(records)
    assert verdict.missing == tuple(record.rank for record in records if record.vote == "absent")
    assert verdict.reason
    assert len(verdict.reason.splitlines()) == 1
    votes = {record.vote for record in records}
    if votes & {"no", "absent"}:
        assert verdict.outcome == "no"
    if verdict.outcome == "yes":
        assert votes == {"yes"}
        assert len({json.dumps(record_to_json(replace(record, rank=0))["request"], sort_keys=True) for record in records}) == 1
    if verdict.outcome == "abstain":
        assert "abstain" in votes


@given(GROUPS)
def test_the_outcome_does_not_depend_on_the_order_of_ranks(records: list[Record]) -> None:
    assert decide(records).outcome == decide(records[::-1]).outcome


@given(GROUPS)
def test_verdicts_survive_json(records: list[Record]) -> None:
    verdict = decide(records)

    assert verdict_from_json(json.loads(json.dumps(verdict_to_json(verdict)))) == verdict


def test_a_newer_record_can_be_read() -> None:
    assert record_from_json({"rank": 1, "vote": "yes", "format": 2, "mood": "good"}) == Record(rank=1, vote="yes", format=2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"rank": 0},
        {"rank": True, "vote": "yes"},
        {"rank": 0, "vote": "perhaps"},
        {"rank": 0, "vote": []},
        {"rank": 0, "vote": "yes", "reason": None},
        {"rank": 0, "vote": "yes", "request": {"shape": [1, 2]}},
        {"rank": 0, "vote": "yes", "facts": []},
        {"rank": 0, "vote": "yes", "bytes_needed": 0.5},
    ],
)
def test_a_malformed_record_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="record"):
        record_from_json(value)


@pytest.mark.parametrize(
    "change", [{"outcome": "void"}, {"reason": 1}, {"missing": ["a"]}, {"missing": 1}, {"records": [{}]}, {"records": 1}, {"outcome": []}]
)
def test_a_malformed_verdict_is_a_value_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"verdict|record"):
        verdict_from_json({**verdict_to_json(Verdict("no", "why", (YES,))), **change})
    with pytest.raises(ValueError, match="not a verdict"):
        verdict_from_json([])
