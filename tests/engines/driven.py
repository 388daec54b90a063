"""The releases of engines that the tests drive, and which of them every day: the others run where `matrix` is in the marker expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterable

FLASHINFER = {  # what each release pins
    "sglang-0.5.9": "0.6.3", "sglang-0.5.10": "0.6.7.post2", "sglang-0.5.10.post1": "0.6.7.post3", "sglang-0.5.11": "0.6.8.post1",
    "sglang-0.5.12": "0.6.11.post1", "sglang-0.5.12.post1": "0.6.11.post1", "sglang-0.5.13": "0.6.12", "sglang-0.5.13.post1": "0.6.12",
    "sglang-0.5.14": "0.6.12", "sglang-0.5.15": "0.6.12", "sglang-0.5.15.post1": "0.6.12", "sglang-0.5.16": "0.6.14",
    "sglang-0.5.17": "0.6.15.post1", "sglang-0.5.18": "0.6.17", "sglang-0.5.19": "0.6.18", "sglang-0.5.20": "0.6.18",
    "sglang-0.5.21": "0.6.18", "sglang-0.5.22": "0.7.1", "sglang-0.5.23": "0.7.2",
    "vllm-0.22.0": "0.6.11.post2", "vllm-0.22.1": "0.6.11.post2", "vllm-0.23.0": "0.6.12", "vllm-0.24.0": "0.6.12", "vllm-0.25.0": "0.6.13",
    "vllm-0.25.1": "0.6.13", "vllm-0.26.0": "0.6.14", "vllm-0.27.0": "0.6.16.post3", "vllm-0.27.1": "0.6.16.post3", "vllm-0.28.0": "0.6.16.post3",
    "vllm-0.29.0": "0.6.18", "vllm-0.30.0": "0.6.18.post1", "vllm-0.31.0": "0.7.0.post1", "vllm-0.32.0": "0.7.0.post1",
    "vllm-0.33.0": "0.7.2.post1",
}  # fmt: skip
FIXES = {  # what is driven of them is that all is well, and one rank short of memory: their modules are those of the release that they fix
    "sglang-0.5.10.post1", "sglang-0.5.12.post1", "sglang-0.5.13.post1", "sglang-0.5.15.post1", "vllm-0.22.1", "vllm-0.25.1", "vllm-0.27.1",
}  # fmt: skip
SGLANG_DAILY = ("sglang-0.5.15", "sglang-0.5.20", "sglang-0.5.23")
VLLM_DAILY = ("vllm-0.33.0",)


def version(release: str) -> Version:
    """The number in a release's name."""
    return Version(release.partition("-")[2])


def shares_through_torch(release: str) -> bool:
    """Whether its FlashInfer allocates through torch's symmetric memory."""
    return Version("0.6.10") <= Version(FLASHINFER[release]) < Version("0.6.15")


def releases(engine: str, since: str = "0", before: str = "1", *, fixes: bool = False) -> tuple[str, ...]:
    """Those of one engine, since <= version < before, oldest first; with `fixes`, also what came out to fix one of them."""
    own = (release for release in FLASHINFER if release.startswith(f"{engine}-") and (fixes or release not in FIXES))
    return tuple(release for release in own if Version(since) <= version(release) < Version(before))


def driven(these: Iterable[str], *further: Any, daily: Iterable[str]) -> list[Any]:
    """Parameters of a test: each release with `further`, those that are not `daily` for the matrix only."""
    return [pytest.param(one, *further, marks=() if one in daily else pytest.mark.matrix) for one in these]
