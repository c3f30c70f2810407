from __future__ import annotations

from typing import Any

import pytest

from defserve.protocols.mcpl.policies import does_pattern_cover
from defserve.protocols.mcpl.vocabulary import (
    CAPABILITY_PATHS,
    MCPL_04,
    MCPL_05,
    USE_NAMES_BY_VERSION,
    find_mcpl_vocabulary,
)
from tests.protocols.mcpl import appendix_b, draft_05
from tests.rows import for_each_row

OLD_NAMES = appendix_b.FEATURE_SET["properties"]["uses"]["items"]["enum"]


@pytest.mark.req("MCPL-05", "MCPL-6.2")
def test_every_use_is_named_in_words_that_hosts_know():
    assert set(CAPABILITY_PATHS) == set(draft_05.PATHS) and len(CAPABILITY_PATHS) == 17
    for old, new in USE_NAMES_BY_VERSION.values():
        assert set(old) <= set(OLD_NAMES)
        assert set(new) <= set(draft_05.PATHS)


@for_each_row("name", OLD_NAMES)
def test_every_name_of_0_4_stays_itself(name: str):
    assert MCPL_04.translate_uses([name]) == [name]


@for_each_row("path", draft_05.PATHS)
def test_every_path_of_0_5_stays_itself(path: str):
    assert path in MCPL_05.translate_uses([path])


def test_every_gate_is_a_path():
    assert {path for paths in MCPL_05.gates.values() for path in paths} <= set(CAPABILITY_PATHS)


@for_each_row(
    ("version", "found"),
    [
        (None, MCPL_04),
        ("0.4", MCPL_04),
        ("0.0", MCPL_04),
        ("0.4.9", MCPL_04),
        ("0.5", MCPL_05),
        ("0.5.0-draft", MCPL_05),
        ("0.10", MCPL_05),
        ("0." + "9" * 5_000, MCPL_05),
        ("1.0", None),
        ("0.", None),
        ("0.x", None),
        ("", None),
        (0.5, None),
        (5, None),
        ([], None),
    ],
    ids=lambda value: str(value)[:20] if not hasattr(value, "version") else value.version,
)
def test_a_version_has_one_vocabulary(version: Any, found: Any):
    assert find_mcpl_vocabulary(version) is found


@pytest.mark.req("MCPL-05")
@for_each_row(
    ("pattern", "path", "is_covered"),
    [
        ("channels.*", "channels.publish", True),
        ("contextHooks.*", "contextHooks.beforeInference.observe", False),
        ("contextHooks.*.*", "contextHooks.beforeInference.observe", True),
        ("*", "tools", True),
        ("*", "channels.publish", False),
        ("channels", "channels.publish", False),
        ("channels.pub*", "channels.publish", False),
        ("", "tools", False),
        ("*.*", "tools", False),
        ("channels.publish.", "channels.publish", False),
    ],
)
def test_a_pattern_covers_whole_segments(pattern: str, path: str, is_covered: bool):
    assert does_pattern_cover(pattern, path) is is_covered
