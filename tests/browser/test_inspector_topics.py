"""The Topics panel of the inspector in a real browser, at a real gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from defserve import Server
from defserve.client import join_topic
from tests.gateway.topics import gateway

from .inspecting import LOOKS, SECONDS, Look, inspector_in, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser


class TopicBeside:
    """A gateway on a loop of its own, with a calculator and an agent in the topic `demo`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, agent: Any) -> None:
        self.loop, self.url, self.agent = loop, url, agent

    def propose(self, **arguments: float) -> None:
        asked = {"name": "add", "arguments": arguments}
        self.loop.call_soon_threadsafe(lambda: self.agent.propose("worker", "tools/call", asked))


@contextmanager
def topic_beside() -> Generator[TopicBeside]:
    made, started, ending = list[TopicBeside](), threading.Event(), list[asyncio.Event]()
    calculator = Server("calculator")

    @calculator.tool
    def add(a: float, b: float) -> float:
        return a + b

    async def main() -> None:
        ending.append(asyncio.Event())
        async with (
            gateway() as here,
            calculator.join(here.topic(), token="t-worker"),
            join_topic(here.topic(), token="t-agent") as agent,
        ):
            made.append(TopicBeside(asyncio.get_running_loop(), here.url, agent))
            started.set()
            await ending[0].wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="topic")
    thread.start()
    assert started.wait(SECONDS)
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(ending[0].set)
        thread.join(SECONDS)


def join(browser: Browser, url: str) -> None:
    """By keys alone: the three fields, and Enter."""
    assert browser.page("!!document.querySelector('#t-url')")
    for field, text in (("t-url", url), ("t-topic", "demo"), ("t-token", "t-admin")):
        browser.page(f"document.getElementById({field!r}).focus() || document.activeElement.select() || true")
        browser.type(text)
    browser.key("Enter")
    assert browser.page("document.querySelector('.tpeople')?.innerText.includes('admin, you')")


@pytest.mark.pictures
@pytest.mark.slow
def test_a_person_approves_and_declines_what_an_agent_proposes(browser: Browser):
    with topic_beside() as topic, inspector_in(browser, target_of(Server("plain"))) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#topics")
        join(browser, topic.url)
        assert browser.page("localStorage.getItem('defserve.topic').includes('t-admin') === false")
        topic.propose(a=19.9, b=4.2)
        assert browser.page("document.querySelector('.titem')?.innerText.includes('proposes')")
        browser.page("document.activeElement.blur() || true")
        browser.key("y")
        assert browser.page("document.querySelector('.titem').innerText.includes('approved by admin')")
        assert browser.page("document.querySelector('.tp-detail').innerText.includes('24.0')")
        topic.propose(a=1.0, b=2.0)
        assert browser.page("document.querySelectorAll('.titem').length === 2")
        browser.press(".titem")
        browser.press(".treason input")
        browser.type("too small")
        browser.press(".tdecide .btn:not(.pri)")
        assert browser.page("document.querySelector('.tp-detail').innerText.includes('too small')")
        # What comes while a person looks does not take the place of what they look at.
        topic.propose(a=3.0, b=4.0)
        assert browser.page("document.querySelectorAll('.titem').length === 3")
        assert browser.page("document.querySelector('.tp-detail').innerText.includes('too small')")
        browser.press(".titem")
        assert browser.page("document.querySelector('.treason input').value === ''")
        assert browser.page("document.querySelector('.tp-detail').innerText.includes('3.0')")
        topic.loop.call_soon_threadsafe(lambda: topic.agent.chat("The sum is for the order of this week."))
        assert browser.page("document.querySelector('.tsaid').innerText.includes('of this week')")
        for width, height, scheme in LOOKS:
            browser.look(width, height, scheme)
            assert browser.page("document.querySelectorAll('.titem').length === 3")
            look = Look(browser, width, scheme)
            look.is_fine()
            if look.is_phone:
                browser.press(".tp-detail .head button")
                browser.press(".tp-list .only-m button")
                assert browser.page("document.querySelector('.tsay').offsetParent !== null")
                look.fits()
                browser.key("Escape")
                assert browser.page("document.querySelector('.tp-list').offsetParent !== null")
            look.picture("topics")
