"""Tests on other Pythons, other wrapts and other torches; `make test` is the everyday run."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
PROJECT = nox.project.load_toml("pyproject.toml")


@nox.session(python=PYTHONS)
@nox.parametrize("wrapt", ["1.17.*", "2.*"])
def tests(session: nox.Session, wrapt: str) -> None:
    """The tests that need no FlashInfer, unless arguments say otherwise."""
    session.install(*nox.project.dependency_groups(PROJECT, "host-cpu", "test"))
    session.install("-e", ".[cli]", f"wrapt=={wrapt}")
    session.run("pytest", "-n", "2", *(session.posargs or ["-m", "not flashinfer"]))


@nox.session(python="3.11")
@nox.parametrize("torch", ["2.9.1", "2.13.0", "newest"])
def compiled(session: nox.Session, torch: str) -> None:
    """The patched callables inside torch.compile, from the oldest torch that an engine in use pins to the newest."""
    others = [name for name in nox.project.dependency_groups(PROJECT, "host-cpu", "test") if not name.startswith("torch")]
    session.install(*others, "torch" if torch == "newest" else f"torch=={torch}")
    session.install("-e", ".[cli]")
    session.run("pytest", "-n", "2", *(session.posargs or ["tests/real_flashinfer/test_compiled.py"]))


@nox.session
def lint(session: nox.Session) -> None:
    """What `make lint` checks."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.install("-e", ".[cli]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
