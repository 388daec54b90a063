"""The active line is seen on stderr whatever an engine does to logging, and seen once."""

from __future__ import annotations

from typing import Any

import pytest

# What the engines do: vLLM gives handlers to its own logger and leaves the root alone; SGLang replaces the root's.
VLLM = """
import logging.config
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
    "formatters": {"vllm": {"format": "%(levelname)s %(asctime)s %(message)s"}},
    "handlers": {"vllm": {"class": "logging.StreamHandler", "formatter": "vllm", "level": "INFO", "stream": "ext://sys.stdout"}},
    "loggers": {"vllm": {"handlers": ["vllm"], "level": "DEBUG", "propagate": False}}})
"""
SGLANG = """
import logging
logging.basicConfig(level=logging.{level}, format="[%(asctime)s TP0] %(message)s", datefmt="%Y-%m-%d %H:%M:%S", force=True)
logging.getLogger("httpx").setLevel(logging.WARNING)
"""
SET_UPS = {
    "vllm": VLLM,
    "vllm, a file of the user's": VLLM.replace('"disable_existing_loggers": False,', ""),
    "sglang": SGLANG.replace("{level}", "INFO"),
    "sglang --log-level error": SGLANG.replace("{level}", "ERROR"),
}
ACTIVE = "import fi_shim.log\nfi_shim.log.event('info', 'active', flashinfer='0.7.4')\n"


def active_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "event=active" in line]


@pytest.mark.parametrize("before", [True, False], ids=["set up first", "shim first"])
@pytest.mark.parametrize("set_up", SET_UPS)
def test_a_line_is_seen_once_on_stderr(host: Any, set_up: str, *, before: bool) -> None:
    parts = [SET_UPS[set_up], "import fi_shim\n"]
    done = host.run("-c", "".join([*(parts if before else parts[::-1]), ACTIVE]))
    assert len(active_lines(done.stderr)) == 1
    assert active_lines(done.stdout) == []


@pytest.mark.flashinfer
@pytest.mark.parametrize("set_up", ["vllm", "sglang"])
def test_the_active_line_itself(host_with: Any, set_up: str) -> None:
    done = host_with("0.7.4").run("-c", f"import fi_shim\n{SET_UPS[set_up]}\nimport flashinfer.comm")
    (line,) = active_lines(done.stderr)
    assert "patches=creation,validator" in line


def test_what_is_switched_off_on_purpose_stays_off(host: Any) -> None:
    done = host.run("-c", f"import logging, fi_shim\nlogging.disable(logging.CRITICAL)\n{ACTIVE}")
    assert active_lines(done.stderr) == []
