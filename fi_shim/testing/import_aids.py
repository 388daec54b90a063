"""What lets a FlashInfer release be imported on a machine without CUDA, its own code untouched.

Three obstacles: up to 0.6.12 the import demands a loaded libcudart; 0.6.16 to 0.6.16.post3 evaluate `array.array[int]` in an
annotation, which Python before 3.12 cannot; 0.6.10 to 0.6.13 import triton for a kernel that no workspace uses.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

LAZY_ANNOTATIONS: Final = 0x1000000  # CO_FUTURE_ANNOTATIONS, what `from __future__ import annotations` sets
FD_EXCHANGE: Final = "flashinfer.comm.fd_exchange"
TRITON_KERNEL: Final = "flashinfer.comm.all_gather_matmul.all_gather_matmul_triton"


class _LazyAnnotations(SourceFileLoader):
    """Compiles a module as if its first line were `from __future__ import annotations`."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = compile(self.get_data(path), path, "exec", flags=LAZY_ANNOTATIONS, dont_inherit=True)
        return code


class _NoTriton(Loader):
    """Makes the module of a triton kernel, without the kernel."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        def all_gather_matmul_triton(*_args: Any, **_kwargs: Any) -> None:
            raise ImportError("This kernel needs triton, which is not installed.")

        module.all_gather_matmul_triton = all_gather_matmul_triton  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    """Finds the two modules that need help, and only where they need it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname == TRITON_KERNEL and importlib.util.find_spec("triton") is None:
            return ModuleSpec(fullname, _NoTriton())
        if fullname == FD_EXCHANGE and sys.version_info < (3, 12):
            for folder in path or ():
                file = Path(folder, "fd_exchange.py")
                if file.is_file():
                    return importlib.util.spec_from_file_location(fullname, file, loader=_LazyAnnotations(fullname, str(file)))
        return None


_FINDER: Final = _Finder()


def install() -> None:
    """Help imports of FlashInfer from now on. May be called again."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    load_cuda_runtime()


def load_cuda_runtime() -> None:
    """Load the libcudart of an installed wheel, unless one is loaded.

    Raises:
        ImportError: there is none, and the installed FlashInfer cannot be imported without.
    """
    if "libcudart" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"):
        return
    for package in ("nvidia.cu13", "nvidia.cuda_runtime"):
        for folder in _folders(package):
            for file in sorted(Path(folder, "lib").glob("libcudart.so*")):
                ctypes.CDLL(str(file))
                return
    if _flashinfer_needs_cuda_runtime():
        raise ImportError("FlashInfer up to 0.6.12 cannot be imported without a libcudart: pip install nvidia-cuda-runtime")


def _flashinfer_needs_cuda_runtime() -> bool:
    from packaging.version import Version

    try:
        return Version(importlib.metadata.version("flashinfer-python")) < Version("0.6.13")
    except importlib.metadata.PackageNotFoundError:
        return False


def _folders(package: str) -> Sequence[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return ()
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()
