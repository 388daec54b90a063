"""The size table, written down a second time: what each FlashInfer release asks for."""

from __future__ import annotations

from packaging.version import Version

MIB = 1 << 20
MAX_COMM = 2145386496


def up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def trtllm(
    version: str, world_size: int, tokens: int, hidden: int, element: int, *, g: int, m: int, pad: int, confidential: bool
) -> list[tuple[str, int, int]]:
    release = Version(version)
    n = world_size * tokens * hidden
    buffer = n * (element if release >= Version("0.7.2") else 2)
    sizes = [buffer, 1024 * world_size, 3 * min(n * element, MAX_COMM)]
    if release < Version("0.6.10"):
        return [("cuMemCreate", up(size, 2 * MIB), up(up(up(size, 2 * MIB) + 2048, g), m)) for size in sizes]
    sizes = [up(size, 16) for size in sizes]
    if release < Version("0.6.15") or (confidential and release >= Version("0.6.16")):
        return [("symm_mem", size, up(size + pad, g)) for size in sizes]
    return [("cuMemCreate", size, up(size + 2048, g)) for size in sizes]


def mnnvl(
    version: str, world_size: int, tokens: int, hidden: int, element: int, *, g: int, m: int, pad: int, oneshot: bool
) -> list[tuple[str, int, int]]:
    release = Version(version)
    per_token = world_size * element * hidden
    size = max(min(2**20 // per_token, tokens) * per_token, 2 * up(tokens, world_size) * hidden * element)
    if oneshot:
        size = tokens * per_token
    if release >= Version("0.6.18"):
        size = up(size, 32)
    if Version("0.6.10") <= release < Version("0.6.15"):
        size = 3 * size // 4 * 4
        return [("symm_mem", size, up(up(size, 16) + pad, g))]
    return [("cuMemCreate", 3 * size, up(up(3 * size + 2048, g), m))]
