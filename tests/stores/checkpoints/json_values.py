"""JSON values of all kinds, for tests that take any."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16) | st.sampled_from(["", "a", "/~"])
names = st.sampled_from(["a", "b", "~", "/", "~1", "", "0", "-", "é"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names, inner, max_size=4), max_leaves=25
)


def text(value: Any) -> str:
    """Tells true from 1, but not 1.0 from 1: JSON has one kind of number."""
    whole = json.loads(json.dumps(value), parse_float=lambda digits: int(f) if (f := float(digits)) == int(f) else f)
    return json.dumps(whole, sort_keys=True)
