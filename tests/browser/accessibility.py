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


# Controls that cannot be scrolled into the window, or that lie under something else, by their beginnings. While a
# dialog is open, only what is in it counts.
UNREACHABLE = """(() => {
  const top = document.querySelector('.scrim') ?? document;
  const hidden = each => {
    each.scrollIntoView({ block: 'center', inline: 'center' });
    const box = each.getBoundingClientRect();
    const [left, right] = [Math.max(box.left, 0), Math.min(box.right, innerWidth)];
    const [above, below] = [Math.max(box.top, 0), Math.min(box.bottom, innerHeight)];
    if (right - left < 4 || below - above < 4) return true;
    const hit = document.elementFromPoint((left + right) / 2, (above + below) / 2);
    return !hit || !(each.contains(hit) || hit.contains(each) || hit.closest('label')?.contains(each));
  };
  return [...top.querySelectorAll('a[href], button, input, select, textarea, summary')]
    .filter(each => each.checkVisibility({ visibilityProperty: true }) && !each.disabled && !each.closest('.vh, .skip'))
    .filter(each => !each.matches('.vh, .skip, [type=file]')).filter(hidden)
    .map(each => each.outerHTML.slice(0, 120)).join('\\n') || 'none';
})()"""
