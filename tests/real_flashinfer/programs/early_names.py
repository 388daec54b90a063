"""An engine binds a FlashInfer function by name; the shim comes before or after, by import or by the engine's own plugin loader.

Every order runs in a process of its own, forked from one that has torch loaded; FI_SHIM=1, or the loaders' plugins would do nothing.
Prints how many were run. Arguments: every how manieth order to run, and the folders of a vLLM and an SGLang release.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402, F401
from fi_shim_free import import_aids  # noqa: E402
from forked import in_child  # noqa: E402

NAME = "trtllm_create_ipc_workspace_for_all_reduce_fusion"
ENGINE = "engine_that_binds_names"


class World:
    """One process: what the engine holds, and what must be true of the shim."""

    def __init__(self) -> None:
        self.active = self.engine_came_first = False
        self.done: list[str] = []

    @property
    def engine(self) -> Any:
        return sys.modules.get(ENGINE)

    def expect(self, step: str) -> None:
        """An import activates once, a loader calls its plugin once in a process, and activate() and deactivate() always count."""
        imported = set(self.done) - {"engine"}
        before = self.active
        if step == "activate" or (step == "shim" and not imported) or (step in {"vllm", "sglang"} and step not in self.done):
            self.active = True
        elif step == "deactivate":
            self.active = False
        if self.active and not before:
            self.engine_came_first = self.engine is not None
        self.done.append(step)

    def check(self) -> None:
        status = sys.modules["fi_shim"].status() if "fi_shim" in sys.modules else {"active": False}
        assert status["active"] is self.active, (self.done, status["active"])
        if self.engine is None:
            return
        defining = vars(sys.modules["flashinfer.comm.trtllm_ar"])[NAME]
        for holder in (self.engine.create, self.engine.again, vars(sys.modules["flashinfer.comm"])[NAME]):
            assert holder is defining, (self.done, holder, defining)
        if self.active:
            assert defining.__fi_shim__ == "creation", self.done
        else:
            assert not hasattr(defining, "__fi_shim__"), self.done
        assert self.engine.constant == NAME
        expected = [f"{ENGINE}.create", f"{ENGINE}.again"] if self.active and self.engine_came_first else []
        names = status.get("early_names", {"repointed": 0, "names": []})
        assert names == {"repointed": len(expected), "names": expected}, (self.done, names)


def step_engine(_: World) -> None:
    module = types.ModuleType(ENGINE)
    exec(f"from flashinfer.comm import {NAME} as create\nagain = create\nconstant = {NAME!r}", vars(module))
    sys.modules[ENGINE] = module


def step_shim(_: World) -> None:
    importlib.import_module("fi_shim")


def step_activate(_: World) -> None:
    importlib.import_module("fi_shim").activate()


def step_deactivate(_: World) -> None:
    importlib.import_module("fi_shim").deactivate()


def step_vllm(_: World) -> None:
    sys.modules["vllm.plugins"].load_general_plugins()


def step_sglang(_: World) -> None:
    sys.modules["sglang.srt.plugins"].load_plugins()


STEPS = {
    "engine": step_engine, "shim": step_shim, "activate": step_activate, "deactivate": step_deactivate,
    "vllm": step_vllm, "sglang": step_sglang,
}  # fmt: skip


def run_script(script: tuple[str, ...]) -> None:
    world = World()
    for step in script:
        world.expect(step)
        STEPS[step](world)
        world.check()


def scripts(every: int) -> list[tuple[str, ...]]:
    found = [script for way in ("shim", "vllm", "sglang") for script in itertools.permutations(["engine", way, "activate", "deactivate"])]
    return [
        *found[::every],
        ("engine", "vllm", "sglang"),
        ("sglang", "deactivate", "vllm", "engine"),
        ("engine", "sglang", "deactivate", "sglang"),
        ("shim", "engine", "deactivate", "activate", "deactivate"),
    ]


def load(name: str, folder: str) -> None:
    """The engine's real plugin loader, without the rest of the engine, which demands a GPU."""
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(folder, name)]  # noqa: PTH118
    sys.modules[name] = package
    importlib.import_module({"vllm": "vllm.plugins", "sglang": "sglang.srt.plugins"}[name])


def script_what_else_is_bound_stays() -> None:
    """Only functions that were replaced where they are defined are compared; odd modules are not touched."""
    importlib.import_module("flashinfer.comm")

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    class Odd:
        __slots__ = ()

    sys.modules["lazy"], sys.modules["odd"] = Lazy("lazy"), Odd()  # type: ignore[assignment]
    sys.modules["nothing"] = None  # type: ignore[assignment]
    holder = types.ModuleType("holder")
    holder.function = sys.modules["flashinfer.comm"].__dict__[NAME]  # type: ignore[attr-defined]
    sys.modules["__mp_main__"] = sys.modules["holder"] = sys.modules["holder.again"] = holder
    import fi_shim

    assert fi_shim.status()["early_names"]["repointed"] == 1
    assert holder.function.__fi_shim__ == "creation"
    holder.function = stranger = object()  # type: ignore[attr-defined]
    fi_shim.deactivate()
    assert holder.function is stranger, "what somebody bound since is theirs"
    assert fi_shim.status()["early_names"] == {"repointed": 0, "names": []}


def script_a_name_bound_while_active_is_given_back() -> None:
    import fi_shim

    importlib.import_module("flashinfer.comm")
    world = World()
    step_engine(world)
    held = world.engine.create
    assert held.__fi_shim__ == "creation"
    assert fi_shim.status()["early_names"]["repointed"] == 0
    fi_shim.deactivate()
    assert world.engine.create is held.__wrapped__


def main() -> None:
    every, *engines = sys.argv[1:]
    import_aids()
    importlib.import_module("flashinfer")
    for name in [name for name in sys.modules if name.startswith("flashinfer.comm")]:
        del sys.modules[name]
    for name, folder in zip(("vllm", "sglang"), engines, strict=True):
        load(name, folder)
    assert "fi_shim" not in sys.modules
    named = [script_what_else_is_bound_stays, script_a_name_bound_while_active_is_given_back]
    jobs = [(run_script, (script,)) for script in scripts(int(every))] + [(function, ()) for function in named]
    failures = [text for function, arguments in jobs if (text := in_child(function, *arguments))]
    print(json.dumps({"scripts": len(jobs), "failures": failures}))


main()
