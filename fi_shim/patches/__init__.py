"""The patches, one file each. PATCHES lists them in the order in which they are applied."""

from __future__ import annotations

from typing import Final

from fi_shim.engines import sglang
from fi_shim.patches import creation, cutedsl, validator

PATCHES: Final = (creation.PATCH, validator.PATCH, cutedsl.PATCH, *sglang.PATCHES)
