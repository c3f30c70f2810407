"""What authors import does not change unnoticed."""

from __future__ import annotations

from difflib import unified_diff
from importlib import import_module

import pytest

from tests.api.surface import MODULES, SNAPSHOT, surface
from tests.rows import for_each_row


def test_the_public_surface_is_that_of_the_snapshot():
    kept, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), surface().splitlines()
    changes = "\n".join(unified_diff(kept, found, "snapshot.txt", "the package", lineterm="", n=0))
    assert not changes, f"if this is meant, run `python -m tests.api` (see CONTRIBUTING.md)\n{changes}"


@for_each_row("module", MODULES)
def test_a_name_that_does_not_exist_is_refused_by_name(module: str):
    with pytest.raises(AttributeError, match=rf"module '{module}' has no attribute 'nothing'"):
        import_module(module).nothing  # noqa: B018
