"""The Kernel panel of the inspector in a real browser, over a kernel with real processes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from defserve import Server
from defserve.errors import DefserveError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.kernels import KernelOverSocket
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.kernel import Kernel
from defserve.serve.lifespans import connect_in_memory
from tests.kernel.governance.governing import entry as governed_entry
from tests.kernel.governance.governing import tool
from tests.kernel.running import entry

from .accessibility import serious
from .inspecting import FITS, InspectorBeside, inspector_of, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ROWS = "[...document.querySelectorAll('.kt tbody tr')]"


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where control sockets are. It is short, because the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def ten_minutes(kernel: Kernel) -> None:
    """Calls of the last ten minutes, with times that are always the same."""
    now = time.perf_counter()
    for id, ms in (("files", 2.0), ("git", 9.0)):
        backend = kernel.members[id].backend
        assert backend is not None
        for number in range(240):
            took = ms * (1 + 0.4 * math.sin(number / 9) + 0.3 * math.sin(number * number))
            ended = now - 600 + number * 2.5
            backend.room.times.append((ended - took / 1000, ended, id == "git" and number in (100, 101)))
        backend.room.total += 240


@contextmanager
def kernel_beside(folder: Path, *, control: bool, era: str = "") -> Generator[tuple[InspectorBeside, Kernel]]:
    """An inspector of a kernel: two servers that work, one whose tool will change, one that fails, one that waits."""
    tools, path = folder / "tools.json", folder / "mgp.toml"
    tools.write_text(json.dumps([tool("find", "Find pages.", "words")]))
    path.write_text(
        '[kernel]\nname = "house kernel"\non_change = "hold"\n'
        + governed_entry(tools, id="search", prefix='prefix = "search"')
        + entry("files", "--root", "/srv/files")
        + entry("git", "--quiet")
        + entry("printer", "--refuse", "--usb", mgp="max_restarts = 1\n")
        + entry("time", more='start = "lazy"')
    )
    kernel = Kernel(load_kernel_config(path))
    operated = KernelOverSocket(path, os.getpid()) if control else None
    target = InspectionTarget(
        "mgp.toml", ("mgp.toml",), lambda: connect_in_memory(kernel.server.composition), era, kernel=operated
    )
    with inspector_of(target) as inspector:
        yield inspector, kernel


def state(name: str, words: str) -> str:
    """Whether the row of a server says so."""
    return f"{ROWS}.some(row => row.cells[0].innerText === {name!r} && row.cells[1].innerText === {words!r})"


def busy(inspector: InspectorBeside) -> None:
    """Calls that end well, and some that fail."""

    async def work(inspection: Inspection) -> None:
        client = await inspection.client()
        for number in range(12):
            await client.call("files_add", a=number, b=1)
            await client.call("git_add", a=number, b=2)
        try:
            await client.call("git_add", a=1)
        except DefserveError:
            pass

    inspector.run(work)


@pytest.mark.pictures
def test_an_operator_watches_and_operates_a_kernel(browser: Browser, tmp_path: Path):
    with kernel_beside(tmp_path, control=True) as (inspector, kernel):
        browser.look(1440, 900)
        browser.open(inspector.url + "#kernel")
        for name, words in (("files", "connected"), ("search", "connected"), ("printer", "error")):
            assert browser.page(state(name, words)), name
        assert browser.page(f"{ROWS}.map(row => row.cells[0].innerText).join() === 'files,git,printer,search,time'")
        inspector.run(lambda _: asyncio.to_thread(ten_minutes, kernel))
        busy(inspector)
        assert browser.page(f"{ROWS}[0].querySelector('.spark') && {ROWS}[0].cells[6].innerText !== '–'")
        (tmp_path / "new").write_text(json.dumps([tool("find", "Find pages, and send them to me.", "words", "to")]))
        os.replace(tmp_path / "new", tmp_path / "tools.json")
        assert browser.page(state("search", "tools held"))
        # By keys alone: down to a server, into its drawer, and back.
        browser.page("document.querySelector('.kt').focus() || true")
        browser.key("Home", "j", "Enter")
        assert browser.page("location.hash === '#kernel/git' && !!document.querySelector('.klog .kline')")
        assert browser.page("document.querySelector('.klog').innerText.includes('started with --quiet')")
        browser.key("Escape")
        assert browser.page("!document.querySelector('.kdrawer') && document.activeElement.className === 'kt'")
        browser.key("/")
        browser.type("print")
        assert browser.page(f"{ROWS}.length === 1")
        browser.key("Escape", "Escape")
        # By mouse: stop a server, and start it again.
        browser.press(".kt tbody tr:nth-child(2)")
        stop = "[...document.querySelectorAll('.kdrawer .head button')].find(each => each.innerText === 'Stop')"
        assert browser.page(f"!!{stop}")
        browser.page(f"{stop}.click() || true")
        assert browser.page(state("git", "stopped"))
        browser.press(".kt tbody tr:nth-child(2) td:last-child button")
        assert browser.page(state("git", "connected"))
        # A server that cannot be started says why, where the button is.
        browser.press(".kt tbody tr:nth-child(3)")
        assert browser.page("document.querySelector('.kdrawer')?.innerText.includes('cannot start with')")
        for look in looks(browser, inspector.url + "#kernel/search", f"{ROWS}.length === 5"):
            assert browser.page("document.querySelector('.kdiff')?.innerText.includes('send them to me')")
            look.is_fine()
            look.picture("kernel")
            browser.page("(location.hash = '#kernel') && true")
            assert browser.page(f"{ROWS}.length === 5 && !document.querySelector('.kdrawer')")
            look.is_fine()
        # What a probe says of a server that is well needs no look.
        for member in kernel.members.values():
            member.health = "answers"
        browser.open(inspector.url + "#kernel/search")
        assert browser.page("!!document.querySelector('.kheld button')")
        browser.press(".kheld button")
        assert browser.page(state("search", "connected"))
        assert browser.complaints() == []
        assert [each for each in browser.asked() if not each.startswith(inspector.origin)] == []
        browser.open("about:blank")


@pytest.mark.slow
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_kernel_at_an_address_is_shown_over_mgp(browser: Browser, tmp_path: Path, era: str):
    with kernel_beside(tmp_path, control=False, era=era) as (inspector, _):
        browser.look(1440, 900)
        browser.open(inspector.url + "#kernel")
        assert browser.page(state("files", "connected"))
        assert browser.page("document.querySelector('.kbody').innerText.includes('control socket')")
        assert serious(browser) == []
        assert browser.complaints() == []
        browser.open("about:blank")


@pytest.mark.slow
def test_a_server_that_is_no_kernel_says_how_to_start_one(browser: Browser):
    with inspector_of(target_of(Server("plain"))) as inspector:
        browser.look(360, 780)
        browser.open(inspector.url + "#kernel")
        assert browser.page("document.querySelector('.empty')?.innerText.includes('defserve kernel --config')")
        assert browser.page(FITS)
        assert serious(browser) == []
        browser.open("about:blank")
