"""The rejecting path inside torch.compile(fullgraph=True): applied, no graph break, no recompiles of our making."""

from __future__ import annotations

import json
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402

import fi_shim  # noqa: E402
from fi_shim.testing.recording import created_alone  # noqa: E402


def main() -> None:
    with created_alone(backend="trtllm", world_size=4, max_token_num=2048, hidden_dim=64, dtype=torch.bfloat16) as (workspace, _):
        x = torch.ones(4, dtype=torch.bfloat16)
        many, one = CompileCounter(), CompileCounter()

        def step(x: Any, workspace: Any, tokens: int) -> Any:
            if workspace.is_buffer_size_sufficient(4, tokens, 64, x.dtype):
                return x + 1
            return x - 1

        for_many = torch.compile(step, backend=many, fullgraph=True)
        answers = {float(for_many(x, workspace, tokens)[0]) for tokens in range(3000, 3040)}
        torch._dynamo.reset()
        for_one = torch.compile(step, backend=one, fullgraph=True)
        answers |= {float(for_one(x, workspace, 5000)[0]) for _ in range(40)}
        counted = fi_shim.status()["suppressed"]["rejections"]
        step(x, workspace, 5000)
        counted_eagerly = fi_shim.status()["suppressed"]["rejections"]
        torch._dynamo.reset()
        fits = float(torch.compile(step, backend=CompileCounter(), fullgraph=True)(x, workspace, 100)[0])
    print(
        json.dumps(
            {
                "answers": sorted(answers), "fits": fits, "graphs_for_40_counts": many.frame_count, "graphs_for_40_repeats": one.frame_count,
                "counted_while_compiled": counted, "counted_eagerly": counted_eagerly,
            }
        )
    )  # fmt: skip


main()
