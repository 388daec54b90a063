"""In fresh processes: pytest listens to everything in its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

CONFIGURE = "import logging; from fi_shim import log; log.configure('info'); "


def lines(host: Any, code: str, **variables: str) -> list[str]:
    return host.run("-c", CONFIGURE + code, FI_SHIM="0", **variables).stderr.splitlines()


def test_a_line_goes_to_stderr_where_nobody_would_hear_it(host: Any) -> None:
    (line,) = lines(host, """log.event("info", "something", number=3, text='two words, "quoted"')""")
    assert line.startswith("fi_shim[")
    assert line.endswith('event=something number=3 text="two words, \\"quoted\\""')


def test_a_null_handler_hears_nothing(host: Any) -> None:
    code = "[logging.getLogger(n).addHandler(logging.NullHandler()) for n in ('', 'fi_shim')]; log.event('info', 'something')"
    assert len(lines(host, code)) == 1


def test_a_real_handler_is_not_doubled(host: Any) -> None:
    code = "logging.basicConfig(level='INFO', format='theirs %(message)s'); log.event('info', 'something')"
    (line,) = lines(host, code)
    assert line.startswith("theirs fi_shim[")


def test_what_fails_while_it_is_logged_does_not_reach_the_caller(host: Any) -> None:
    code = """
class Unprintable:
    def __str__(self):
        raise RuntimeError("not me")
log.event("info", "something", value=Unprintable())
log.event("info", "else")
"""
    (line,) = lines(host, code, RANK="1\n2")
    assert "event=else" in line


def test_every_event_is_documented() -> None:
    call = re.compile(r"\b(?:event|once)\(\s*(?:[^\"()]*\"(?:debug|info|warning|error)\"[^\"()]*(?:\"debug\")?,\s*)?\"([a-z_]+)\"")
    root = Path(__file__).parents[1]
    names = {name for path in (root / "fi_shim").rglob("*.py") for name in call.findall(path.read_text(encoding="utf-8"))}
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert {"active", "declined", "drift", "not_given_back"} <= names
    assert not {name for name in names if f"`{name}`" not in readme}
