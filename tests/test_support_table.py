from __future__ import annotations

import support_table


def test_the_readmes_support_table_is_that_of_the_tables() -> None:
    text = support_table.README.read_text(encoding="utf-8")
    assert support_table.with_table(text) == text
    assert "| 0.7.2 .. 0.7.2.post1 " in text
