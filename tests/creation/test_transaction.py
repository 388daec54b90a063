"""All ranks or none, beyond single faults: reservation, remembered declines, capture, restore, and what stays of a workspace that was built."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from creation.faults import known_calls
from creation.outcomes import all_built, all_declined, nothing_left, prompt
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

RELEASES = ("0.6.9", "0.6.12", "0.6.15", "0.7.2", "0.7.4")
MIB = 1 << 20
ROUNDS = 200
SEED = 11


def grabbed(ranks: Team) -> list[dict[str, Any]]:
    """All ranks build while somebody takes the second device's memory right after the vote."""
    ranks.all("watch_builds")
    ranks.all("grab_when_building", only=(1,), device=1, leave=4 * MIB)
    results = ranks.create()
    ranks.all("let_go", only=(1,))
    return results


@pytest.mark.parametrize("release", ["0.6.9", "0.6.15", "0.7.2", "0.7.4"])
def test_memory_that_is_taken_right_after_the_vote(team: Callable[..., Team], release: str) -> None:
    ranks = team(2, release=release)
    verdict = all_declined(grabbed(ranks), "rank 1", "cuMemCreate answers CUDA_ERROR_OUT_OF_MEMORY")
    assert [record["phase"] for record in verdict["records"]] == ["commit", "commit"]
    nothing_left(ranks)


@pytest.mark.parametrize(
    ("release", "devices", "backend"),
    [
        ("0.6.9", "", "trtllm"),
        ("0.6.15", "", "trtllm"),
        ("0.7.2", "", "mnnvl"),
        ("0.7.4", "", "trtllm"),
        ("0.7.4", ";fabric=denied", "trtllm"),
        ("0.7.4", ";fabric=on", "mnnvl"),
    ],
)
def test_reserved_memory_is_nobody_elses(team: Callable[..., Team], release: str, devices: str, backend: str) -> None:
    ranks = team(2, release=release, simulate="2x8GiB" + devices, environ={"FI_SHIM_PREFLIGHT": "reserve"})
    ranks.all("watch_builds")
    ranks.all("grab_when_building", only=(1,), device=1, leave=2 * MIB)  # for pointer tables and flags
    all_built(ranks.create(backend=backend, keep=True))
    ranks.all("let_go", only=(1,))
    plain = team(2, release=release, simulate="2x8GiB" + devices)
    all_built(plain.create(backend=backend, keep=True))
    assert ranks.all("left") == plain.all("left")  # nothing is held beside the workspace


def test_a_world_of_one_rank_reserves_nothing(team: Callable[..., Team]) -> None:
    """Nobody hands it out there: it would take the place twice."""
    ranks = team(1, simulate="1x64MiB", environ={"FI_SHIM_PREFLIGHT": "reserve"})
    all_built(ranks.create(hidden_dim=32768))


@pytest.mark.parametrize("preflight", ["probe", "reserve"])
def test_a_call_that_was_refused_and_repeated_is_nobodys_fault(team: Callable[..., Team], preflight: str) -> None:
    """0.7.4 asks for a fabric handle, is refused, and goes on with posix; then one rank fails."""
    ranks = team(2, release="0.7.4", simulate="2x8GiB;fabric=denied", environ={"FI_SHIM_PREFLIGHT": preflight})
    ranks.all("watch_builds")
    ranks.all("fail_in_build", only=(1,), name="cuMemImportFromShareableHandle", n=1, how="code")
    reason = all_declined(ranks.create(), "rank 1 (")["reason"]
    assert "rank 0 (" not in reason
    assert "NOT_PERMITTED" not in reason


