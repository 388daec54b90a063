"""`plan` where CUDA is initialised: the device's granularities, on simulated devices."""

from __future__ import annotations

from typing import Any

import pytest

CODE = """
import json, fi_shim, torch
torch.cuda.set_device(0)
torch.cuda.mem_get_info(0)
assert torch.cuda.is_initialized()
request = dict(world_size=2, hidden_dim=64, dtype="bfloat16")
print(json.dumps([fi_shim.plan("0.7.4", backend="mnnvl", max_token_num=tokens, **request).total_bytes >> 20 for tokens in (16, 65536)]))
"""


@pytest.mark.flashinfer
@pytest.mark.parametrize(
    ("simulate", "mebibytes"),
    [
        ("2x8GiB", [2, 512]),  # an H200 recommends 2 MiB up to 2 MiB
        ("2x8GiB;multicast=32MiB", [2, 64]),
        ("2x8GiB;multicast=off", [512, 512]),  # no answer: the default holds
    ],
)
def test_granularities_come_from_an_initialised_device(host_with: Any, simulate: str, mebibytes: list[int]) -> None:
    assert host_with("0.7.4").code("import fi_shim, flashinfer.comm\n" + CODE, FI_SHIM_SIMULATE=simulate, FI_SHIM_LOG="error") == mebibytes
