"""What the validator must answer: for a workspace of 2048 tokens of 4096 elements on 2 ranks."""

from __future__ import annotations

from typing import Any, Final

# The shape of the first witness of backend trtllm.
_RANKS, _TOKENS, _HIDDEN = 2, 2048, 4096

_CASES: Final[tuple[tuple[bool, tuple[Any, ...], bool], ...]] = (
    (False, (_RANKS, _TOKENS, _HIDDEN, "bfloat16"), True),
    (False, (_RANKS, _TOKENS + 1, _HIDDEN, "bfloat16"), False),
    (False, (_RANKS, _TOKENS, _HIDDEN + 1, "float16"), False),
    (False, (_RANKS, _TOKENS * 2, _HIDDEN // 2, "bfloat16"), True),  # elements count, not tokens
    (False, (_RANKS, _TOKENS // 2, _HIDDEN * 2, "bfloat16"), True),
    (False, (_RANKS, _TOKENS * _HIDDEN, 1, "bfloat16"), True),
    (False, (_RANKS, 1, _TOKENS * _HIDDEN + 1, "bfloat16"), False),
    (False, (_RANKS, 1, 64, "float32"), False),
    (True, (_RANKS, _TOKENS, _HIDDEN, "float32"), True),
    (True, (_RANKS, _TOKENS + 1, _HIDDEN, "float32"), False),
    (True, (_RANKS, 1, 64, "bfloat16"), False),
    (False, (_RANKS * 2, 1, 64, "bfloat16"), False),
    (False, (_RANKS // 2, 1, 64, "bfloat16"), False),
    (False, (_RANKS, 0, 64, "bfloat16"), True),
    (False, (_RANKS, _TOKENS + 1, _HIDDEN, "bfloat16", True), False),
    (False, (_RANKS, _TOKENS, _HIDDEN, "bfloat16", False), True),
)
"""(fp32 mode of the workspace, arguments, answer)."""

QUESTIONS: Final = [[is_fp32, list(arguments)] for is_fp32, arguments, _ in _CASES]


def wrong_answers(answers: list[Any]) -> list[str]:
    """One line for each answer that is not as the patch `validator` assumes."""
    return [
        f"is_buffer_size_sufficient{arguments} with use_fp32_lamport={is_fp32} answers {answer}, {expected} was expected"
        for (is_fp32, arguments, expected), answer in zip(_CASES, answers, strict=False)
        if answer is not expected
    ]