def test_what_was_reserved_is_released_when_another_rank_is_short(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;1=4MiB", environ={"FI_SHIM_PREFLIGHT": "reserve"})
    all_declined(ranks.create(), "rank 1")
    nothing_left(ranks)


@pytest.mark.parametrize("release", RELEASES)
def test_a_declined_request_is_declined_at_once(team: Callable[..., Team], release: str) -> None:
    ranks = team(2, release=release, simulate="2x8GiB;1=4MiB")
    first = all_declined(ranks.create(), "not enough free memory")
    before = ranks.all("calls")
    for _ in range(3):
        results = ranks.create()
        assert all_declined(results) == first
        prompt(results, 0.5)
    assert ranks.all("calls") == before
    alone = ranks.results(ranks.start("create", only=(0,)))
    assert alone[0]["verdict"] == first
    prompt(alone, 0.5)
    assert [rank.said().count("event=declined") for rank in ranks.ranks] == [1, 0]  # once, not for every layer
    assert [len(status["declines"]) for status in ranks.all("status")] == [1, 1]
    ranks.all("reset")
    assert all_declined(ranks.create())["reason"] == first["reason"]
    assert ranks.all("calls") != before


def test_another_request_is_voted_on(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;1=12MiB")
    all_declined(ranks.create(hidden_dim=65536))
    all_built(ranks.create())


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_forgot_is_answered(team: Callable[..., Team], first: int) -> None:
    """In whatever order they come."""
    ranks = team(2, simulate="2x8GiB;1=4MiB")
    all_declined(ranks.create())
    ranks.all("forget_verdicts", only=(1,))
    if first == 0:
        ranks.results(ranks.start("create", only=(0,)))
        told = ranks.results(ranks.start("create", only=(1,)))
    else:
        waiting = ranks.start("create", only=(1,))
        ranks.result(ranks.ranks[0].start("watch_arrivals", aside=True, ranks=[1]))
        ranks.results(ranks.start("create", only=(0,)))
        told = ranks.results(waiting)
    assert "rank 0 does not vote: this request was declined before" in told[0]["message"]
    assert told[0]["ended"] - told[0]["began"] < 15
    ranks.all("reset")
    assert "not enough free memory" in all_declined(ranks.create())["reason"]


def test_who_repeats_what_was_declined_leaves_a_vote_on_another_request_alone(team: Callable[..., Team]) -> None:
    """Ranks are milliseconds apart: one still hears that the large one was declined when the other one votes on the small one."""
    ranks = team(2, simulate="2x40MiB", environ={"FI_SHIM_VOTE_TIMEOUT": "20"})
    all_declined(ranks.create(tokens=8192, hidden_dim=4096), "not enough free memory")
    ahead = ranks.start("create", only=(1,))
    time.sleep(0.3)  # it waits
    for _ in range(3):
        repeated = ranks.results(ranks.start("create", only=(0,), tokens=8192, hidden_dim=4096))
        all_declined(repeated, "not enough free memory")
        prompt(repeated)
        time.sleep(0.2)  # the one that waits looks
    all_built([*ranks.results(ranks.start("create", only=(0,))), *ranks.results(ahead)])


def test_what_one_call_had_wrong_is_not_held_against_the_next(team: Callable[..., Team]) -> None:
    ranks = team(2)
    all_declined(ranks.create(each={0: {"rank": 1}, 1: {"rank": 0}}), "rank 1 was passed")
    all_built(ranks.create())
    all_declined(ranks.create(tokens=64, each={1: {"tokens": 65}}), "differs")
    all_built(ranks.create(tokens=64))


def test_the_same_decline_is_one_error(team: Callable[..., Team]) -> None:
    ranks = team(2)
    for _ in range(3):
        all_declined(ranks.create(tokens=64, each={1: {"tokens": 65}}), "differs")
    assert ranks.ranks[0].said().count("event=declined") == 1
    ranks.all("reset")
    all_declined(ranks.create(tokens=64, each={1: {"tokens": 65}}), "differs")
    assert ranks.ranks[0].said().count("event=declined") == 2


def test_a_new_group_tries_again(team: Callable[..., Team]) -> None:
    ranks = team(2, faults="rank=1,call=cuMemCreate,error=CUDA_ERROR_OUT_OF_MEMORY")
    all_declined(ranks.create())
    ranks.begin_again()
    all_built(ranks.create())


def test_while_all_capture_nothing_is_done(team: Callable[..., Team]) -> None:
    ranks = team(2)
    ranks.all("capture", on=True)
    before = ranks.all("calls")
    results = ranks.create()
    for rank, result in enumerate(results):
        assert f"a CUDA stream is being captured on rank {rank}" in result["message"]
    prompt(results, 0.5)
    assert ranks.all("calls") == before
    ranks.all("capture", on=False)
    all_built(ranks.create())


def test_a_rank_that_captures_alone_keeps_nobody_waiting(team: Callable[..., Team]) -> None:
    ranks = team(2)
    ranks.all("capture", only=(1,), on=True)
    waiting = ranks.start("create", only=(0,))
    ranks.result(ranks.ranks[1].start("watch_arrivals", aside=True, ranks=[0]))
    ranks.results(ranks.start("create", only=(1,)))
    assert "rank 1 does not vote: a CUDA stream is being captured on rank 1" in ranks.results(waiting)[0]["message"]
    ranks.all("capture", only=(1,), on=False)
    all_built(ranks.create())


@pytest.mark.parametrize(("release", "where"), [("0.6.9", "inference mode"), ("0.6.12", "custom op"), ("0.7.2", "worker thread")])
def test_where_engines_build(team: Callable[..., Team], where: str, release: str) -> None:
    ranks = team(2, release=release)
    ranks.all("watch_builds")
    all_built(ranks.all("create_within", where=where))
    ranks.all("fail_in_build", only=(1,), name="cuMemMap", n=1, how="code")
    all_declined(ranks.all("create_within", where=where, tokens=64), "rank 1", "cuMemMap" if release != "0.6.12" else "rank 1")


@pytest.mark.parametrize(
    ("release", "via", "backend"),
    [("0.6.9", "default", "trtllm"), ("0.6.9", "_cpu_group", "mnnvl"), ("0.6.15", "_group", "mnnvl"), ("0.7.4", "_cpu_group", "trtllm")],
)
def test_what_was_built_holds_the_callers_backend(team: Callable[..., Team], release: str, backend: str, via: str) -> None:
    ranks = team(2, release=release)
    all_built(ranks.create(backend=backend, via=via, keep=True))
    expected = {"default": "TorchDistBackend", "_group": "TorchDistBackend", "_cpu_group": "Backend"}[via]
    assert ranks.all("backends_kept") == [[expected]] * 2


@pytest.mark.parametrize(("release", "backend"), [("0.6.15", "trtllm"), ("0.6.17", "mnnvl"), ("0.7.4", "trtllm"), ("0.7.4", "mnnvl")])
def test_a_restore_is_a_transaction(team: Callable[..., Team], release: str, backend: str) -> None:
    ranks = team(2, release=release)
    ranks.all("watch_builds")
    all_built(ranks.create(backend=backend, keep=True))
    whole = ranks.all("left")
    ranks.all("detach")
    detached = ranks.all("left")
    assert detached != whole
    for call in ("cuMemCreate", "cuMemMap"):
        ranks.all("fail_in_build", only=(1,), name=call, n=1, how="code")
        results = ranks.all("restore")
        all_declined(results, "rank 1", f"{call} answers CUDA_ERROR_OUT_OF_MEMORY")
        prompt(results)
        assert ranks.all("left") == detached
    all_built(ranks.all("restore"))
    assert ranks.all("left") == whole
    assert ranks.all("backends_kept") == [["TorchDistBackend"]] * 2
    all_built(ranks.all("restore"))  # FlashInfer's own: nothing to do


@pytest.mark.parametrize("release", ["0.6.10", "0.6.12"])
def test_without_multicast_an_mnnvl_workspace_in_symmetric_memory_is_no_workspace(team: Callable[..., Team], release: str) -> None:
    ranks = team(2, release=release, simulate="2x8GiB;multicast=off")
    all_declined(ranks.create(backend="mnnvl"), "the multicast pointer is null")
    nothing_left(ranks)


def test_the_release_that_knows_no_group_meets_over_the_callers(team: Callable[..., Team]) -> None:
    ranks = team(3, release="0.6.10", begin=False)
    ranks.begin({"pair": [1, 2]})
    for backend in ("trtllm", "mnnvl"):
        all_built(ranks.results(ranks.start("create", only=(1, 2), via="_group", group="pair", backend=backend)))


@pytest.mark.parametrize(
    ("release", "backend"), [("0.6.9", "trtllm"), ("0.6.12", "trtllm"), ("0.6.15", "mnnvl"), ("0.7.2", "trtllm"), ("0.7.4", "mnnvl")]
)
def test_nothing_stays_while_the_engine_keeps_the_exception(team: Callable[..., Team], release: str, backend: str) -> None:
    ranks = team(2, release=release)
    ranks.all("watch_builds")
    all_built(ranks.create(backend=backend, tokens=64, keep=True))
    before = ranks.all("left"), ranks.all("descriptors")
    calls = known_calls().get(release, known_calls()["0.7.2.post1"])[backend]
    for call in (call for call in ("cuMemCreate", "cuMemAlloc", "recvmsg") if call in calls):
        ranks.all("reset")
        ranks.all("fail_in_build", only=(1,), name=call, n=calls[call][1], how="code")
        all_declined(ranks.create(backend=backend, keep_error=True))
        assert (ranks.all("left"), ranks.all("descriptors")) == before
    for rank in ranks.ranks:
        assert "ignored in" not in rank.said()
        assert "Destructor" not in rank.said()
        assert "event=not_given_back" not in rank.said()


@pytest.mark.parametrize("environ", [{}, {"FI_SHIM_PREFLIGHT": "off"}, {"FI_SHIM_DISABLE": "creation"}])
def test_an_exception_is_as_without_us_and_keeps_no_workspace(team: Callable[..., Team], environ: dict[str, str]) -> None:
    wrong = {"dtype": "float64", "tokens": 64}
    plain = team(2, environ={"FI_SHIM": "0"}).all("ends_with_its_exception", **wrong)
    assert plain[0]["gone"] == [True]
    ranks = team(2, environ=environ)
    assert ranks.all("ends_with_its_exception", **wrong) == plain
    if "FI_SHIM_DISABLE" not in environ:
        different = ranks.all("ends_with_its_exception", each={1: {"hidden_dim": 2048}})
        assert different == [{"chain": ["WorkspaceDeclined"], "gone": [True]}] * 2


def test_random_faults_at_random_times(team: Callable[..., Team]) -> None:
    release, source = "0.7.2.post1", random.Random(SEED)
    ranks = team(3, release=release, limits={**LIMITS, "silence": 4.0})
    ranks.all("watch_builds")
    held = ranks.all("left")
    for number in range(ROUNDS):
        backend = source.choice(["trtllm", "mnnvl"])
        calls = known_calls()[release][backend]
        ranks.all("reset")
        struck = source.sample(range(3), source.choice([0, 1, 1, 2]))
        for rank in struck:
            call = source.choice(
                [call for call, counts in calls.items() if counts[rank > 0] and call.startswith(("cuMem", "cuda", "recv", "send"))]
            )
            ranks.all(
                "fail_in_build",
                only=(rank,),
                name=call,
                n=source.randint(1, calls[call][rank > 0]),
                how=source.choice(["code", "exception"]),
            )
        began = time.monotonic()
        results = ranks.create(backend=backend, limit=10.0)
        where = f"seed {SEED}, round {number}, {backend}, ranks {struck}: {[result['message'][:200] for result in results]}"
        outcomes = {result["outcome"] for result in results}
        assert outcomes == {"declined" if struck else "built"}, where
        assert all(result["verdict"] == results[0]["verdict"] for result in results), where
        assert time.monotonic() - began < 5, where
        if struck:
            assert ranks.all("left") == held, where
        held = ranks.all("left")  # FlashInfer loses the memory of what is dropped
