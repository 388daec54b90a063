"""Fork before and after CUDA is in use, and tell what each child could do."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from fi_shim import testing
from fi_shim.testing import simulation

sys.path.insert(0, str(Path(__file__).parents[1]))
from simulated import MIB, code, properties, value

warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads


def in_child(answer: str) -> str:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, code(eval(answer)).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as pipe:
        return pipe.read()


simulation.activate(os.environ)
cuda = simulation.required().driver
result = {"before": in_child("cuda.cuMemCreate(4 * MIB, properties(), 0)"), "left by child": testing.outstanding().bytes}
handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
result["after"] = in_child("cuda.cuMemCreate(4 * MIB, properties(), 0)")
result["release of the parent's"] = in_child("cuda.cuMemRelease(handle)")
result["kept by parent"] = testing.outstanding().bytes
print(json.dumps(result))
