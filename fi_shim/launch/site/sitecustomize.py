"""First on the path of every Python that `fi-shim run` starts: waits for FlashInfer, then runs the sitecustomize that it hides.

Compilers and package installers start Pythons too, of any version: standard library only, no recent syntax, and no error of ours leaves
this file.
"""

import os
import sys

OFF = ("0", "false", "off", "no")  # as in fi_shim/settings.py
SITE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib costs as much as all the rest


class UntilFlashInfer:
    """Stands on `sys.meta_path` until FlashInfer is looked for; then imports fi_shim, which watches from there on."""

    def __init__(self, names: "tuple[str, ...]") -> None:
        self.names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        """The others' answer: a list that changes while it is gone through loses an entry, so they are not left to our caller."""
        if fullname not in self.names:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if id(finder) != id(self)]
        import_fi_shim()
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


def import_fi_shim() -> None:
    """Import the package, which activates it; its folder goes to the end of the path of a Python that does not have it."""
    try:
        if "fi_shim" in sys.modules:
            return
        import importlib.util

        found = importlib.util.find_spec("fi_shim")
        if found is None or found.origin is None:  # a folder that happens to have its name is no package
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(SITE))))  # noqa: PTH120
        vars(sys)["_fi_shim_arrival"] = {"route": "run"}
        import fi_shim  # noqa: F401
    except Exception as error:  # noqa: BLE001
        tell("event=activation_failed error=%r" % (error,))  # noqa: UP031
    finally:
        vars(sys).pop("_fi_shim_arrival", None)


def tell(text: str) -> None:
    """One line, where there is somebody to read it."""
    try:  # noqa: SIM105  # contextlib would be one more import
        sys.stderr.write("fi_shim[%d %s -] %s\n" % (os.getpid(), os.environ.get("RANK", "-"), text))  # noqa: UP031
    except Exception:  # noqa: BLE001, S110
        pass


def wait() -> None:
    """Register the finder, unless FI_SHIM=0 here. Simulated devices are independent of that, and lie under torch as well."""
    simulated = bool(os.environ.get("FI_SHIM_SIMULATE"))
    if sys.version_info < (3, 10) or (os.environ.get("FI_SHIM", "").strip().lower() in OFF and not simulated):
        return
    names = ("flashinfer", "torch", "cuda") if simulated else ("flashinfer",)
    sys.meta_path.insert(0, UntilFlashInfer(names))  # type: ignore[arg-type]  # importlib asks find_spec, and for no base class


def run_the_hidden_one() -> None:
    """Leave the path and import `sitecustomize` again. What that one raises is its own, and told by `site` as ever."""
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != SITE]  # noqa: PTH100
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":
    try:
        wait()
    except Exception as error:  # noqa: BLE001
        tell("event=activation_failed error=%r" % (error,))  # noqa: UP031
    run_the_hidden_one()
