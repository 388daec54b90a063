"""Import FlashInfer once, then fork a process for each program that is asked for: nursery.py SOCKET.

A message is a program, its arguments and its environment in JSON, with descriptors for its standard streams; the answer is its pid.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import traceback

from fi_shim.testing import import_aids

import_aids.install()

import flashinfer.comm  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401


def live(order: dict[str, object], streams: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream, target in zip(streams, range(3), strict=True):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv = order["command"]
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001  (whatever it is, the child ends here)
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


signal.signal(signal.SIGCHLD, signal.SIG_IGN)
connection = socket.socket(fileno=int(sys.argv[1]))
connection.send(b"ready")
while True:
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if not message:
        break
    child = os.fork()
    if child == 0:
        connection.close()
        live(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(str(child).encode())
