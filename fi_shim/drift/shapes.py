"""The shapes that tell the regimes apart, and those that witness a release."""

from __future__ import annotations

import random
from typing import Any, Final

MIB: Final = 1 << 20
FURTHER: Final = 60  # shapes beyond the witnesses; a millisecond each

# world size, tokens, hidden, dtype: the sizes that engines ask for, rounding edges (the 2048-byte pad at 2 MiB and at 512 MiB),
# the lamport cap, odd shapes, world sizes 1 to 16.
TRTLLM: Final[tuple[tuple[int, int, int, str], ...]] = (
    (2, 2048, 4096, "bfloat16"), (2, 2048, 4096, "float32"), (4, 2048, 2880, "bfloat16"), (8, 2048, 12288, "bfloat16"),
    (8, 2048, 12288, "float32"), (16, 8192, 16384, "bfloat16"), (16, 8192, 16384, "float32"), (1, 1023, 1024, "float16"),
    (1, 1, 1047553, "float16"), (3, 5, 7, "float16"), (16, 1, 64, "float32"), (2, 1, 178956288, "float16"),
)  # fmt: skip
MNNVL: Final[tuple[tuple[int, int, int, str], ...]] = (
    (2, 2048, 4096, "bfloat16"), (2, 2048, 4096, "float32"), (4, 2048, 2880, "bfloat16"), (8, 2048, 8192, "bfloat16"),
    (8, 13, 4096, "bfloat16"), (16, 1, 64, "float32"), (1, 87381, 512, "bfloat16"), (1, 87382, 512, "bfloat16"),
    (3, 5, 7, "float16"), (1, 1, 1, "float8_e4m3fn"), (16, 8192, 4096, "float32"), (7, 100, 333, "float32"),
    (16, 40, 4096, "bfloat16"),  # one-shot at its threshold is more than two-shot
)  # fmt: skip
ONESHOT: Final[tuple[tuple[int, int, int, str], ...]] = ((8, 2048, 4096, "bfloat16"), (3, 5, 7, "float16"))
GRANULARITIES: Final = {"allocation_granularity": 4 * MIB, "multicast_granularity": 8 * MIB, "signal_pad_size": 9216}


def witness_requests(backend: str) -> list[dict[str, Any]]:
    """Arguments of `fi_shim.plan` (but backend and version) for the witnesses of a release."""
    shapes = TRTLLM if backend == "trtllm" else MNNVL
    rows = [*map(_request, shapes), {**_request(shapes[0]), **GRANULARITIES}]
    if backend == "mnnvl":
        rows += [{**_request(shape), "force_oneshot_support": True} for shape in ONESHOT]
    return rows


def further_requests(backend: str) -> list[dict[str, Any]]:
    """More of them, for comparing and not for a table: any shape, with the edges of the pad, the cap and the thresholds in reach."""
    draw = random.Random(backend)  # noqa: S311  # always the same shapes
    rows = []
    for _ in range(FURTHER):
        edge = (draw.randint(1, 300) * 2 * MIB - 2048) // 2 + draw.randint(-9, 9)
        rows.append(
            {
                "world_size": draw.randint(1, 16),
                "max_token_num": draw.choice([1, draw.randint(1, 64), draw.randint(1, 16384)]),
                "hidden_dim": draw.choice([edge, draw.randint(1, 20000), 2880, 4096, 7168, 8192, 16384]),
                "dtype": draw.choice(["bfloat16", "float16", "float32"]),
                "allocation_granularity": draw.choice([2, 4, 64]) * MIB,
                "multicast_granularity": draw.choice([2, 32, 512]) * MIB,
                "signal_pad_size": draw.choice([2048, 4096, 9216]),
                **({"force_oneshot_support": draw.random() < 0.5} if backend == "mnnvl" else {}),  # noqa: PLR2004
            }
        )
    return rows


def confidential_requests(backend: str) -> list[dict[str, Any]]:
    """The same under confidential computing."""
    rows = [_request(TRTLLM[1]), _request(TRTLLM[4]), _request(TRTLLM[9]), {**_request(TRTLLM[0]), **GRANULARITIES}]
    if backend == "mnnvl":
        rows = [_request(MNNVL[0])]
    return [{**row, "confidential_computing": True} for row in rows]


def legacy_requests() -> list[dict[str, Any]]:
    """For the legacy creator with its defaults, which knows no dtype but float16 and float32."""
    return [_request(TRTLLM[1]), _request(TRTLLM[7]), _request(TRTLLM[9]), {**_request(TRTLLM[1]), **GRANULARITIES}]


def _request(shape: tuple[int, int, int, str]) -> dict[str, Any]:
    return dict(zip(("world_size", "max_token_num", "hidden_dim", "dtype"), shape, strict=True))
