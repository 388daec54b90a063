"""Late is complete: what engines bound by name before the shim came, with the engines' own plugin loaders among the ways to come late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fetch_engine
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer
A_FEW = 7


@pytest.mark.parametrize("every", [A_FEW, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("version", ["0.6.0", "0.7.4"])
def test_orders_of_binding_and_of_all_ways_to_come(
    version: str, every: int, host_with: Callable[[str], Host], plugin_installed: Callable[[Host], str]
) -> None:
    host = host_with(version)
    engines = [str(fetch_engine.fetch("vllm", "0.33.0")), str(fetch_engine.fetch("sglang", "0.5.23"))]
    seen = host.program("early_names", str(every), *engines, FI_SHIM="1", FI_SHIM_LOG="error", PYTHONPATH=plugin_installed(host))
    assert seen["failures"] == []
    assert seen["scripts"] > 72 / every
