"""What axe-core finds in the page that a browser shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .chromium import FOLDER

if TYPE_CHECKING:
    from .chromium import Browser

GRAVE = ("serious", "critical")
EVERY = ("minor", "moderate", *GRAVE)


def serious(browser: Browser, impacts: tuple[str, ...] = GRAVE) -> list[str]:
    """The grave findings, or those of other `impacts`, each with the element it is about."""
    source = (FOLDER / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    run = "axe.run(document, { resultTypes: ['violations'] }).then(found => JSON.stringify(found.violations))"
    found = json.loads(browser.page(f"(async () => {{ if (!window.axe) {{ {source}\n }} return {run}; }})()"))
    return [
        f"{each['id']}: {node['html'][:160]}" for each in found if each["impact"] in impacts for node in each["nodes"]
    ]
