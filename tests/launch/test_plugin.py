"""The entry points: alone, and called by the engines' own loaders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fetch_engine
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

ASKED = "installed, not active; set FI_SHIM=1"

# What a call leaves behind: is the package imported, is it active, by which route, which handlers and threshold has its logger.
AFTER = """
import json, logging, sys
package = sys.modules.get("fi_shim")
logger = logging.getLogger("fi_shim")
print(json.dumps([package is not None, package is not None and package.status()["active"], package and package.status()["route"],
                  len(logger.handlers), logger.level]))
"""

ENGINES = {
    "vllm": ("0.33.0", "vllm.plugins", "load_general_plugins", "VLLM_PLUGINS"),
    "sglang": ("0.5.23", "sglang.srt.plugins", "load_plugins", "SGLANG_PLUGINS"),
}


def called(python: Any, code: str, **variables: str) -> tuple[Any, str]:
    done = python.run("-c", f"import fi_shim_plugin\n{code}\n{AFTER}", **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_word_it_says_that_it_is_there_and_does_nothing(python: Any, engine: str) -> None:
    left, said = called(python, f"fi_shim_plugin.{engine}(); fi_shim_plugin.{engine}(); fi_shim_plugin.vllm(); fi_shim_plugin.sglang()")
    assert left == [False, False, None, 0, 0]
    assert said.count("\n") == 1
    assert said.startswith("fi_shim[")
    assert said.rstrip().endswith(f'event=installed note="{ASKED}"')


def test_the_line_goes_where_the_engine_logs_and_can_be_silenced(python: Any) -> None:
    _, said = called(python, "import logging; logging.basicConfig(level='INFO', format='engine %(message)s'); fi_shim_plugin.vllm()")
    assert said.startswith("engine fi_shim[")
    assert said.count("\n") == 1
    for threshold, lines in (("warning", 0), ("debug", 1), ("nonsense", 1)):
        assert called(python, "fi_shim_plugin.vllm()", FI_SHIM_LOG=threshold)[1].count("\n") == lines


@pytest.mark.parametrize("switch", ["0", "off", "False"])
def test_fi_shim_0_leaves_no_trace(python: Any, switch: str) -> None:
    left, said = called(python, "fi_shim_plugin.vllm(); fi_shim_plugin.sglang()", FI_SHIM=switch)
    assert (left, said) == ([False, False, None, 0, 0], "")


@pytest.mark.parametrize(("engine", "switch"), [*((engine, "1") for engine in ENGINES), ("vllm", "On"), ("sglang", "yes")])
def test_fi_shim_1_activates(python: Any, engine: str, switch: str) -> None:
    left, said = called(python, f"fi_shim_plugin.{engine}(); fi_shim_plugin.vllm(); fi_shim_plugin.sglang()", FI_SHIM=switch)
    assert left[:3] == [True, True, f"{engine} plugin"]
    assert said == ""


def test_settings_that_somebody_chose_stay(python: Any) -> None:
    chosen = "import fi_shim; from fi_shim.settings import Settings; fi_shim.activate(Settings(vote_timeout=7.0)); fi_shim_plugin.vllm()"
    code = chosen + "; assert fi_shim.status()['settings']['vote_timeout']['value'] == 7.0"
    assert called(python, code, FI_SHIM="1", FI_SHIM_LOG="error")[0][:3] == [True, True, "import"]


def test_a_second_call_does_not_undo_deactivate(python: Any) -> None:
    code = "fi_shim_plugin.vllm(); import fi_shim; fi_shim.deactivate(); fi_shim_plugin.vllm()"
    assert called(python, code, FI_SHIM="1", FI_SHIM_LOG="error")[0][:2] == [True, False]
    code = "import fi_shim; fi_shim.deactivate(); fi_shim_plugin.vllm()"
    assert called(python, code, FI_SHIM="1", FI_SHIM_LOG="error")[0][:2] == [True, True]


def test_where_the_shim_is_active_anyway_it_has_nothing_to_say(python: Any) -> None:
    assert called(python, "import fi_shim; fi_shim_plugin.vllm()")[1] == ""


def test_a_broken_package_is_told_and_never_raised(python: Any, tmp_path: Any) -> None:
    broken = "import sys; sys.modules['fi_shim.activation'] = None; fi_shim_plugin.vllm()"
    done = python.run("-c", f"import fi_shim_plugin; {broken}", FI_SHIM="1")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "event=activation_failed" in done.stderr
    nowhere = "import sys; sys.modules['fi_shim'] = sys.modules['importlib.util'] = None; fi_shim_plugin.vllm()"
    assert python.run("-c", f"import fi_shim_plugin; {nowhere}", FI_SHIM="1").returncode == 0


@pytest.mark.flashinfer
@pytest.mark.parametrize(
    ("switch", "allowed", "active", "lines"),
    [
        ("", None, False, 1),
        ("1", None, True, 0),
        ("0", None, False, 0),
        ("", "fi_shim", False, 1),
        ("1", "another,fi_shim", True, 0),
        ("1", "another", False, 0),
        ("", "another", False, 0),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_engines_own_loader(
    engine: str, switch: str, allowed: str | None, active: bool, lines: int, host_with: Callable[[str | None], Host], plugin_installed: Any
) -> None:
    """The loader is the released engine's; the rest of the engine, which demands a GPU, is not imported."""
    version, module, function, allow_list = ENGINES[engine]
    folder = fetch_engine.fetch(engine, version) / engine
    code = f"""
import importlib, sys, types
package = sys.modules[{engine!r}] = types.ModuleType({engine!r})
package.__path__ = [{str(folder)!r}]
load = importlib.import_module({module!r}).{function}
load(); load()
"""
    host = host_with(None)
    variables = {"FI_SHIM": switch, "PYTHONPATH": plugin_installed(host), **({allow_list: allowed} if allowed else {})}
    done = host.run("-c", code + AFTER, **variables)
    left = json.loads(done.stdout.splitlines()[-1])
    assert left[:3] == [active, active, f"{engine} plugin" if active else None]
    assert done.stderr.count("fi_shim[") == done.stderr.count(ASKED) == lines
    assert "Traceback" not in done.stderr
