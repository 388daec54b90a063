"""Orders of importing, capturing, activating and deactivating, each in a process of its own (forked from one that has torch loaded).

A script is a list of steps; after each the state is compared with what must hold. Prints how many scripts were run.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import logging
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from fi_shim_free import import_aids  # noqa: E402
from forked import in_child  # noqa: E402

METHODS = ("__init__", "is_buffer_size_sufficient", "destroy")


class World:
    """One process: what was captured, and what the originals are."""

    def __init__(self) -> None:
        self.captured: dict[str, Any] = {}

    @property
    def allreduce(self) -> Any:
        return sys.modules["flashinfer.comm.allreduce"]

    @property
    def workspace_class(self) -> Any:
        return self.allreduce.TRTLLMAllReduceFusionWorkspace

    def active(self) -> bool:
        return "fi_shim" in sys.modules and sys.modules["fi_shim"].status()["active"]

    def check(self, script: tuple[str, ...]) -> None:
        if "flashinfer.comm.allreduce" not in sys.modules:
            return
        for method in METHODS:
            function = vars(self.workspace_class)[method]
            ours = [f.__fi_shim__ for f in (function, *unwrapped(function)) if hasattr(f, "__fi_shim__")]
            expected = {"__init__": ["validator", "creation"]}.get(method, ["validator"])
            assert ours == (expected if self.active() else []), (script, method, ours)
            assert inspect.isfunction(function), (script, method)
        workspace = made_up(self.workspace_class, limits=self.active())
        silent = not warns(lambda: workspace.is_buffer_size_sufficient(4, 17, 64, torch.bfloat16))
        assert silent is self.active(), (script, silent)
        assert workspace.is_buffer_size_sufficient(4, 16, 64, torch.bfloat16) is True
        if "method" in self.captured:  # an engine that kept the class, or the function it found there
            assert self.captured["class"] is self.workspace_class, script


def unwrapped(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        yield function


def made_up(cls: Any, *, limits: bool) -> Any:
    workspace = object.__new__(cls)
    workspace._destroyed = True
    workspace.metadata = {"tp_rank": 0, "tp_size": 4, "max_token_num": 16, "hidden_dim": 64, "use_fp32_lamport": False}
    if limits:
        from fi_shim.patches.validator import remember_limits

        remember_limits(workspace)
    return workspace


def warns(call: Any) -> bool:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    logger = sys.modules["flashinfer.comm.allreduce"].logger
    logger.addHandler(handler)
    logger.propagate = False
    call()
    logger.removeHandler(handler)
    return bool(heard)


def step_shim(_: World) -> None:
    importlib.import_module("fi_shim")


def step_flashinfer(_: World) -> None:
    importlib.import_module("flashinfer.comm")


def step_capture(world: World) -> None:
    """As SGLang does: the class and a function object, kept from then on."""
    importlib.import_module("flashinfer.comm")
    world.captured.update({"class": world.workspace_class, "method": world.workspace_class.is_buffer_size_sufficient})


def step_activate(_: World) -> None:
    importlib.import_module("fi_shim").activate()


def step_deactivate(_: World) -> None:
    importlib.import_module("fi_shim").deactivate()


def step_failing_import(_: World) -> None:
    """A first import that fails half-way, as with a broken companion library."""
    if "flashinfer.comm.allreduce" in sys.modules:
        return
    sys.modules["flashinfer.comm.trtllm_mnnvl_ar"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("flashinfer.comm")
    except ImportError:
        pass
    else:
        raise AssertionError("the import was to fail")
    for name in [name for name in sys.modules if name.startswith("flashinfer.comm")]:
        del sys.modules[name]


STEPS = {
    "shim": step_shim, "flashinfer": step_flashinfer, "capture": step_capture, "activate": step_activate,
    "deactivate": step_deactivate, "failing": step_failing_import,
}  # fmt: skip


def scripts() -> list[tuple[str, ...]]:
    found = set(itertools.permutations(["shim", "flashinfer", "capture", "deactivate", "activate"]))
    found = {script for i, script in enumerate(sorted(found)) if i % 5 == 0}  # every fifth of 120
    found |= {
        ("shim", "failing", "flashinfer", "capture"),
        ("failing", "shim", "flashinfer", "deactivate", "activate"),
        ("shim", "shim", "flashinfer", "activate", "activate", "deactivate", "deactivate", "activate"),
        ("flashinfer", "capture", "shim", "deactivate", "activate", "deactivate"),
    }
    return sorted(found)


def run_script(script: tuple[str, ...]) -> None:
    world = World()
    for step in script:
        STEPS[step](world)
        world.check(script)


def script_wrappers_survive() -> None:
    """Other people's wrappers below and above ours keep being called and stay where they are."""
    importlib.import_module("flashinfer.comm")
    world = World()
    cls = world.workspace_class
    calls: list[str] = []
    pristine = cls.is_buffer_size_sufficient

    def wrapper(inner: Any, label: str) -> Any:
        def is_buffer_size_sufficient(
            self: Any, tp_size: Any, num_tokens: Any, hidden_dim: Any, dtype: Any, use_oneshot: Any = None
        ) -> Any:
            calls.append(label)
            return inner(self, tp_size, num_tokens, hidden_dim, dtype, use_oneshot)

        is_buffer_size_sufficient.__wrapped__ = inner  # type: ignore[attr-defined]
        return is_buffer_size_sufficient

    below = cls.is_buffer_size_sufficient = wrapper(pristine, "below")
    import fi_shim

    state = fi_shim.status()["patches"]["validator"]
    assert state["state"] == "applied", state
    assert state["reason"].startswith("behavioural probe"), state
    calls.clear()
    workspace = made_up(cls, limits=True)
    assert workspace.is_buffer_size_sufficient(4, 16, 64, torch.bfloat16) is True
    assert calls == ["below"]
    above = cls.is_buffer_size_sufficient = wrapper(cls.is_buffer_size_sufficient, "above")
    assert fi_shim.status()["patches"]["validator"]["state"] == "displaced"
    calls.clear()
    assert workspace.is_buffer_size_sufficient(4, 17, 64, torch.bfloat16) is False
    assert calls == ["above"]
    fi_shim.deactivate()
    assert cls.is_buffer_size_sufficient is above
    state = fi_shim.status()["patches"]["validator"]
    assert state["state"] == "displaced"
    assert "is_buffer_size_sufficient" in state["reason"]
    assert warns(lambda: workspace.is_buffer_size_sufficient(4, 17, 64, torch.bfloat16)), "after deactivate FlashInfer must be heard again"
    fi_shim.activate()
    assert cls.is_buffer_size_sufficient is above, "never patched twice"
    assert not warns(lambda: workspace.is_buffer_size_sufficient(4, 17, 64, torch.bfloat16))
    cls.is_buffer_size_sufficient = above.__wrapped__
    fi_shim.deactivate()
    assert cls.is_buffer_size_sufficient is below


