"""What `doctor` says of engines, from their metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engines import driven

from fi_shim.installed_engines import TESTED, installed_engines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution's metadata on the path; returns the folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, version: str, *requirements: str) -> str:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {text}" for text in requirements)]
        (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path)

    return install


def test_no_engine(install: Install) -> None:
    assert installed_engines("0.7.4") == []


def test_pins_are_read_as_engines_write_them(install: Install) -> None:
    install("sglang", "0.5.23", "torch==2.14.1", "flashinfer_python[cu13]==0.7.2", "not a requirement !")
    install("vllm", "0.33.0", "flashinfer-python==0.7.2.post1", 'flashinfer-python==0.3.1; extra == "flashinfer"')
    install("tensorrt-llm", "1.3.0")
    sglang, vllm, tensorrt = installed_engines("0.7.2+cu130")
    assert (sglang.name, sglang.version, sglang.pin, sglang.pin_holds, sglang.notes, sglang.unsafe) == (
        "sglang",
        "0.5.23",
        "==0.7.2",
        True,
        (),
        (),
    )
    assert (vllm.pin, vllm.pin_holds) == ("==0.7.2.post1", False)
    assert "0.7.2+cu130 is here" in vllm.notes[0]
    assert (tensorrt.pin, tensorrt.pin_holds) == ("", None)
    assert "nothing to patch" in tensorrt.notes[0]


@pytest.mark.parametrize(
    ("name", "version", "flashinfer", "words"),
    [
        ("sglang", "0.5.20", "0.6.18", ""),
        ("sglang", "0.5.14", "0.6.12", "rendezvous"),
        ("sglang", "0.5.14", "0.6.18", ""),
        ("vllm", "0.23.0", "0.6.12", ""),
        ("vllm", "a build", None, ""),
    ],
)
def test_unsafe_combinations(install: Install, name: str, version: str, flashinfer: str | None, words: str) -> None:
    install(name, version)
    (engine,) = installed_engines(flashinfer)
    assert bool(engine.unsafe) is bool(words)
    assert words in " ".join(engine.unsafe)
    assert ("rendezvous" in " ".join(engine.unsafe)) is (words == "rendezvous")


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.5.10", "never declined"), ("0.5.20", "at pre-initialisation or not at all"), ("0.5.21", ""), ("0.0.0", "no test drives 0.0.0")],
)
def test_where_sglang_is_declined(install: Install, version: str, words: str) -> None:
    install("sglang", version)
    (engine,) = installed_engines(None)
    assert bool(engine.notes) is bool(words)
    assert words in " ".join(engine.notes)


@pytest.mark.parametrize("engine", TESTED)
def test_what_is_called_tested_is_what_tests_drive(engine: str) -> None:
    assert TESTED[engine] == tuple(str(driven.version(release)) for release in driven.releases(engine, fixes=True))


@pytest.mark.parametrize(
    ("name", "version", "tested"),
    [
        ("sglang", "0.5.18", True),
        ("sglang", "0.5.10.post1", True),
        ("sglang", "0.5.10.post2", False),
        ("sglang", "0.5.24", False),
        ("vllm", "0.22.0+cu130", True),
        ("vllm", "0.21.0", False),
        ("vllm", "a build", False),
        ("tensorrt-llm", "1.3.0", None),
    ],
)
def test_releases_that_tests_drive(install: Install, name: str, version: str, tested: bool | None) -> None:
    install(name, version)
    (engine,) = installed_engines(None)
    assert engine.tested is tested
    assert any("no test drives" in note for note in engine.notes) is (tested is False)


@pytest.mark.flashinfer
def test_doctor_shows_them(install: Install, host_with: Any) -> None:
    folder = install("sglang", "0.5.19", "flashinfer_python==0.6.18")
    host = host_with("0.7.4")
    path = f"{host.environment()['PYTHONPATH']}:{folder}"
    done = host.run("-m", "fi_shim", "doctor", PYTHONPATH=path, check=False)
    assert done.returncode == 0
    assert "another one is here" in done.stdout
    assert "SGLang 0.5.19: a workspace is declined at pre-initialisation or not at all" in done.stdout
    report = json.loads(host.run("-m", "fi_shim", "doctor", "--json", PYTHONPATH=path, check=False).stdout)
    assert [(e["name"], e["pin"], e["pin_holds"]) for e in report["engines"]] == [("sglang", "==0.6.18", False)]
