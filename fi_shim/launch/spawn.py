"""Settings travel to spawn and forkserver children in multiprocessing's preparation data, which a child reads before its main module.

Without that, a child is active only where the import stands at the top level of the main script, and then with the environment's settings.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from typing import TYPE_CHECKING, Any, Final

from fi_shim.launch.arrival import NOTE
from fi_shim.settings import switched_off

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.settings import Settings

MODULE: Final = "multiprocessing.spawn"
ATTRIBUTE: Final = "get_preparation_data"
KEY: Final = "fi_shim"

# Run in the child while it unpickles, in names of its own. What it fails at, the child goes on without.
_IN_CHILD: Final = f"""
import sys
try:
    if path:  # as multiprocessing is going to set it in a moment: our imports must come from where the parent's came from
        sys.path[:] = path
    vars(sys)[{NOTE!r}] = {{"route": "multiprocessing", "settings": settings}}
    from fi_shim.launch.arrival import after_import
    after_import()
except Exception as error:
    try:
        import os
        sys.stderr.write("fi_shim[%d %s -] event=activation_failed error=%r\\n" % (os.getpid(), os.environ.get("RANK", "-"), error))
    except Exception:
        pass
finally:
    vars(sys).pop({NOTE!r}, None)
"""


class _Carried:
    """Pickles as a call of `exec`, not as a class of ours: unpickling must succeed also where the package cannot be imported."""

    def __init__(self, path: list[str], settings: bytes) -> None:
        self.path = path
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_IN_CHILD, {"path": self.path, "settings": self.settings})


class Carrier:
    """Puts the settings in force into the preparation data of this process's children.

    Args:
        in_force: asked for each child; None: there is nothing to carry.
    """

    def __init__(self, in_force: Callable[[], Settings | None]) -> None:
        self._in_force = in_force
        self._module: Any = None
        self._original: Any = None
        self._replacement: Any = None
        self._overrules = False

    def begin(self) -> None:
        """Settings have come into force: do they stand against an FI_SHIM=0, which then holds for children no more than for us?"""
        self._overrules = switched_off(os.environ)

    def install(self, module: ModuleType) -> None:
        """Wrap `get_preparation_data` in multiprocessing.spawn, once."""
        if self._module is module and getattr(module, ATTRIBUTE) is not self._original:  # ours, or somebody's around ours
            return
        self._module, self._original = module, getattr(module, ATTRIBUTE)
        self._replacement = self._wrapped(self._original)
        setattr(module, ATTRIBUTE, self._replacement)

    def remove(self) -> None:
        """Put the original back. What somebody wrapped stays, and carries nothing while nothing is in force."""
        if self._replacement is not None and getattr(self._module, ATTRIBUTE, None) is self._replacement:
            setattr(self._module, ATTRIBUTE, self._original)

    def _wrapped(self, original: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
        @functools.wraps(original)
        def get_preparation_data(name: str) -> dict[str, Any]:
            data = original(name)
            with contextlib.suppress(Exception):  # the child then starts as without us
                settings = self._in_force()
                if settings is not None and (self._overrules or not switched_off(os.environ)):
                    data[KEY] = _Carried(data.get("sys_path", []), pickle.dumps(settings))
            return data

        return get_preparation_data
