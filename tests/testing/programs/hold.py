"""Take memory, say so, and keep it until killed or told to go: hold.py MIB [SOCKET to send a descriptor over]."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from fi_shim.testing import simulation

sys.path.insert(0, str(Path(__file__).parents[1]))
from simulated import MIB, code, posix, properties

simulation.activate(os.environ)
cuda = simulation.required().driver
cuda.process.use_device(0)
answer = cuda.cuMemCreate(int(sys.argv[1]) * MIB, properties(), 0)
print(code(answer), flush=True)
if len(sys.argv) > 2:
    descriptor = cuda.cuMemExportToShareableHandle(answer[1], posix(), 0)[1]
    with socket.socket(fileno=int(sys.argv[2])) as connection:
        socket.send_fds(connection, [b"."], [descriptor])
    os.close(descriptor)
sys.stdin.readline()
