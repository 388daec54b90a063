"""Tests on other Pythons and other wrapts; `make test` is the everyday run."""

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


@nox.session
def lint(session: nox.Session) -> None:
    """What `make lint` checks."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.install("-e", ".[cli]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
