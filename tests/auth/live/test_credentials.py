"""Credentials of what is open: verified again and again, each once, and only while something is open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.auth import live_credentials
from defserve.auth.live_credentials import LiveCredentials
from tests.raw import until

pytestmark = pytest.mark.anyio


class Shown:
    """A credential whose verifier says what the test tells it to."""

    def __init__(self, key: str, good: bool = True) -> None:
        self.key, self.good, self.verified = key, good, 0
        self.fails: Exception | None = None
        self.hangs = False

    async def verify(self) -> bool:
        self.verified += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        return self.good

    def is_still_valid(self, found: Any) -> bool:
        return found is True


class Holder:
    def __init__(self, *shown: Shown) -> None:
        self._shown, self.ended = shown, list[str]()

    def list_credentials(self) -> tuple[Shown, ...]:
        return self._shown

    def credential_ended(self, key: Any) -> None:
        self.ended.append(key)


async def test_what_a_bad_credential_opened_is_ended_and_nothing_else():
    live, good, bad = LiveCredentials(), Shown("good"), Shown("bad", good=False)
    both, other = Holder(good, bad), Holder(good)
    for holder in (both, other):
        live.keep_verifying_holder(holder)
    await live.verify_credentials()
    live.close()
    assert (both.ended, other.ended) == (["bad"], [])


async def test_a_credential_is_verified_once_for_all_that_it_opened():
    live, shown = LiveCredentials(), Shown("one")
    for _ in range(100):
        live.keep_verifying_holder(Holder(shown))
    await live.verify_credentials()
    live.close()
    assert shown.verified == 1


async def test_a_verifier_that_fails_once_ends_nothing_and_one_that_fails_twice_does():
    live, shown = LiveCredentials(), Shown("one")
    holder = Holder(shown)
    live.keep_verifying_holder(holder)
    shown.fails = OSError("the issuer cannot be reached")
    await live.verify_credentials()
    shown.fails = None
    await live.verify_credentials()
    shown.fails = OSError("the issuer cannot be reached")
    await live.verify_credentials()
    assert holder.ended == []
    await live.verify_credentials()
    live.close()
    assert holder.ended == ["one"]


async def test_a_verifier_that_never_answers_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_credentials, "ANSWER_SECONDS", 0.01)
    live, slow, bad = LiveCredentials(), Shown("slow"), Shown("bad", good=False)
    slow.hangs = True
    holder = Holder(slow, bad)
    live.keep_verifying_holder(holder)
    await live.verify_credentials()
    assert holder.ended == ["bad"]
    await live.verify_credentials()
    live.close()
    assert "slow" in holder.ended


async def test_credentials_whose_verifier_hangs_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_credentials, "ANSWER_SECONDS", 60.0)
    hanging, bad = [Shown(f"hanging {number}") for number in range(500)], Shown("bad", good=False)
    for one in hanging:
        one.hangs = True
    live, holder = LiveCredentials(), Holder(*hanging, bad)
    live.keep_verifying_holder(holder)
    verifying = asyncio.create_task(live.verify_credentials())
    await until(lambda: holder.ended == ["bad"])
    assert all(one.verified == 1 for one in hanging)
    verifying.cancel()
    await asyncio.wait((verifying,))
    live.close()


async def test_of_a_verifier_that_answers_no_more_than_so_many_are_asked_at_once():
    at_once = most = 0

    class Slow(Shown):
        async def verify(self) -> bool:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return True

    live, holder = LiveCredentials(), Holder(*(Slow(str(number)) for number in range(500)))
    live.keep_verifying_holder(holder)
    await live.verify_credentials()
    live.close()
    assert most == live_credentials.AT_ONCE


async def test_a_token_that_a_verifier_names_in_its_error_is_not_in_the_log(caplog: pytest.LogCaptureFixture):
    live, shown = LiveCredentials(), Shown("one")
    shown.fails = KeyError("the-token-itself")
    live.keep_verifying_holder(Holder(shown))
    await live.verify_credentials()
    live.close()
    assert "cannot be verified: KeyError" in caplog.text and "the-token-itself" not in caplog.text


async def test_one_that_cannot_be_ended_does_not_keep_the_others():
    class Stuck(Holder):
        def credential_ended(self, key: Any) -> None:
            raise RuntimeError("stuck")

    live, bad = LiveCredentials(), Shown("bad", good=False)
    holders = [Stuck(bad), Holder(bad), Stuck(bad), Holder(bad)]
    for holder in holders:
        live.keep_verifying_holder(holder)
    await live.verify_credentials()
    live.close()
    assert [holder.ended for holder in holders if not isinstance(holder, Stuck)] == [["bad"], ["bad"]]


async def test_it_sweeps_by_itself_while_something_is_open_and_then_no_more():
    live, shown = LiveCredentials(seconds=0.001), Shown("one")
    holder = Holder(shown)
    live.keep_verifying_holder(holder)
    await until(lambda: shown.verified > 3)
    shown.good = False
    await until(lambda: bool(holder.ended))
    live.stop_verifying_holder(holder)
    await until(lambda: live.is_idle)
    live.keep_verifying_holder(again := Holder(shown))
    await until(lambda: bool(again.ended))
    live.close()
    assert live.is_idle


def test_it_serves_another_loop_after_the_first_has_ended():
    live = LiveCredentials(seconds=0.001)

    async def once() -> None:
        holder = Holder(Shown("bad", good=False))
        live.keep_verifying_holder(holder)
        await until(lambda: bool(holder.ended))
        live.stop_verifying_holder(holder)

    asyncio.run(once())
    asyncio.run(once())


def test_all_of_it_takes_less_than_five_seconds():
    assert live_credentials.SWEEP_SECONDS + live_credentials.ANSWER_SECONDS < 5