def script_displaced_by_those_who_copy_attributes() -> None:
    """functools.wraps and wrapt copy ours with all its attributes; it is theirs that stands there all the same."""
    import functools

    import wrapt

    importlib.import_module("flashinfer.comm")
    import fi_shim

    cls = World().workspace_class

    def by_functools(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    def by_wrapt(function: Any) -> Any:
        return wrapt.FunctionWrapper(function, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))

    for wrap in (by_functools, by_wrapt):
        ours = cls.is_buffer_size_sufficient
        wrapper = cls.is_buffer_size_sufficient = wrap(ours)
        assert fi_shim.status()["patches"]["validator"]["state"] == "displaced", wrap
        fi_shim.deactivate()
        assert vars(cls)["is_buffer_size_sufficient"] is wrapper
        assert fi_shim.status()["patches"]["validator"]["state"] == "displaced", wrap
        cls.is_buffer_size_sufficient = ours  # as unittest.mock does at the end of its block
        assert fi_shim.status()["patches"]["validator"]["state"] == "inactive"
        assert not hasattr(cls.is_buffer_size_sufficient, "__wrapped__"), "restored as soon as somebody looked"
        fi_shim.activate()


def script_the_package_is_imported_anew() -> None:
    """A second copy of the package takes over: nothing is patched twice, and it is heard."""
    import fi_shim  # noqa: F401

    importlib.import_module("flashinfer.comm")
    for name in [name for name in sys.modules if name.split(".")[0] == "fi_shim"]:
        del sys.modules[name]
    again = importlib.import_module("fi_shim")
    World().check(("anew",))
    assert len([f for f in sys.meta_path if type(f).__module__ == "fi_shim.importing"]) == 1
    again.deactivate()
    World().check(("anew", "deactivate"))
    assert not [f for f in sys.meta_path if type(f).__module__ == "fi_shim.importing"]


