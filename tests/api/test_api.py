"""What authors import does not change unnoticed."""

from __future__ import annotations

from difflib import unified_diff
from importlib import import_module

import pytest

from tests.api.surface import MODULES, SNAPSHOT, public_names, surface
from tests.rows import for_each_row


def test_the_public_surface_is_that_of_the_snapshot():
    kept, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), surface().splitlines()
    changes = "\n".join(unified_diff(kept, found, "snapshot.txt", "the package", lineterm="", n=0))
    assert not changes, f"if this is meant, run `python -m tests.api` (see CONTRIBUTING.md)\n{changes}"


@for_each_row("module", MODULES)
def test_a_name_that_does_not_exist_is_refused_by_name(module: str):
    with pytest.raises(AttributeError, match=rf"module '{module}' has no attribute 'nothing'"):
        import_module(module).nothing  # noqa: B018


def test_the_root_has_few_names():
    assert len(import_module("defserve").__all__) <= 45


def test_no_two_public_things_share_a_name():
    homes: dict[str, dict[int, str]] = {}
    for module in MODULES:
        for name in public_names(module):
            homes.setdefault(name, {})[id(getattr(import_module(module), name))] = module
    shared = {name: list(found.values()) for name, found in homes.items() if len(found) > 1}
    # Each guard has one, with the same meaning: `guard.shell.judge(…)`.
    assert set(shared) <= {"judge"}


@for_each_row("name", ["Principal", "Extension", "Channel", "States", "AuditLog", "Search", "CodeMode", "Participant"])
def test_a_name_that_is_elsewhere_says_where(name: str):
    with pytest.raises(ImportError, match=rf"defserve has no {name}: write from defserve\.\w+ import {name}") as raised:
        exec(f"from defserve import {name}")
    exec(str(raised.value).partition(": write ")[2])
