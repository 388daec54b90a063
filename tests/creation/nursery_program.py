"""Import torch and FlashInfer once, then serve each connection to a socket by a fork of its own: nursery_program.py SOCKET [JOBS].

A fork is one rank: it puts on the environment it is told, switches fi_shim and the simulated devices on as `import fi_shim` does, and then
performs the functions of the module JOBS (`rank_jobs`) by name. Requests and answers are lines of JSON. Its main thread works; a request marked `aside` has a
thread of its own, so that a rank can be asked while it works. SIGUSR1 makes it write the stacks of all its threads.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, Final

assert os.environ["FI_SHIM"] == "0"  # nothing is patched before the fork

import fi_shim  # noqa: E402
from fi_shim import importing  # noqa: E402
from fi_shim.testing import import_aids, installation, simulation  # noqa: E402


def _give_simulation_a_finder_of_its_own() -> None:
    """A test may break fi_shim's finder; the devices must go on being there."""
    spec = importlib.util.spec_from_file_location("importing_of_the_simulation", importing.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    installation.PostImportFinder = copy.PostImportFinder  # type: ignore[misc]


_give_simulation_a_finder_of_its_own()
import_aids.install()

import fault_jobs  # noqa: E402
import flashinfer.comm  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401

JOBS: Final = importlib.import_module(sys.argv[2] if len(sys.argv) > 2 else "rank_jobs")
DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


def live(connection: socket.socket) -> None:
    """Be a rank until the connection ends."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lines = connection.makefile()
    order = json.loads(lines.readline())
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.environ.clear()
    os.environ.update(order["environ"])
    if order["active"]:
        fi_shim.activate()
    simulation.activate(os.environ)
    _serve(connection, lines)


def _job(name: str) -> Any:
    return getattr(JOBS, name, None) or getattr(fault_jobs, name)


def _serve(connection: socket.socket, lines: Any) -> None:
    lock, work = threading.Lock(), queue.SimpleQueue[Any]()

    def answer(number: int, request: dict[str, Any]) -> None:
        try:
            result = {"number": number, "value": _job(request["call"])(**request["keywords"])}
        except BaseException:  # noqa: BLE001  # the asker's test fails with it
            result = {"number": number, "error": traceback.format_exc()}
        result["at"] = time.monotonic()
        with lock:
            connection.sendall(json.dumps(result).encode() + b"\n")

    def listen() -> None:
        for number, line in enumerate(lines):
            request = json.loads(line)
            if request["aside"]:
                threading.Thread(target=answer, args=(number, request), daemon=True).start()
            else:
                work.put((number, request))
        os._exit(0)  # the test is over

    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=listen, daemon=True).start()
    while True:
        answer(*work.get())


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # or a rank that collects what a test left goes through all of torch each time
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        listener.settimeout(0.5)
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(None)
            if os.fork() == 0:
                listener.close()
                live(connection)
            connection.close()


if __name__ == "__main__":
    main()
