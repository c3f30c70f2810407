"""Where things are: the repository, and what `make docs` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
SETTINGS: Final = ROOT / "zensical.toml"
THEME: Final = DOCS / "theme"

BUILD: Final = ROOT / "build" / "docs"
PAGES: Final = BUILD / "pages"
SITE: Final = BUILD / "site"
