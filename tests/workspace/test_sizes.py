from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fi_shim
from fi_shim.compatibility import UnknownReleaseError, find_release, known_releases, load_release
from fi_shim.workspace.sizes import load_regime

H200 = {"allocation_granularity": 2 << 20, "multicast_granularity": 512 << 20, "signal_pad_size": 2048}
RULES = "[rules]\nhandle_type = 'rank'\ndevice = 'current'\nlegacy_creator = 'T2'\n"
REQUEST: dict[str, Any] = {"world_size": 2, "max_token_num": 2048, "hidden_dim": 4096, "dtype": "bfloat16"}


class Index:
    """As numpy's integers are: an `__index__` and nothing else."""

    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("release", "hidden_dim", "dtype", "total"),
    [
        # seen on two H200s
        ("0.6.9", 4096, "bfloat16", 1_610_612_736),
        ("0.6.9", 12288, "bfloat16", 1_610_612_736),
        ("0.6.9", 4096, "float32", 1_610_612_736),
        ("0.6.12", 12288, "bfloat16", 408_944_640),
        ("0.7.2", 4096, "bfloat16", 140_509_184),
        ("0.7.4", 12288, "bfloat16", 408_944_640),
        ("0.7.4", 4096, "float32", 274_726_912),
    ],
)
def test_plans_equal_what_real_devices_gave_up(release: str, hidden_dim: int, dtype: str, total: int) -> None:
    assert fi_shim.plan(release, **{**REQUEST, "hidden_dim": hidden_dim, "dtype": dtype}, **H200).total_bytes == total


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"world_size": -1}, "world_size=-1"),
        ({"world_size": 0}, "world_size=0"),
        ({"world_size": True}, "world_size=True"),
        ({"max_token_num": 2.0}, "max_token_num=2.0"),
        ({"hidden_dim": 2.5}, "hidden_dim=2.5"),
        ({"hidden_dim": None}, "hidden_dim=None"),
        ({"dtype": "float99"}, "dtype='float99'"),
        ({"dtype": 4}, "dtype=4"),
        ({"backend": "auto"}, "backend='auto'"),
        ({"signal_pad_size": -5}, "signal_pad_size=-5"),
        ({"force_oneshot_support": 1}, "force_oneshot_support=1"),
        ({"confidential_computing": "yes"}, "confidential_computing='yes'"),
        ({"flashinfer_version": "9.9.9"}, "nearest known: 0.7.4"),
        ({"flashinfer_version": "newest"}, "'newest'"),
        ({"backend": "mnnvl", "confidential_computing": True}, "refuses"),
        ({"backend": "mnnvl", "max_token_num": 1 << 20, "hidden_dim": 1 << 20}, "32-bit"),
    ],
)
def test_bad_input_is_a_value_error_that_names_it(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        fi_shim.plan(**{"flashinfer_version": "0.7.2", **REQUEST, **changes})
    assert word in str(caught.value)


def test_dtypes_may_be_torchs_own_and_integers_anything_with_an_index() -> None:
    torch = pytest.importorskip("torch")
    expected = fi_shim.plan("0.7.2", **REQUEST, **H200)
    assert fi_shim.plan("0.7.2", **{**REQUEST, "dtype": torch.bfloat16, "world_size": Index()}, **H200) == expected
    assert fi_shim.plan("0.7.2", **{**REQUEST, "dtype": "torch.bfloat16"}, **H200) == expected


def test_a_local_version_label_is_ignored() -> None:
    assert find_release("0.7.4+cu130").version == "0.7.4"
    with pytest.raises(UnknownReleaseError):
        find_release("0.7.4.dev1")


@given(
    st.sampled_from(known_releases()),
    st.integers(1, 16),
    st.integers(1, 16384),
    st.integers(1, 16384),
    st.sampled_from(["bfloat16", "float32"]),
)
def test_more_of_anything_never_takes_less(release: str, world_size: int, tokens: int, hidden: int, dtype: str) -> None:
    def total(**changes: int) -> int:
        request = {"world_size": world_size, "max_token_num": tokens, "hidden_dim": hidden, **changes}
        return fi_shim.plan(release, **request, dtype=dtype, **H200).total_bytes

    assert total() <= min(total(world_size=world_size + 1), total(max_token_num=tokens + 1), total(hidden_dim=hidden + 1))


def test_every_release_names_regimes_that_exist_and_fit_their_backend() -> None:
    for version in known_releases():
        release = load_release(version)
        for backend in ("trtllm", "mnnvl"):
            assert load_regime(release.regimes[backend]).backend == backend
            assert release.functions
            assert len(release.files) >= 6


def test_an_overlay_can_add_a_release(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "0.9.0.toml").write_text(f"version = '0.9.0'\n[regimes]\ntrtllm = 'T3'\nmnnvl = 'M3'\n{RULES}")
    monkeypatch.setenv("FI_SHIM_COMPAT", str(tmp_path))
    assert fi_shim.plan("0.9.0", **REQUEST, **H200).total_bytes == 140_509_184
