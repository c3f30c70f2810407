"""Every scene of the inspector for everybody: in each window and scheme, twice as large, and by the keyboard alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .accessibility import EVERY, UNREACHABLE, serious
from .scenes import STAGES, Scene, show

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WINDOWS = ((390, 844), (768, 1024), (1024, 768), (1440, 900))
SCHEMES = ("light", "dark")
FITS = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
THEME = "document.documentElement.dataset.theme"
# What Tab should come to: what a person can see and use, in the topmost layer, with one stop for a list or a group.
STOPS = """(() => {
  const top = document.querySelector('.scrim') ?? document;
  window.stops = new Set([...top.querySelectorAll(
    'a[href], button, input, select, textarea, iframe, [tabindex="0"]')].filter(each => each.tabIndex >= 0
      && !each.disabled && !each.closest('[inert]') && each.checkVisibility({ visibilityProperty: true })));
  window.unseen = [];
  document.addEventListener('focusin', ({ target }) => {
    window.stops.delete(target);
    const mark = [target, target.closest('.in, .drop'), target.querySelector('.on, .cur, [aria-selected=true]'),
      ...target.querySelectorAll('td')].filter(Boolean).map(each => getComputedStyle(each));
    if (!mark.some(each => each.outlineStyle !== 'none' || each.boxShadow !== 'none')) unseen.push(target.outerHTML);
  });
  document.activeElement?.blur();
  return window.stops.size + 1;
})()"""
LEFT = (
    "[...window.stops].filter(each => each.isConnected).map(each => each.outerHTML.slice(0, 120)).join('\\n') || 'none'"
)
UNSEEN = "window.unseen.map(each => each.slice(0, 120)).join('\\n') || 'none'"


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where control sockets are. It is short, because the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.mark.parametrize("stage", STAGES)
def test_it_can_be_read_in_every_window_and_scheme_and_twice_as_large(browser: Browser, tmp_path: Path, stage: str):
    problems = list[str]()
    with STAGES[stage].open(tmp_path) as url:
        for scene in STAGES[stage].scenes:
            browser.begin()
            show(browser, url, scene, *WINDOWS[0])
            problems += in_every_window(browser, scene)
            problems += twice_as_large(browser, scene)
            problems += [f"{scene.name}: {each}" for each in browser.complaints()]
        browser.open("about:blank")
    assert not problems, "\n".join(problems)


def in_every_window(browser: Browser, scene: Scene) -> list[str]:
    """What axe finds, and what does not fit."""
    problems = list[str]()
    for width, height in WINDOWS:
        for scheme in SCHEMES:
            browser.look(width, height, scheme)
            assert browser.page(f"{THEME} === {scheme!r} && innerWidth === {width}")
            about = f"{scene.name} at {width}, {scheme}"
            problems += [f"{about}: {each}" for each in serious(browser, EVERY)]
            if browser.page(f"{FITS} || 'no'") is not True:
                problems.append(f"{about}: it does not fit")
            if shots := os.environ.get("DEFSERVE_SHOTS"):
                browser.shot(Path(shots) / f"{scene.name}-{width}-{scheme}.png")
    return problems


def twice_as_large(browser: Browser, scene: Scene) -> list[str]:
    """What is too wide, and which controls a person cannot get at, with half of each window left."""
    problems = list[str]()
    for width, height in WINDOWS:
        browser.look(width // 2, height // 2)
        assert browser.page(f"innerWidth === {width // 2}")
        about = f"{scene.name} at {width // 2} × {height // 2}"
        if browser.page("document.documentElement.scrollWidth <= innerWidth || 'no'") is not True:
            problems.append(f"{about}: it is too wide")
        if (controls := browser.page(UNREACHABLE)) != "none":
            problems.append(f"{about}: {controls}")
        if shots := os.environ.get("DEFSERVE_SHOTS"):
            browser.shot(Path(shots) / f"{scene.name}-{width // 2}-zoom.png")
    return problems


@pytest.mark.parametrize("stage", STAGES)
def test_tab_comes_to_every_control_and_shows_where_it_is(browser: Browser, tmp_path: Path, stage: str):
    problems = list[str]()
    with STAGES[stage].open(tmp_path) as url:
        for scene in STAGES[stage].scenes:
            browser.begin()
            show(browser, url, scene, 1440, 900)
            for _ in range(browser.page(STOPS) + 5):
                browser.key("Tab")
            left, unseen = browser.page(LEFT), browser.page(UNSEEN)
            problems += [f"{scene.name} is not come to: {left}"] if left != "none" else []
            problems += [f"{scene.name} does not show its focus: {unseen}"] if unseen != "none" else []
        browser.open("about:blank")
    assert not problems, "\n".join(problems)
