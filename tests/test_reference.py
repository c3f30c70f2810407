"""docs/reference.md is what the package says of itself."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

from tests import reference
from tests.rows import for_each_row


def test_the_page_is_up_to_date():
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "the package has changed; run: python -m tests.reference"


@for_each_row("module", reference.MODULES)
def test_every_public_name_is_in_one_group(module: str):
    listed = Counter(name for names in reference.names(module).values() for name in names)
    assert listed == Counter(getattr(import_module(module), "__all__", listed))
