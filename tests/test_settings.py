from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fi_shim.settings import ARRIVAL_LIMIT_S, Settings, read, switched_off


def test_defaults_hold_where_nothing_is_set() -> None:
    assert read({}) == Settings()
    assert read({"FI_SHIM_LOG": "  "}) == Settings()


def test_each_variable_is_read_and_its_source_named() -> None:
    settings = read(
        {
            "FI_SHIM": "1",
            "FI_SHIM_DISABLE": "validator, other,",
            "FI_SHIM_PREFLIGHT": "OFF",
            "FI_SHIM_VOTE_TIMEOUT": "12.5",
            "FI_SHIM_COMPAT": "/overlay",
            "FI_SHIM_LOG": "debug",
        }
    )
    assert settings.enabled is True
    assert settings.disable == {"validator", "other"}
    assert (settings.preflight, settings.vote_timeout, settings.compat, settings.log) == ("off", 12.5, "/overlay", "debug")
    assert settings.as_dict()["log"] == {"value": "debug", "source": "FI_SHIM_LOG"}
    assert settings.problems == ()


@pytest.mark.parametrize(("words", "enabled"), [("1 true True on ON yes Yes", True), ("0 false FALSE off Off no NO", False)])
def test_switches_take_the_usual_words(words: str, enabled: bool) -> None:
    for word in words.split():
        settings = read({"FI_SHIM": f" {word} "})
        assert (settings.enabled, settings.problems) == (enabled, ())
        assert switched_off({"FI_SHIM": f" {word} "}) is not enabled
    assert not switched_off({})
    assert not switched_off({"FI_SHIM": "maybe"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FI_SHIM", "maybe"),
        ("FI_SHIM", "2"),
        ("FI_SHIM", "-1"),
        ("FI_SHIM_PREFLIGHT", "maybe"),
        ("FI_SHIM_VOTE_TIMEOUT", "-1"),
        ("FI_SHIM_VOTE_TIMEOUT", "nan"),
        ("FI_SHIM_VOTE_TIMEOUT", "inf"),
        ("FI_SHIM_VOTE_TIMEOUT", "9999999999999"),
        ("FI_SHIM_LOG", "loud"),
    ],
)
def test_a_value_that_is_not_understood_is_named_once_and_the_default_holds(variable: str, value: str) -> None:
    settings = read({variable: value})
    assert settings == Settings()
    assert len(settings.problems) == 1
    assert variable in settings.problems[0]
    assert repr(value) in settings.problems[0]


@given(
    st.dictionaries(st.sampled_from(["FI_SHIM", "FI_SHIM_DISABLE", "FI_SHIM_PREFLIGHT", "FI_SHIM_VOTE_TIMEOUT", "FI_SHIM_LOG"]), st.text())
)
def test_no_value_raises(environ: dict[str, str]) -> None:
    settings = read(environ)
    assert 0 < settings.vote_timeout <= max(ARRIVAL_LIMIT_S, settings.vote_timeout)
    assert settings.log in {"debug", "info", "warning", "error"}
    assert settings.preflight in {"probe", "off"}
