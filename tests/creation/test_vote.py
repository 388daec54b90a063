"""Ranks that are late, absent, of another opinion or otherwise odd: all others end, and alike."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from creation.outcomes import all_built, all_declined, back_after, nothing_left, prompt
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

SHORTLY = 1.0  # seconds; FI_SHIM_VOTE_TIMEOUT of tests that wait for it
SOON = {"FI_SHIM_VOTE_TIMEOUT": str(SHORTLY)}


def test_a_late_rank_still_gets_a_workspace(team: Callable[..., Team]) -> None:
    ranks = team(3)
    early = ranks.start("create", only=(0, 1))
    ranks.result(ranks.ranks[2].start("watch_arrivals", aside=True, ranks=[0, 1]))
    assert not any(future.done() for future in early)
    results = ranks.results([*early, *ranks.start("create", only=(2,))])
    all_built(results)
    prompt(results)


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_calls_is_named_at_the_limit(team: Callable[..., Team], absent: int) -> None:
    ranks = team(3, environ=SOON)
    results = ranks.results(ranks.start("create", only=tuple({0, 1, 2} - {absent})))
    verdict = all_declined(results, f"Is fi_shim active on rank {absent}?")
    back_after(results, SHORTLY)
    assert verdict["missing"] == (absent,) or verdict["missing"] == [absent]
    assert verdict["records"][absent]["vote"] == "absent"
    nothing_left(ranks)


def test_a_rank_without_the_shim_is_named_at_the_limit(team: Callable[..., Team]) -> None:
    ranks = team(3, environ=SOON, each={1: {"FI_SHIM": "0"}})
    alone = ranks.start("create", only=(1,))
    results = ranks.results(ranks.start("create", only=(0, 2)))
    all_declined(results, "Is fi_shim active on rank 1?")
    back_after(results, SHORTLY)
    assert not alone[0].done()  # as without the shim it waits for its peers


def different(team: Callable[..., Team], **on_rank_1: Any) -> list[dict[str, Any]]:
    ranks = team(2)
    results = ranks.create(each={1: on_rank_1})
    prompt(results)
    nothing_left(ranks)
    return results


def test_different_requests_are_shown(team: Callable[..., Team]) -> None:
    all_declined(different(team, hidden_dim=2048), "hidden_dim differs: 1024 on rank 0, 2048 on rank 1")
    all_declined(different(team, dtype="float32"), 'dtype differs: "bfloat16" on rank 0, "float32" on rank 1')
    all_declined(different(team, backend="mnnvl"), "entry differs")


def test_requests_that_differ_only_in_how_they_are_written_agree(team: Callable[..., Team]) -> None:
    ranks = team(2)
    all_built(ranks.create(each={1: {"entry": "class", "via": "both", "positional": True}}))


def test_different_settings_are_shown(team: Callable[..., Team]) -> None:
    ranks = team(2, each={1: {"FI_SHIM_PREFLIGHT": "off"}})
    results = ranks.create()
    all_declined(results, "preflight differs")
    prompt(results)


def test_different_releases_are_shown(team: Callable[..., Team]) -> None:
    ranks = team(2)
    ranks.all("set_version", version="0.7.1", only=(1,))
    results = ranks.create()
    all_declined(results, 'FlashInfer version differs: "0.7.2" on rank 0, "0.7.1" on rank 1')
    prompt(results)


def test_a_release_nobody_knows_is_built_without_preflight(team: Callable[..., Team]) -> None:
    ranks = team(2)
    ranks.all("set_version", version="9.9.9")
    results = ranks.create()
    all_built(results)
    prompt(results)
    assert "9.9.9" in ranks.ranks[0].said()


BAD: dict[str, dict[str, Any]] = {
    "unknown keyword": {"entry": "class", "extra": {"no_such": 1}},
    "None": {"hidden_dim": None},
    "negative": {"hidden_dim": -1},
    "text": {"tokens": "128"},
    "no dtype": {"dtype": 16},
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_argument_on_one_rank_declines_on_all(team: Callable[..., Team], bad: str) -> None:
    entry = BAD[bad].get("entry", "factory")
    ranks = team(2, environ=SOON)
    for odd in (0, 1):
        results = ranks.create(each={1 - odd: {"entry": entry}, odd: BAD[bad]})
        all_declined(results, "differs")
        prompt(results)
    nothing_left(ranks)


@pytest.mark.parametrize("bad", [*BAD, "one argument too many"])
def test_a_bad_argument_on_all_ranks_is_flashinfers_to_refuse(team: Callable[..., Team], bad: str) -> None:
    given = BAD.get(bad, {"entry": "class", "positional": True, "extra": {"group": None, "hidden_dim": 1}})
    results = team(2).create(**given)
    plain = team(2, environ={"FI_SHIM": "0"}).create(**given)
    for ours, theirs in zip(results, plain, strict=True):
        assert (ours["outcome"], ours["type"], ours["message"]) == (theirs["outcome"], theirs["type"], theirs["message"])
    prompt(results)


def test_an_argument_that_only_the_factory_sees_leaves_the_others_until_the_limit(team: Callable[..., Team]) -> None:
    ranks = team(2, environ=SOON)
    wrong, right = ranks.create(each={1: {"extra": {"no_such": 1}}})[::-1]
    assert wrong["type"] == "TypeError"
    all_declined([right], "Is fi_shim active on rank 1?")
    back_after([right], SHORTLY)


@pytest.mark.parametrize("variables", [{"FI_SHIM_DISABLE": "creation"}, {"FI_SHIM_PREFLIGHT": "off"}])
def test_what_is_switched_off_on_all_ranks_is_not_probed(team: Callable[..., Team], variables: dict[str, str]) -> None:
    ranks = team(2, environ=variables)
    all_built(ranks.create())
    assert [calls["cuMemCreate"] for calls in ranks.all("calls")] == [3, 3]
    for rank in ranks.ranks:
        assert rank.said().count("event=preflight_skipped") == 1
    all_declined(ranks.create(each={1: {"hidden_dim": 2048}}), "hidden_dim differs")  # the vote is held all the same


def test_a_patch_that_is_disabled_on_one_rank_abstains(team: Callable[..., Team]) -> None:
    ranks = team(2, each={1: {"FI_SHIM_DISABLE": "creation"}})
    results = ranks.create()
    all_built(results)
    prompt(results)
    for rank in ranks.ranks:
        assert rank.said().count("FI_SHIM_DISABLE names creation") == 1
    status = ranks.all("status")
    assert [one["patches"]["creation"]["state"] for one in status] == ["applied", "disabled"]


def test_two_overlapping_groups(team: Callable[..., Team]) -> None:
    ranks = team(3, begin=False)
    ranks.begin({"left": [0, 1], "right": [1, 2]})
    waiting = ranks.start("create", only=(0, 2), each={0: {"group": "left"}, 2: {"group": "right"}}, via="both")
    both = [ranks.start("create", only=(1,), group=group, via="both")[0] for group in ("right", "left")]
    results = ranks.results([*waiting, *both])
    all_built(results)


def test_two_threads_on_two_groups(team: Callable[..., Team]) -> None:
    ranks = team(2, begin=False)
    ranks.begin({"one": [0, 1], "two": [0, 1]})
    for _ in range(3):
        requests = [{"group": "one", "via": "both"}, {"group": "two", "via": "both", "hidden_dim": 2048}]
        for results in ranks.all("create_in_threads", each={0: {"requests": requests}, 1: {"requests": requests[::-1]}}):
            all_built(results)


def test_two_threads_on_two_groups_one_of_which_is_short(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;1=64MiB", begin=False)
    ranks.begin({"one": [0, 1], "two": [0, 1]})
    requests = [{"group": "one", "via": "both"}, {"group": "two", "via": "both", "hidden_dim": 65536}]
    answers = ranks.all("create_in_threads", requests=requests)
    all_built([answer[0] for answer in answers])
    all_declined([answer[1] for answer in answers], "rank 1")


def test_twenty_attempts_with_random_skips(team: Callable[..., Team]) -> None:
    chance = random.Random(20)
    ranks = team(3, environ={"FI_SHIM_VOTE_TIMEOUT": "1"}, limits={**LIMITS, "late": 1.5, "doubt": 1.0})
    skips = [chance.choice([None, None, 0, 1, 2]) for _ in range(20)]
    assert len({*skips}) == 4
    for skipped in skips:
        present = tuple(rank for rank in range(3) if rank != skipped)
        results = ranks.results(ranks.start("create", only=present))
        if skipped is None:
            all_built(results)
        else:
            assert all_declined(results, f"on rank {skipped}?")["missing"] == [skipped]


def test_a_process_group_made_again_on_the_same_store(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;1=64MiB")
    for _ in range(3):
        all_declined(ranks.create(hidden_dim=65536), "rank 1")
        all_built(ranks.create())
        ranks.begin_again()


def test_an_attempt_that_was_given_up_before_the_group_was_made_again(team: Callable[..., Team]) -> None:
    ranks = team(2, environ=SOON)
    all_declined(ranks.results(ranks.start("create", only=(0,))), "rank 1")
    ranks.begin_again()
    all_built(ranks.create())


def test_forks_after_a_creation(team: Callable[..., Team]) -> None:
    ranks = team(2, environ={"FI_SHIM_VOTE_TIMEOUT": "5"})
    all_built(ranks.create())
    for message in ranks.all("create_in_child", each={1: {"hidden_dim": 2048}}):
        assert "hidden_dim differs" in message  # the children's vote is held, over connections of their own
    all_built(ranks.create())


def test_a_group_that_is_no_torch_group_passes_through(team: Callable[..., Team]) -> None:
    ranks = team(2)
    for _ in range(2):
        all_built(ranks.create(via="odd group"))
    for rank in ranks.ranks:
        lines = [line for line in rank.said().splitlines() if "event=not_voted" in line]
        assert len(lines) == 1
        assert "types.SimpleNamespace, not a torch process group" in lines[0]


def same_as_without(team: Callable[..., Team], *, size: int = 2, begin: bool = True, **request: Any) -> Team:
    """The results of a team with the shim are those of one without. Returns the first."""
    ranks = team(size, begin=begin)
    results = [*ranks.create(**request), *ranks.create(**request)]
    plain = team(size, begin=begin, environ={"FI_SHIM": "0"})
    expected = [*plain.create(**request), *plain.create(**request)]
    told = [[(result["outcome"], result["type"], result["message"]) for result in each] for each in (results, expected)]
    assert told[0] == told[1]
    for rank in ranks.ranks:
        assert rank.said().count("event=not_voted") == 1
    return ranks


def test_no_process_group_passes_through(team: Callable[..., Team]) -> None:
    ranks = same_as_without(team, begin=False, world_size=2, rank=0)
    assert "torch.distributed is not initialised" in ranks.ranks[0].said()


def test_a_workspace_of_one_rank_in_a_larger_group_passes_through(team: Callable[..., Team]) -> None:
    ranks = same_as_without(team, world_size=1, rank=0)
    assert "the group has 2 ranks, the workspace one" in ranks.ranks[0].said()


@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
def test_a_group_of_another_size_declines(team: Callable[..., Team], backend: str) -> None:
    ranks = team(4)
    results = ranks.create(backend=backend, world_size=2, each={rank: {"rank": rank % 2} for rank in range(4)})
    verdict = all_declined(results, "the group has 4 ranks, the workspace 2")
    assert [record["vote"] for record in verdict["records"]] == ["no"] * 4
    prompt(results)
    nothing_left(ranks)


@pytest.mark.parametrize("passed", [0, 2, -1])
def test_a_rank_that_is_not_the_groups_declines(team: Callable[..., Team], passed: int) -> None:
    ranks = team(2)
    results = ranks.create(each={1: {"rank": passed}})
    verdict = all_declined(results, f"rank {passed} was passed, but this process is rank 1 of the group")
    assert [record["vote"] for record in verdict["records"]] == ["yes", "no"]
    prompt(results)
    all_built(ranks.create(tokens=64))


@pytest.mark.parametrize("release", ["0.6.9", "0.7.2", "0.7.4"])
def test_posix_descriptors_do_not_reach_another_host(team: Callable[..., Team], release: str) -> None:
    ranks = team(2, release=release)
    ranks.all("pretend_host", each={rank: {"name": f"node{rank}"} for rank in range(2)})
    results = ranks.create()
    all_declined(results, "memory shared across hosts node0, node1 needs fabric handles")
    prompt(results)
    nothing_left(ranks)


def test_a_process_outside_of_the_group_is_told_so_at_once(team: Callable[..., Team]) -> None:
    ranks = team(3, begin=False)
    ranks.begin({"pair": [1, 2]})
    ranks.results(ranks.start("borrow_group", only=(0,), name="pair"))
    results = ranks.results(ranks.start("create", only=(0,), via="group", group="pair", world_size=2, rank=0))
    assert "this process is not in the group" in results[0]["message"]
    prompt(results)


@pytest.mark.parametrize("begin", [True, False])
def test_a_world_of_one_rank_needs_no_vote(team: Callable[..., Team], begin: bool) -> None:
    ranks = team(1, simulate="1x64MiB", begin=begin)
    how: dict[str, Any] = {"via": "default"} if begin else {"via": "alone", "world_size": 1, "rank": 0}
    all_built(ranks.create(**how))
    results = ranks.create(**how, hidden_dim=65536 * 2)
    all_declined(results, "rank 0", "not enough free memory")
    assert "event=not_voted" not in ranks.ranks[0].said()
    assert "vote_without_store" not in ranks.ranks[0].said()


def test_a_rank_that_never_comes_to_a_vote_by_allgather(team: Callable[..., Team]) -> None:
    ranks = team(2, environ=SOON)
    results = ranks.results(ranks.start("create", only=(0,), via="own allgather"))
    all_declined(results)
    back_after(results, SHORTLY)
