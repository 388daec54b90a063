"""What the ranks of a team must have in common after an attempt to build a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from creation.pool import Team

PROMPT_SECONDS = 3.0  # from the last rank's arrival to the last rank's return; the machine may be busy


def all_built(results: Sequence[dict[str, Any]]) -> None:
    assert [result["outcome"] for result in results] == ["built"] * len(results), [result["message"] for result in results]


def all_declined(results: Sequence[dict[str, Any]], *says: str) -> dict[str, Any]:
    """Every rank holds the same verdict and says all this. Returns the verdict."""
    assert [result["type"] for result in results] == ["WorkspaceDeclined"] * len(results), [result["message"] for result in results]
    first = results[0]
    assert all(result["verdict"] == first["verdict"] for result in results)
    for text in says:
        assert all(text in result["message"] for result in results), first["message"]
    verdict: dict[str, Any] = first["verdict"]
    assert verdict["outcome"] == "no"
    assert [record["rank"] for record in verdict["records"]] == list(range(len(verdict["records"])))
    return verdict


def none_built(results: Sequence[dict[str, Any]]) -> None:
    """Every rank was declined, even if not every one could learn why."""
    assert [result["outcome"] for result in results] == ["declined"] * len(results), [result["message"] for result in results]


def prompt(results: Sequence[dict[str, Any]], seconds: float = PROMPT_SECONDS) -> None:
    """All came back soon after the last one had come."""
    assert max(result["ended"] for result in results) - max(result["began"] for result in results) < seconds


def back_after(results: Iterable[dict[str, Any]], limit: float, slack: float = 2.0) -> None:
    """Each came back when its limit had passed, not before, and not much later. Seconds."""
    for result in results:
        assert limit * 0.9 <= result["ended"] - result["began"] < limit + slack, result


def nothing_left(team: Team, *, only: tuple[int, ...] | None = None) -> None:
    """No rank holds memory, and no device is in use."""
    left = team.results(team.start("left", only=only))
    assert not any(one["own"] for one in left)
    assert not any(one["bytes"] for one in left)
