"""The programs of docs/migration.md do the same in every framework; ours are run with the other pages."""

from __future__ import annotations

import re
import sys

import pytest

from tests import migration

SNIPPETS = migration.snippets()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: f"{snippet.package}-{snippet.section}")
def test_a_program_of_another_framework_does_what_the_page_says(
    snippet: migration.Snippet, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip(snippet.package, reason=f"{snippet.package} is not here: pip install {snippet.package}")
    monkeypatch.setitem(sys.modules, "snippet", None)
    assert migration.run(snippet).endswith(migration.expected(snippet))


def test_every_program_is_run():
    shown = re.findall(r"^```py$", migration.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(SNIPPETS) == len(shown)
    assert {snippet.package for snippet in SNIPPETS} == set(migration.PACKAGES)
    assert {snippet.section for snippet in SNIPPETS} == {*migration.STEPS, *migration.MADE}
