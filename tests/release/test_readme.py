"""On a package index, every link and picture of the README leads somewhere."""

from __future__ import annotations

import re

import pytest

from .artifacts import ROOT
from .readme import with_absolute_links


def test_the_readme_of_a_release_has_absolute_links_only() -> None:
    text = with_absolute_links((ROOT / "README.md").read_text("utf-8"), "ada/defserve", "v1.2.3")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "](https://github.com/ada/defserve/blob/v1.2.3/docs/learn/tools.md)" in text
    assert "](https://github.com/ada/defserve/tree/v1.2.3/examples)" in text
    assert "](https://raw.githubusercontent.com/ada/defserve/v1.2.3/docs/pictures/inspector-tools-light.png)" in text


def test_nothing_else_changes() -> None:
    kept = "[a](https://example.com) [b](#b) `c`\n"
    assert with_absolute_links(kept, "ada/defserve", "v1.2.3") == kept
    assert with_absolute_links("[a](LICENSE#b)", "ada/x", "v1") == "[a](https://github.com/ada/x/blob/v1/LICENSE#b)"


def test_a_link_to_a_missing_file_stops_the_release() -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.md"):
        with_absolute_links("[a](docs/gone.md)", "ada/defserve", "v1.2.3")
