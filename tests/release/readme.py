"""`python -m tests.release.readme OWNER/NAME TAG` makes the links of README.md absolute, before a release is built.

A package index shows the README outside of the repository, where relative links and pictures lead nowhere.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from .artifacts import ROOT

LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """The text with links to the files of a repository on GitHub, as they are at a tag."""

    def replace(link: re.Match[str]) -> str:
        path = ROOT / link["path"]
        if not path.exists():
            raise FileNotFoundError(f"there is a link to {link['path']}, which is not there")
        if link["picture"]:
            address = f"https://raw.githubusercontent.com/{repository}/{tag}/{link['path']}"
        else:
            kind = "tree" if path.is_dir() else "blob"
            address = f"https://github.com/{repository}/{kind}/{tag}/{link['path']}"
        return f"{link['picture']}[{link['text']}]({address}{link['anchor'] or ''})"

    return LINK.sub(replace, text)


def main(repository: str, tag: str) -> None:
    readme = ROOT / "README.md"
    readme.write_text(with_absolute_links(readme.read_text("utf-8"), repository, tag), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
