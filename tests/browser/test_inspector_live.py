"""The Live panel of the inspector in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve import Server
from tests.inspector.lively import lively

from .accessibility import serious
from .inspecting import FITS, Calling, inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

INJECTED = "[...document.querySelectorAll('.slot .inj')]"
PLAY = "document.querySelector('.v-play').innerText"
FEED = "document.querySelector('.v-feed').innerText"


def play(browser: Browser, message: str, answer: str = "") -> None:
    """By keys alone."""
    assert browser.page("!!document.querySelector('.v-play textarea')")
    browser.key("/")
    browser.key("Control+a")
    browser.type(message)
    if answer:
        browser.key("Tab", "Tab", "Control+a")
        browser.type(answer)
    browser.key("Control+Enter")


def switch(browser: Browser, name: str) -> None:
    browser.press(f".v-sets [role=switch][aria-label='{name}']")


@pytest.mark.pictures
def test_the_playground_the_sets_the_events_and_the_channel(browser: Browser):
    with inspector_in(browser, target_of(lively(), era="handshake")) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#live")
        assert browser.page("document.querySelectorAll('.v-sets .fs').length === 6")
        answer = "No. Alice watered them on Friday and the air is humid. Alice can look again on Monday."
        play(browser, "Should Alice water the ferns tonight?", answer)
        # Everything where it lands.
        assert browser.page(f"{INJECTED}.length === 3")
        assert (
            browser.page(
                "[...document.querySelectorAll('.slot')].map(slot => slot.querySelector('h3').textContent + ' ' +"
                " [...slot.querySelectorAll('.inj b')].map(each => each.textContent).join(' ')).join('|')"
            )
            == "system climate.watch|before user beds.memory|user |after user climate.watch"
        )
        assert browser.page(f"{PLAY}.includes('Gave nothing: season.tips')")
        assert browser.page(
            "[...document.querySelectorAll('.answers del')].map(each => each.textContent).join() === 'Alice,Alice'"
        )
        assert browser.page(
            "[...document.querySelectorAll('.answers ins')].map(each => each.textContent).join() === 'A.,A.'"
        )
        # A set that is off is struck through, and gives nothing the next time.
        switch(browser, "climate.watch")
        assert browser.page("document.querySelectorAll('.slot .struck').length === 2")
        browser.page("document.activeElement.blur() || true")
        play(browser, "Are the ferns dry?")
        assert browser.page(f"{INJECTED}.length === 1 && {INJECTED}[0].innerText.includes('m1')")
        switch(browser, "climate.watch")
        assert browser.page("document.querySelector('.v-sets .head').innerText.includes('6 of 6 on')")
        # Events, with receipts.
        assert inspector.call("warn", text="Frost tonight, −2 °C") == "accepted"
        assert browser.page(f"{FEED}.includes('Frost tonight') && {FEED}.includes('accepted')")
        browser.press(".v-feed .head .seg button:nth-child(2)")
        assert browser.page("document.querySelector('.v-feed .head .seg .on').innerText === 'Ask me'")
        waiting = Calling(inspector, "warn", text="Vent 2 has not closed")
        assert browser.page(f"{FEED}.includes('waits')")
        browser.press(".ev .btn.plain")
        assert str(waiting.result()).startswith("refused")
        assert browser.page(f"{FEED}.includes('refused')")
        # A scope that is on no list waits for the person.
        watered = Calling(inspector, "water_bed", bed="fern")
        assert browser.page("document.querySelector('.scopes .warn')?.textContent === 'asked'")
        browser.press(".scopes .btn")
        assert watered.result() == "fern is watered"
        browser.page("document.querySelector('.scopeform input').focus() || true")
        browser.type("bed/north-*")
        browser.key("Enter")
        assert browser.page("document.querySelector('.scopes .ok')?.nextElementSibling.textContent === 'bed/north-*'")
        assert inspector.call("water_bed", bed="north-1") == "north-1 is watered"
        # The channel as a chat.
        inspector.call("call_roof", text="Vent 2 makes a noise again.")
        assert browser.page(f"{FEED}.includes('Vent 2 makes a noise again.')")
        browser.page("document.querySelector('.v-feed form input').focus() || true")
        browser.type("I see vent 2 at 40 %. Shall I close it?")
        browser.key("Enter")
        assert browser.page(f"{FEED}.includes('delivered')")
        for look in looks(browser, inspector.url + "#live", "!!document.querySelector('.v-play')"):
            play(browser, "Should Alice water the ferns tonight?", answer)
            assert browser.page(f"{INJECTED}.length === 3 && !!document.querySelector('.answers ins')")
            look.is_fine()
            look.picture("live")


@pytest.mark.slow
def test_a_channel_is_opened_and_another_version_is_offered(browser: Browser):
    with inspector_in(browser, target_of(lively(), era="handshake")) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#live")
        browser.press(".v-feed .opening .btn")
        browser.page("document.querySelector('.opening .mono input').focus() || true")
        browser.type('{"name": "full"}')
        browser.key("Enter")
        assert browser.page("document.querySelector('.opening').innerText.includes('the room is full')")
        assert serious(browser) == []
        browser.page("document.querySelector('.opening .mono input').focus() || true")
        browser.key("Control+a")
        browser.type('{"name": "shed"}')
        browser.key("Enter")
        assert browser.page("document.querySelector('.chanhead select')?.value === 'chat:#shed'")
        browser.press(".v-sets .bar:last-child [role=radio]:nth-child(2)")
        assert browser.page("document.querySelector('.v-sets .bar:last-child').innerText.includes('MCPL 0.5')")
        assert browser.page("document.querySelector('.granted').innerText.includes('channels.lifecycle')")
        assert browser.page("document.querySelectorAll('.v-play textarea').length === 1")
        play(browser, "The ferns?")
        assert browser.page(f"{INJECTED}.length === 3")
        assert browser.page(FITS)
        assert serious(browser) == []


@pytest.mark.slow
def test_the_stateless_era_fetches_what_cannot_be_pushed(browser: Browser):
    with inspector_in(browser, target_of(lively())) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#live")
        play(browser, "The ferns?", "Alice knows.")
        assert browser.page(f"{INJECTED}.length === 3 && !!document.querySelector('.answers ins')")
        inspector.call("warn", text="Frost tonight")
        browser.press(".v-feed .head .btn")
        assert browser.page(f"{FEED}.includes('Frost tonight')")


@pytest.mark.slow
def test_a_server_without_mcpl_leads_on(browser: Browser):
    with inspector_in(browser, target_of(Server("plain"))) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#live")
        assert browser.page("document.querySelector('.empty')?.innerText.includes('does not speak MCPL')")
