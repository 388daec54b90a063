"""Run one case in a process of its own, forked from a program that has loaded what is slow to load."""

from __future__ import annotations

import os
import traceback
from typing import Any


def in_child(function: Any, *arguments: Any) -> str:
    """Run in a forked child; the empty string, or its traceback."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
            text = ""
        except BaseException:  # noqa: BLE001
            text = traceback.format_exc()
        os.write(write, text.encode()[-4000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return text or (f"exit status {status}" if status else "")
