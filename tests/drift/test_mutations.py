"""One change to a release's source: those that matter are found and named, those that do not are not."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import trees

from fi_shim.compatibility import load_release
from fi_shim.drift.verify import as_dict, as_text, verify

if TYPE_CHECKING:
    from fi_shim.drift.verify import Report

pytestmark = pytest.mark.flashinfer

OLD, SYMMETRIC, NEW = "0.6.9", "0.6.12", "0.7.4"
CREATE = "trtllm_ar.trtllm_create_ipc_workspace_for_all_reduce_fusion"
CHECK = "trtllm_ar.check_trtllm_allreduce_fusion_workspace_metadata"
VALIDATOR = "allreduce.TRTLLMAllReduceFusionWorkspace.is_buffer_size_sufficient"

# release, file, what is replaced, by what, the function that must be named
HARMFUL = {
    "signal pad": (NEW, "comm/mnnvl.py", r"^SIGNAL_PAD_SIZE = 2048", "SIGNAL_PAD_SIZE = 4096", "mnnvl.SIGNAL_PAD_SIZE"),
    "signal pad, old": (OLD, "comm/mnnvl.py", r"^SIGNAL_PAD_SIZE = 2048", "SIGNAL_PAD_SIZE = 4096", "mnnvl.SIGNAL_PAD_SIZE"),
    "alignment": (NEW, "comm/trtllm_ar.py", r"aligned_size = round_up\(size, 16\)", "aligned_size = round_up(size, 128)", CREATE),
    "alignment, symmetric": (
        SYMMETRIC, "comm/trtllm_ar.py", r"(_reduce_fusion\(.*?)round_up\(size, 16\)", r"\1round_up(size, 128)", CREATE,
    ),
    "flags": (NEW, "comm/trtllm_ar.py", r"^BarrierFlagCount = 256", "BarrierFlagCount = 512", "trtllm_ar.BarrierFlagCount"),
    "double buffer": (NEW, "comm/trtllm_ar.py", r"lamport_comm_size \* 3", "lamport_comm_size * 2", CREATE),
    "double buffer, mnnvl": (
        NEW, "comm/trtllm_mnnvl_ar.py", "NUM_LAMPORT_BUFFERS = 3", "NUM_LAMPORT_BUFFERS = 2",
        "trtllm_mnnvl_ar.MNNVLAllReduceFusionWorkspace.NUM_LAMPORT_BUFFERS",
    ),
    "cap": (NEW, "comm/trtllm_ar.py", r"^MAX_COMM_SIZE = 2147483647", "MAX_COMM_SIZE = 1147483647", "trtllm_ar.MAX_COMM_SIZE"),
    "fourth buffer": (
        NEW, "comm/trtllm_ar.py", r"\(lamport_buffer_size, lamport_buffer_dtype\),",
        "(lamport_buffer_size, lamport_buffer_dtype), (flag_size, torch.int32),", CREATE,
    ),
    "reordered": (
        NEW, "comm/trtllm_ar.py", r"\(buffer_size, torch.float32\),\s+\(flag_size, torch.int32\),",
        "(flag_size, torch.int32), (buffer_size, torch.float32),", CREATE,
    ),
    "multicast": (NEW, "comm/trtllm_ar.py", "enable_multicast=False", "enable_multicast=True", CREATE),
    "no multicast": (NEW, "comm/mnnvl.py", r"self._enable_multicast = enable_multicast", "self._enable_multicast = False", "mnnvl.SymmDeviceMemory.__init__"),
    "element size": (NEW, "comm/trtllm_ar.py", r"hidden_dim \* \(4 if use_fp32_lamport else 2\)", "hidden_dim * 2", CREATE),
    "element size, old": (OLD, "comm/trtllm_ar.py", r"buffer_size = tp_size \* max_token_num \* hidden_dim \* 2", "buffer_size = tp_size * max_token_num * hidden_dim * 4", CREATE),
    "tokens, not elements": (NEW, "comm/trtllm_ar.py", r"token_num \* hidden_dim > [^:]*:", 'token_num > metadata["max_token_num"]:', CHECK),
    "fp32 accepted": (NEW, "comm/trtllm_ar.py", r'if (metadata\["use_fp32_lamport"\] != [^:]*):', "if False:", CHECK),
    "validator says yes": (NEW, "comm/allreduce.py", r"e\)\s+return False", "e)\n            return True", VALIDATOR),
    "metadata renamed": (NEW, "comm/trtllm_ar.py", r'"lamport_buffer_size": lamport', '"lamport_bytes": lamport', CREATE),
    "metadata unplanned renamed": (NEW, "comm/trtllm_ar.py", r'"tp_rank": tp_rank,', '"rank": tp_rank,', CREATE),
    "function renamed": (
        NEW, "comm/trtllm_ar.py", "def trtllm_destroy_ipc_workspace_for_all_reduce_fusion", "def trtllm_free_workspace",
        "trtllm_ar.trtllm_destroy_ipc_workspace_for_all_reduce_fusion",
    ),
    "entry renamed": (NEW, "comm/allreduce.py", "def create_allreduce_fusion_workspace", "def make_workspace", "allreduce.create_allreduce_fusion_workspace"),
    "method renamed": (
        SYMMETRIC, "comm/trtllm_mnnvl_ar.py", "def get_required_buffer_size_bytes", "def required_bytes",
        "trtllm_mnnvl_ar.MNNVLAllReduceFusionWorkspace.get_required_buffer_size_bytes",
    ),
    "parameter": (NEW, "comm/trtllm_ar.py", r"use_symm_dev_mem: bool = False,", "use_symm_dev_mem: bool = False,\n    pages: int = 0,", CREATE),
    "parameter of memory": (
        NEW, "comm/mnnvl.py", r"allocate_signal_pads: bool = True,", "allocate_signal_pads: bool = True, huge: bool = False,",
        "mnnvl.SymmDeviceMemory.__init__",
    ),
    "parameter of the validator": (
        NEW, "comm/allreduce.py", r"use_oneshot: Optional\[Any\] = None,\n    \) -> bool:", "use_oneshot=None, strict=False,\n    ) -> bool:", VALIDATOR,
    ),
    "round_up": (NEW, "utils.py", r"return ceil_div\(x, y\) \* y", "return ceil_div(x, y) * y + y", "utils.round_up"),
    "confidential computing": (NEW, "utils.py", r'return forced == "1"', "return False", "utils.is_confidential_compute"),
    "default of the legacy creator": (NEW, "comm/trtllm_ar.py", "use_symm_dev_mem: bool = False,", "use_symm_dev_mem: bool = True,", CREATE),
    "one-shot threshold": (
        SYMMETRIC, "comm/trtllm_mnnvl_ar.py", r"^MNNVL_ONE_SHOT_THRESHOLD = 64", "MNNVL_ONE_SHOT_THRESHOLD = 128",
        "trtllm_mnnvl_ar.MNNVL_ONE_SHOT_THRESHOLD",
    ),
    "cudaMalloc": (
        NEW, "comm/trtllm_ar.py", r"cudart.cudaMalloc\(5 \* 4\)", "cudart.cudaMalloc(5 << 20)", CREATE,
    ),
    "device": (OLD, "comm/trtllm_ar.py", r"torch.cuda.current_device\(\),", "tp_rank,", CREATE),
}  # fmt: skip

HARMLESS = {
    "log text": (NEW, "comm/trtllm_ar.py", "warning: lamport_comm_size ", "the size "),
    "docstring": (NEW, "comm/trtllm_ar.py", '(-> Union.*?:\n    )"""', r'\1"""Another text.\n'),
    "annotation": (NEW, "comm/trtllm_ar.py", r"^    symm_refs: list\[object\] = \[\]", '    symm_refs: "list[tuple[object, ...]]" = []'),
    "comment": (NEW, "comm/mnnvl.py", r"^SIGNAL_PAD_SIZE = 2048", "# the pad\nSIGNAL_PAD_SIZE  =  2048"),
    "local variable": (NEW, "comm/trtllm_ar.py", r"\baligned_size\b", "rounded"),
    "local variable, symmetric": (SYMMETRIC, "comm/trtllm_mnnvl_ar.py", r"\brequested_workspace_size\b", "wanted"),
    "new helper": (
        NEW,
        "comm/mnnvl.py",
        r"    def get_rank\(self\)",
        "    def get_pages(self) -> int:\n        return 0\n\n    def get_rank(self)",
    ),
    "new import": (
        NEW,
        "comm/trtllm_ar.py",
        r"from \.\.utils import register_custom_op, round_up",
        "from ..utils import register_custom_op\nfrom .mnnvl import round_up",
    ),
    "unrelated function": (NEW, "utils.py", r"^def ceil_div", "def unrelated():\n    return 1\n\n\ndef ceil_div"),
}


@pytest.mark.parametrize("case", HARMFUL)
def test_a_change_of_behaviour_is_found_and_named(case: str, tmp_path: Path) -> None:
    release, file, old, new, function = HARMFUL[case]
    trees.edit(trees.copy(release, tmp_path), file, old, new)
    report = verify(tmp_path)
    assert report.drifted, as_text(report)
    assert [change.name for change in report.blame if change.what != "new"] == [
        f"flashinfer.{'' if function.startswith('utils') else 'comm.'}{function}"
    ]
    location = report.blame[0]
    assert location.file == f"flashinfer/{file}"
    assert location.line >= 1
    assert location.name in as_text(report)


@pytest.mark.parametrize("case", HARMLESS)
def test_a_change_without_effect_is_not_drift(case: str, tmp_path: Path) -> None:
    release, file, old, new = HARMLESS[case]
    trees.edit(trees.copy(release, tmp_path), file, old, new, everywhere="variable" in case)
    report = verify(tmp_path)
    assert not report.drifted, as_text(report)
    assert report.identity.how == ("changed" if case.startswith(("local", "new")) else "functions")
    assert report.dry_run == ("equal" if case.startswith(("local", "new")) else "not needed")


def test_reformatting_a_whole_tree_is_not_drift(tmp_path: Path) -> None:
    trees.copy(NEW, tmp_path)
    for path in (tmp_path / "flashinfer").rglob("*.py"):
        path.write_text(ast.unparse(ast.parse(path.read_text(encoding="utf-8"))), encoding="utf-8")
    report = verify(tmp_path)
    assert (report.identity.how, report.drifted) == ("functions", False)


@pytest.mark.parametrize("label", ["0.6.1", "0.9.0", "0.7.5.dev20261101+cu130", "unheard-of"])
def test_a_wrong_label_is_seen_through(label: str, tmp_path: Path) -> None:
    trees.label(trees.copy("0.7.2", tmp_path), label)
    report = verify(tmp_path)
    assert (report.identity.label, report.identity.release.version) == (label, "0.7.2")
    assert (report.identity.how, report.drifted) == ("files", False)


def test_bytes_are_told_for_three_shapes(tmp_path: Path) -> None:
    trees.edit(trees.copy(NEW, tmp_path), "comm/trtllm_ar.py", r"lamport_comm_size \* 3", "lamport_comm_size * 2")
    report = verify(tmp_path)
    first = report.differences[0]
    assert first.request == {"world_size": 2, "max_token_num": 2048, "hidden_dim": 4096, "dtype": "bfloat16"}
    assert (first.allocated_more, first.requested_more) == (-(32 << 20), -(32 << 20))
    assert len([each for each in report.differences if each.entry == "trtllm" and not each.request.get("confidential_computing")]) == 3
    assert "-33,554,432 bytes" in as_text(report)
    assert as_dict(report)["differences"][0]["allocated_more"] == -(32 << 20)


def test_code_that_cannot_run_is_drift_with_its_place(tmp_path: Path) -> None:
    trees.edit(
        trees.copy(NEW, tmp_path),
        "comm/trtllm_ar.py",
        r"lamport_buffer_size = lamport_comm_size \* 3",
        "lamport_buffer_size = undefined * 3",
    )
    report: Report = verify(tmp_path)
    assert report.drifted
    assert "NameError" in report.differences[0].detail
    assert "flashinfer/comm/trtllm_ar.py:" in report.differences[0].detail


@pytest.mark.parametrize("version", ["0.6.0", "0.6.12", "0.7.4"])
def test_a_dry_run_of_known_code_equals_its_table(version: str, tmp_path: Path) -> None:
    report = verify(trees.copy(version, tmp_path), always_run=True)
    assert (report.dry_run, report.drifted, report.regimes) == ("equal", False, dict(load_release(version).regimes))
