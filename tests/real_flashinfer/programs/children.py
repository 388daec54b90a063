"""An engine's main script that starts one child of each kind, each of which imports FlashInfer. Argument: `guarded`, or nothing.

`guarded`: the shim is imported under the guard below, which children do not pass, with settings of its own. Prints what each child saw.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from fi_shim_free import import_aids  # noqa: E402


def seen() -> Any:
    """Whether FlashInfer is patched here, by which route and with which limit."""
    import_aids()
    from flashinfer.comm import allreduce

    patched = getattr(vars(allreduce.TRTLLMAllReduceFusionWorkspace)["__init__"], "__fi_shim__", None)
    package = sys.modules.get("fi_shim")
    if package is None:
        return [patched]
    status = package.status()
    return [patched, status["active"], status["route"], status["settings"]["vote_timeout"]["value"]]


def child(pipe: Any) -> None:
    pipe.send(seen())


def by_multiprocessing(method: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sending,))
    process.start()
    sending.close()
    answer = receiving.recv()
    process.join()
    return answer


def main() -> None:
    if sys.argv[1:] == ["guarded"]:
        import fi_shim
        from fi_shim.settings import Settings

        fi_shim.activate(Settings(vote_timeout=7.0))
    result = {method: by_multiprocessing(method) for method in ("spawn", "forkserver")}
    if sys.argv[1:] == ["guarded"]:
        result["fork"] = by_multiprocessing("fork")
    else:
        code = "import children, json; print(json.dumps(children.seen()))"
        done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        result["subprocess"] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
