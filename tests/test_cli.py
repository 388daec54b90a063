from __future__ import annotations

import json
from typing import Any

import pytest

from fi_shim.compatibility import known_releases

SHAPE = ["--world-size", "8", "--max-token-num", "2048", "--hidden-dim", "12288", "--dtype", "bfloat16"]


def test_plan_as_table_and_as_json(fi_shim: Any) -> None:
    code, text, _ = fi_shim("plan", "--flashinfer-version", "0.6.9", *SHAPE)
    assert code == 0
    assert "regime T1" in text
    assert "2,684,354,560" in text
    code, text, _ = fi_shim("plan", "--flashinfer-version", "0.6.9", *SHAPE, "--json")
    data = json.loads(text)
    assert (code, data["total_bytes"], data["regime"]) == (0, 2_684_354_560, "T1")
    assert [a["purpose"] for a in data["allocations"]] == ["buffer", "flags", "lamport"]


def test_plan_of_all_releases(fi_shim: Any) -> None:
    code, text, _ = fi_shim("plan", "--all-releases", *SHAPE, "--json")
    assert code == 0
    assert list(json.loads(text)) == list(known_releases())
    code, text, _ = fi_shim("plan", "--all-releases", *SHAPE, "--backend", "mnnvl", "--confidential-computing")
    assert code == 0
    assert text.count("refused") == 14  # from 0.6.16 on
    assert len(text.splitlines()) == 2 + len(known_releases())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--world-size", "x"], ["world_size='x'"]),
        (["--world-size", "-1"], ["world_size=-1"]),
        (["--world-size", "0"], ["world_size=0"]),
        (["--hidden-dim", "2.5"], ["hidden_dim='2.5'"]),
        (["--dtype", "float99"], ["dtype='float99'", "float64"]),
        (["--flashinfer-version", "9.9.9"], ["9.9.9", "0.7.4"]),
        (["--flashinfer-version", "0.7.3"], ["0.7.3", "0.7.2.post1", "0.7.4"]),
        (["--backend", "nccl"], ["backend='nccl'", "trtllm", "mnnvl"]),
        (["--allocation-granularity", "0"], ["allocation_granularity=0"]),
        (["--all-releases"], ["exclude"]),
        (["--flashinfer-version", ""], ["''"]),
        (["--no-such-option"], ["no-such-option"]),
    ],
)
def test_wrong_use_is_exit_2_and_names_argument_and_value(fi_shim: Any, arguments: list[str], words: list[str]) -> None:
    code, out, err = fi_shim("plan", "--flashinfer-version", "0.7.2", *SHAPE, *arguments)
    assert code == 2
    assert out == ""
    for word in words:
        assert word in err


def test_a_table_of_an_overlay_that_cannot_be_read_is_told_and_the_packaged_one_holds(
    fi_shim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    packaged = fi_shim("plan", "--flashinfer-version", "0.7.2", *SHAPE)
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "0.7.2.toml").write_text("version = [")
    monkeypatch.setenv("FI_SHIM_COMPAT", str(tmp_path))
    assert fi_shim("plan", "--flashinfer-version", "0.7.2", *SHAPE) == packaged
    assert str(tmp_path / "releases" / "0.7.2.toml") in caplog.text