def script_unknown_code() -> None:
    """Validators that answer otherwise are left alone, and somebody is told."""
    importlib.import_module("flashinfer.comm")
    module, cls = World().allreduce, World().workspace_class
    pristine = cls.is_buffer_size_sufficient

    def tokens_only(self: Any, tp_size: Any, num_tokens: Any, hidden_dim: Any, dtype: Any, use_oneshot: Any = None) -> bool:
        return num_tokens <= self.metadata["max_token_num"]

    def one_shot_is_cheaper(self: Any, tp_size: Any, num_tokens: Any, hidden_dim: Any, dtype: Any, use_oneshot: Any = None) -> bool:
        return True if use_oneshot is False else pristine(self, tp_size, num_tokens, hidden_dim, dtype, use_oneshot)

    def very_large_is_fine(self: Any, tp_size: Any, num_tokens: Any, hidden_dim: Any, dtype: Any, use_oneshot: Any = None) -> bool:
        return num_tokens * hidden_dim > 1 << 39 or pristine(self, tp_size, num_tokens, hidden_dim, dtype, use_oneshot)

    def accepts_any_dtype(self: Any, tp_size: Any, num_tokens: Any, hidden_dim: Any, dtype: Any, use_oneshot: Any = None) -> bool:
        fp32 = torch.float32 if self.metadata["use_fp32_lamport"] else torch.bfloat16
        return pristine(self, tp_size, num_tokens, hidden_dim, fp32, use_oneshot)

    import fi_shim

    assert fi_shim.status()["patches"]["validator"]["state"] == "applied"
    for changed in (tokens_only, one_shot_is_cheaper, very_large_is_fine, accepts_any_dtype):
        fi_shim.deactivate()
        cls.is_buffer_size_sufficient = changed
        assert not warns(fi_shim.activate), "the probe is quiet"
        state = fi_shim.status()["patches"]["validator"]
        assert state["state"] == "unknown code", (changed.__name__, state)
        assert cls.is_buffer_size_sufficient is changed
        assert vars(cls)["__init__"].__fi_shim__ == "creation"
        cls.is_buffer_size_sufficient = pristine
    assert module.logger.filters == []


def script_middle() -> None:
    """The shim is imported while FlashInfer's module is half imported, from another module that it imports."""
    name = "flashinfer.comm.workspace_base"  # imported by allreduce before its classes exist
    registrar = types.ModuleType("registrar")
    registrar.seen = []  # type: ignore[attr-defined]

    class Finder:
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
            if fullname == "flashinfer.comm.trtllm_mnnvl_ar" and not registrar.seen:
                registrar.seen.append("flashinfer.comm.allreduce" in sys.modules)
                importlib.import_module("fi_shim")

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    sys.modules.pop(name, None)
    importlib.import_module("flashinfer.comm")
    assert registrar.seen, "the half-way point was not reached"
    World().check(("middle",))
    assert World().active()


def script_second_import() -> None:
    """The modules are thrown away and imported again: new classes, patched as well."""
    import fi_shim

    importlib.import_module("flashinfer.comm")
    first = World().workspace_class
    for name in [name for name in sys.modules if name.startswith("flashinfer.comm")]:
        del sys.modules[name]
    importlib.import_module("flashinfer.comm")
    assert World().workspace_class is not first
    World().check(("second import",))
    fi_shim.deactivate()
    World().check(("second import", "deactivate"))
    assert not hasattr(first.is_buffer_size_sufficient, "__wrapped__")


def script_never() -> None:
    import fi_shim

    assert fi_shim.status()["patches"]["validator"]["state"] == "pending"
    fi_shim.deactivate()
    assert fi_shim.status()["patches"]["validator"]["state"] == "inactive"


def script_threads() -> None:
    """Activation and import race."""
    import threading

    barrier = threading.Barrier(3)
    problems: list[BaseException] = []

    def guarded(action: Any) -> None:
        barrier.wait()
        try:
            action()
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    actions = [lambda: importlib.import_module("flashinfer.comm"), lambda: importlib.import_module("fi_shim")]
    threads = [threading.Thread(target=guarded, args=(action,)) for action in (*actions, actions[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    World().check(("threads",))
    assert World().active()


def main() -> None:
    import_aids()
    assert "fi_shim" not in sys.modules
    importlib.import_module("flashinfer")  # the bulk, without what the shim watches
    for name in [name for name in sys.modules if name.startswith("flashinfer.comm")]:
        del sys.modules[name]
    named = [
        script_wrappers_survive,
        script_displaced_by_those_who_copy_attributes,
        script_the_package_is_imported_anew,
        script_unknown_code,
        script_middle,
        script_second_import,
        script_never,
        script_threads,
    ]
    jobs = [(run_script, (script,)) for script in scripts()] + [(function, ()) for function in named]
    failures = [text for function, arguments in jobs if (text := in_child(function, *arguments))]
    print(json.dumps({"scripts": len(jobs), "failures": failures}))


main()
