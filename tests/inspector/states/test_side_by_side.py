"""Two contents as lines side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.inspector.differences import MAX_ROWS, align_changed_lines
from tests.effort import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab\n", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON, JSON)
@settings(max_examples=examples(200))
def test_each_side_reads_as_its_own_content(before: Any, after: Any):
    rows = align_changed_lines(before, after)
    if any(isinstance(row, int) for row in rows):
        return  # something is left out
    pairs = [row[:2] for row in rows if not isinstance(row, int)]
    for side, content in ((0, before), (1, after)):
        text = "\n".join(pair[side] or "" for pair in pairs)
        assert not pairs or json.loads(text) == content


def test_equal_parts_are_opposite_each_other_and_long_ones_are_left_out():
    before = {"a": list(range(20)), "name": "fern", "wanted": 18}
    after = {"a": list(range(20)), "extra": True, "name": "fern", "wanted": 24}
    assert align_changed_lines(before, after) == [
        20,
        ("    18,", "    18,", False),
        ("    19", "    19", False),
        ("  ],", "  ],", False),
        (None, '  "extra": true,', True),
        ('  "name": "fern",', '  "name": "fern",', False),
        ('  "wanted": 18', '  "wanted": 24', True),
        ("}", "}", False),
    ]


def test_very_long_contents_are_told_only_in_part():
    rows = align_changed_lines({str(n): n for n in range(5_000)}, {str(n): n + 1 for n in range(5_000)})
    assert len(rows) <= MAX_ROWS + 2
    assert isinstance(rows[-1], int)
