"""Import a multicast object from a descriptor and add device 1 when told to: join.py SOCKET."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from fi_shim.testing import simulation

sys.path.insert(0, str(Path(__file__).parents[1]))
from simulated import posix, value

simulation.activate(os.environ)
cuda = simulation.required().driver
with socket.socket(fileno=int(sys.argv[1])) as connection:
    (descriptor,) = socket.recv_fds(connection, 1, 1)[1]
multicast = value(cuda.cuMemImportFromShareableHandle(descriptor, posix()))
print("imported", flush=True)
sys.stdin.readline()
value(cuda.cuMulticastAddDevice(multicast, 1))
print("joined", flush=True)
sys.stdin.readline()
