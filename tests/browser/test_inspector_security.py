"""The Security panel of the inspector in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from defserve.errors import DefserveError
from tests.inspector.guarded import audited, guarded, target

from .accessibility import serious
from .inspecting import TAKES_PICTURES, Calling, inspector_in, looks

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ROWS = "[...document.querySelectorAll('.sec-audit .vrow')]"
VERDICT = "document.querySelector('.verdict').textContent"


def so_it_is(permission: str) -> str:
    """What the table says of a permission, at its end."""
    return (
        f"[...document.querySelectorAll('.perms tbody tr')].find(row => row.innerText.includes({permission!r}))"
        "?.lastElementChild.innerText"
    )


def say(browser: Browser, permission: str, word: str) -> None:
    browser.page(
        f"[...document.querySelectorAll('.perms tbody tr')].find(row => row.innerText.includes({permission!r}))"
        f".querySelectorAll('[role=radio]').forEach(each => each.innerText === {word!r} && each.click()) || true"
    )


@pytest.mark.pictures
def test_permissions_confirmation_access_and_the_chain(browser: Browser, tmp_path: Path):
    with audited(tmp_path) as log, inspector_in(browser, target(guarded(log), "handshake", log)) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#security")
        assert browser.page(f"{so_it_is('network.outbound')} === 'asked with the next call'")
        say(browser, "network.outbound", "Grant")
        assert browser.page(f"{so_it_is('network.outbound')} === 'granted'")
        # What is denied is refused with the next call, and the layers say where.
        say(browser, "filesystem.read", "Deny")
        assert browser.page(f"{so_it_is('filesystem.read')} === 'denied by you'")
        assert "filesystem.read: denied" in str(Calling(inspector, "survey").result())
        assert browser.page("document.querySelector('.layers')?.innerText.includes('stopped here: permission_denied')")
        # A dangerous call asks for its permission, then for a yes. Esc denies.
        say(browser, "com.example.vents", "Grant")
        assert browser.page(f"{so_it_is('com.example.vents')} === 'granted'")
        denied = Calling(inspector, "open_vents", vent=2, percent=40)
        assert browser.page("document.querySelector('[role=alertdialog] h2')?.textContent.includes('open_vents')")
        assert browser.page("document.activeElement.textContent.startsWith('Deny')")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('somebody has to say yes')")
        browser.key("Escape")
        assert isinstance(denied.result(), DefserveError)
        allowed = Calling(inspector, "open_vents", vent=2, percent=40)
        assert browser.page("!!document.querySelector('[role=alertdialog]')")
        browser.press("[role=alertdialog] .btn.danger")
        assert allowed.result() == "vent 2 is open by 40 %"
        assert browser.page("document.querySelectorAll('.layers .ok').length === 5")
        # The chain, checked by its key.
        assert browser.page(f"{ROWS}.length > 4 && {ROWS}.some(row => row.innerText.includes('TOOL_EXECUTED'))")
        browser.key("v")
        assert browser.page(f"{VERDICT}.includes('The chain is whole.')")
        # Entries of access.
        browser.page("document.querySelector('.asks input').focus() || true")
        browser.type("agent.helper")
        browser.key("Tab")
        browser.type("survey")
        browser.key("Enter")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('the default')")
        browser.press(".asks .btn:nth-of-type(3)")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('entry for this tool, by local')")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('healthy')")
        # Event channels: the calls of this inspector are told to it.
        browser.press(".listens .btn")
        assert browser.page("document.querySelector('.listens .btn').innerText.includes('Stop')")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('tool.started')")
        inspector.call("list_sensors")
        assert browser.page("document.querySelector('.states').innerText.includes('connected')")
        assert browser.page("document.querySelector('.heard')?.innerText.includes('tool.completed')")
        for look in looks(browser, inspector.url + "#security", f"{so_it_is('network.outbound')} === 'granted'"):
            look.is_fine()
            if look.width == 1440 and TAKES_PICTURES:
                browser.page("document.querySelector('.asks input').focus() || true")
                browser.type("agent.helper")
                browser.key("Tab")
                browser.type("survey")
                browser.key("Enter")
                assert browser.page("document.querySelector('.sec-left').innerText.includes('entry for this tool')")
                waiting = Calling(inspector, "open_vents", vent=2, percent=40) if look.scheme == "dark" else None
                assert waiting is None or browser.page("!!document.querySelector('[role=alertdialog]')")
                look.picture("security")
                if waiting is not None:
                    browser.key("Escape")
                    waiting.result()


@pytest.mark.slow
def test_a_broken_chain_is_cut_at_its_line_and_keys_alone_decide(browser: Browser, tmp_path: Path):
    with audited(tmp_path) as log, inspector_in(browser, target(guarded(log), "stateless", log)) as inspector:
        for number in range(5):
            log.append({"event_type": "com.example.refill", "details": {"tank": number}})
        log.settle()
        raw = log.path.read_bytes().splitlines(keepends=True)
        raw[2] = raw[2].replace(b'"tank":2', b'"tank":9')
        log.path.write_bytes(b"".join(raw))
        browser.look(1440, 900)
        browser.open(inspector.url + "#security")
        assert browser.page(f"{VERDICT}.includes('The chain is broken at line 3.')")
        assert browser.page("document.querySelector('.cutline')?.innerText.startsWith('3')")
        assert browser.page("document.querySelectorAll('.link.grey').length === 2")
        # By keys alone: arrows choose what is said, and a line opens its event.
        assert browser.page(f"{so_it_is('com.example.vents')} === 'asked with the next call'")
        browser.page("document.querySelector('.perms [role=radio][tabindex=\"0\"]').focus() || true")
        browser.key("ArrowRight")
        assert browser.page(f"{so_it_is('com.example.vents')} === 'denied by you'")
        browser.page("document.querySelector('.sec-audit [role=grid]').focus() || true")
        browser.key("End")
        assert browser.page("document.querySelector('.auditevent')?.innerText.includes('com.example.refill')")
        browser.key("Tab", "Tab")
        assert serious(browser) == []
