from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python's types")
sys.path.insert(0, str(Path(__file__).parent))
from simulated import MIB, access, code, driver, posix, properties, team, value

from fi_shim.testing.accounting import take_stock


def free(cuda: Any) -> int:
    return int(cuda.cuMemGetInfo()[1])


@pytest.mark.parametrize("death", [signal.SIGKILL, None])
def test_memory_is_everybodys_until_its_owner_dies(machine_folder: Path, child: Any, death: signal.Signals | None) -> None:
    cuda = driver(machine_folder)
    with child("hold.py", 40, stdin=-1) as process:
        assert process.stdout.readline().strip() == "CUDA_SUCCESS"
        assert free(cuda) == 24 * MIB
        assert code(cuda.cuMemCreate(26 * MIB, properties(), 0)) == "OUT_OF_MEMORY"
        with child("hold.py", 26, stdin=-1) as late:
            assert late.stdout.readline().strip() == "OUT_OF_MEMORY"
            late.stdin.close()
        if death:
            os.kill(process.pid, death)
        else:
            process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds no memory
        assert free(cuda) == 64 * MIB
    value(cuda.cuMemCreate(64 * MIB, properties(), 0))


def test_a_stopped_process_keeps_its_memory(machine_folder: Path, child: Any) -> None:
    cuda = driver(machine_folder)
    with child("hold.py", 40, stdin=-1) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        assert free(cuda) == 24 * MIB
        os.kill(process.pid, signal.SIGKILL)


def test_imported_memory_outlives_its_owner(machine_folder: Path, child: Any) -> None:
    cuda = driver(machine_folder)
    ours, theirs = socket.socketpair()
    with ours, child("hold.py", 40, theirs.fileno(), stdin=-1, pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        (descriptor,) = socket.recv_fds(ours, 1, 1)[1]
        process.kill()
        process.wait()
        assert free(cuda) == 24 * MIB  # the descriptor holds it
        handle = value(cuda.cuMemImportFromShareableHandle(descriptor, posix()))
        os.close(descriptor)
        address = int(value(cuda.cuMemAddressReserve(40 * MIB, 0, 0, 0)))
        value(cuda.cuMemMap(address, 40 * MIB, 0, handle, 0))
        value(cuda.cuMemRelease(handle))
        value(cuda.cuMemSetAccess(address, 40 * MIB, [access()], 1))
        value(cuda.cuMemsetD8(address, 0, 40 * MIB))
        assert free(cuda) == 24 * MIB
        value(cuda.cuMemUnmap(address, 40 * MIB))
        assert free(cuda) == 64 * MIB


def test_another_process_s_holdings_are_listed(machine_folder: Path, child: Any) -> None:
    cuda = driver(machine_folder)
    with child("hold.py", 40, stdin=-1) as process:
        process.stdout.readline()
        stock = take_stock(cuda.process.machine, all_processes=True)
        assert stock.bytes == {0: 40 * MIB}
        theirs = {memory.pid: memory for memory in stock.processes}[process.pid]
        assert [(held.size, held.handles, held.mappings) for held in theirs.allocations] == [(40 * MIB, 1, 0)]
        assert not take_stock(cuda.process.machine, all_processes=False)
        process.kill()


def test_a_multicast_object_waits_for_all_its_devices(machine_folder: Path, child: Any) -> None:
    cuda = driver(machine_folder)
    multicast = value(cuda.cuMulticastCreate(team(4 * MIB, 2)))
    value(cuda.cuMulticastAddDevice(multicast, 0))
    descriptor = value(cuda.cuMemExportToShareableHandle(multicast, posix(), 0))
    address = int(value(cuda.cuMemAddressReserve(4 * MIB, 4 * MIB, 0, 0)))
    ours, theirs = socket.socketpair()
    with ours, child("join.py", theirs.fileno(), stdin=-1, pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        socket.send_fds(ours, [b"."], [descriptor])
        assert process.stdout.readline().strip() == "imported"
        answers: list[str] = []
        waiting = threading.Thread(target=lambda: answers.append(code(cuda.cuMemMap(address, 4 * MIB, 0, multicast, 0))), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "joined"
        waiting.join(20)
        assert answers == ["CUDA_SUCCESS"]
        process.kill()
    os.close(descriptor)


def test_forked_children(child: Any, outcome: Any) -> None:
    assert json.loads(outcome(child("fork.py"))) == {
        "before": "CUDA_SUCCESS",
        "left by child": {},
        "after": "NOT_INITIALIZED",
        "release of the parent's": "NOT_INITIALIZED",
        "kept by parent": {"0": 4 * MIB},
    }


def test_a_writer_killed_in_the_middle_changes_nothing(machine_folder: Path) -> None:
    cuda = driver(machine_folder)
    value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    with (machine_folder / "journal").open("a") as journal:
        journal.write('["create",1,99,0,')
    value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    lines = (machine_folder / "journal").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines].count("create") == 2
    assert free(cuda) == 56 * MIB


def test_one_machine_has_one_set_of_devices(machine_folder: Path) -> None:
    driver(machine_folder, "2x64MiB")
    with pytest.raises(ValueError, match="FI_SHIM_SIMULATE_STATE"):
        driver(machine_folder, "2x64MiB;1=32MiB")


def test_a_call_is_quick(machine_folder: Path) -> None:
    cuda = driver(machine_folder)
    changing, asking = [], []
    for _ in range(200):
        started = time.perf_counter()
        value(cuda.cuMemRelease(value(cuda.cuMemCreate(2 * MIB, properties(), 0))))
        changing.append((time.perf_counter() - started) / 2)
        started = time.perf_counter()
        cuda.cuMemGetInfo()
        asking.append(time.perf_counter() - started)
    assert sorted(changing)[20] < 300e-6
    assert sorted(asking)[20] < 150e-6
