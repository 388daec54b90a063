"""SGLang: the changes to its modules, in the order in which they are applied."""

from __future__ import annotations

from typing import Final

from fi_shim.engines import sglang_forward, sglang_fp32, sglang_preflight

PATCHES: Final = (sglang_forward.PATCH, sglang_preflight.PATCH, sglang_fp32.PATCH)
