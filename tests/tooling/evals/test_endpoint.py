"""Every way in which an endpoint fails, and what it must not count as."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.tooling.evals.dialects import DIALECTS, ModelRequest, PersonMessage, make_name_map
from defserve.tooling.evals.endpoint import (
    EndpointFailure,
    FinalRefusal,
    ModelAddress,
    ModelEndpoint,
    ModelName,
    parse_model,
    parse_retry_seconds,
    resolve_model_address,
)
from defserve.tooling.evals.judging import ModelAnswer
from tests.tooling.evals.conftest import Shelf
from tests.tooling.evals.scripted_endpoint import Asked, Reply, scripted_endpoint

ONE = """
runs: 4
cases:
  - {name: a, prompt: Which books by Lem, expect: find_books}
"""


def ask(replies: list[Reply], timeout: float = 5.0) -> tuple[ModelAnswer, list[float]]:
    """Ask once. The endpoint answers with these, one after the other. Returns the answer, and the waits."""
    waits: list[float] = []
    left = list(replies)

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async def run(url: str) -> ModelAnswer:
        address = ModelAddress(f"{url}/v1/chat/completions")
        async with ModelEndpoint(DIALECTS["chat"], address, timeout=timeout, wait=wait) as endpoint:
            return await endpoint.ask(ModelRequest("m", "", (PersonMessage("Hello"),), ()))

    with scripted_endpoint(lambda asked: left.pop(0)) as scripted:
        return asyncio.run(run(scripted.url)), waits


GOOD = Reply("Hello")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
def test_a_busy_endpoint_is_asked_again(status: int) -> None:
    answer, waits = ask([Reply(status=status), Reply(status=status), GOOD])
    assert (answer.text, waits) == ("Hello", [0.5, 1.0])


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "9999"}, 120.0),
        ({"retry-after": "Wed, 18 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_an_endpoint_says_when_to_ask_again(headers: Mapping[str, str], seconds: float | None) -> None:
    assert parse_retry_seconds(headers, lambda: datetime(2026, 11, 18, 12, 0, 0, tzinfo=UTC)) == seconds


def test_after_five_tries_the_run_is_missing() -> None:
    with pytest.raises(EndpointFailure, match="HTTP 503, 5 times"):
        ask([Reply(status=503)] * 5)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_stops_at_once_with_the_endpoints_text(status: int) -> None:
    with pytest.raises(FinalRefusal, match=f"{status}.*no such model"):
        ask([Reply("no such model", status=status)])


def test_a_spent_quota_is_not_asked_again() -> None:
    with pytest.raises(FinalRefusal, match="insufficient_quota"):
        ask([Reply("insufficient_quota", status=429)])


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"{", "not JSON"),
        (b"<html>Gateway</html>", "a page"),
        (b"[]", "no answer"),
        (b"{}", "another shape"),
        (b"[" * 100_000, "not JSON"),
        (b'{"choices": [' + b" " * (10 * 1024 * 1024) + b"]}", "more than 10 MiB"),
    ],
)
def test_what_is_no_answer_is_an_endpoint_error_and_asked_for_again(raw: bytes, problem: str) -> None:
    assert ask([Reply(raw=raw), GOOD])[0].text == "Hello"
    with pytest.raises(EndpointFailure, match=problem):
        ask([Reply(raw=raw)] * 5)


def test_an_endpoint_that_hangs_is_left() -> None:
    from threading import Event

    held = Event()

    def hang(asked: Asked) -> Reply:
        held.wait(30)
        return GOOD

    async def run(url: str) -> None:
        address = ModelAddress(f"{url}/v1/chat/completions")

        async def wait(seconds: float) -> None:
            await asyncio.sleep(0)

        async with ModelEndpoint(DIALECTS["chat"], address, timeout=0.05, wait=wait) as endpoint:
            await endpoint.ask(ModelRequest("m", "", (PersonMessage("Hello"),), ()))

    with scripted_endpoint(hang) as scripted:
        try:
            with pytest.raises(EndpointFailure, match="no answer within 0.05 s"):
                asyncio.run(run(scripted.url))
        finally:
            held.set()


def test_a_prompt_that_was_cut_is_incomplete_and_never_judged(shelf: Shelf) -> None:
    shelf.write_suite(ONE)
    cut = Reply(calls=[("find_books", {"text": "lem"})], usage=(20, 5))
    with scripted_endpoint(lambda asked: cut) as endpoint:
        ran = shelf.evaluate("shelf.eval.yaml", "--model", "ollama:m", "--url", endpoint.url)
    assert ran.code == 4
    assert "the endpoint cut the prompt" in ran.out


def test_errors_are_neither_passes_nor_failures(shelf: Shelf) -> None:
    shelf.write_suite(ONE)
    count = [0]

    def answer(asked: Asked) -> Reply:
        count[0] += 1
        return Reply(calls=[("find_books", {"text": "lem"})]) if count[0] == 1 else Reply("unknown model", status=404)

    with scripted_endpoint(answer) as endpoint:
        ran = shelf.evaluate("shelf.eval.yaml", "--model", "chat:m", "--url", endpoint.url, "--json")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"]) == (4, "incomplete")
    assert (report["cases"][0]["passed"], report["cases"][0]["runs"], report["cases"][0]["missing"]) == (1, 1, 3)
    assert "unknown model" in report["stopped"]


def test_where_nobody_answers_it_is_said_once_and_the_old_recording_stays(shelf: Shelf) -> None:
    shelf.write_suite(ONE)
    with scripted_endpoint(lambda asked: Reply(calls=[("find_books", {"text": "lem"})])) as endpoint:
        words = ("shelf.eval.yaml", "--model", "chat:m", "--url", endpoint.url)
        assert shelf.evaluate(*words).code == 0
    before = shelf.recordings[0].read_bytes()
    shelf.edit_server("Find books by title", "Search books by title")
    ran = shelf.evaluate(*words)
    assert ran.code == 4
    assert ran.out.count("nobody answers at") == 1 and "\n  fix: start the model" in ran.out
    assert "not run" not in ran.out
    assert shelf.recordings[0].read_bytes() == before


def test_a_connection_that_fails_later_is_tried_again() -> None:
    waits: list[float] = []

    async def run(url: str, stop: Callable[[], None]) -> None:
        async def wait(seconds: float) -> None:
            waits.append(seconds)

        address = ModelAddress(f"{url}/v1/chat/completions")
        async with ModelEndpoint(DIALECTS["chat"], address, wait=wait) as endpoint:
            request = ModelRequest("m", "", (PersonMessage("Hello"),), ())
            await endpoint.ask(request)
            await asyncio.to_thread(stop)
            with pytest.raises(EndpointFailure):
                await endpoint.ask(request)

    with ExitStack() as stack:
        scripted = stack.enter_context(scripted_endpoint(lambda asked: Reply("Hi", headers={"connection": "close"})))
        asyncio.run(run(scripted.url, stack.close))
    assert len(waits) == 4


def test_tokens_are_counted_before_each_request(shelf: Shelf) -> None:
    shelf.write_suite(ONE)
    with scripted_endpoint(lambda asked: Reply(calls=[("find_books", {"text": "lem"})])) as endpoint:
        words = ("shelf.eval.yaml", "--model", "chat:m", "--url", endpoint.url, "--max-tokens-total", 800)
        ran = shelf.evaluate(*words, "--json")
        assert 0 < len(endpoint.asked) < 4
    assert ran.code == 4
    assert "--max-tokens-total" in json.loads(ran.out)["stopped"]


# -- Keys and addresses.


HOME = {"OPENAI_API_KEY": "sk-vendor", "ANTHROPIC_API_KEY": "sk-other", "LOCAL": "abcd"}


def test_a_vendors_key_goes_only_to_its_host() -> None:
    chat = ModelName("chat", "m")
    assert resolve_model_address(chat, None, None, HOME).key == "sk-vendor"
    assert resolve_model_address(chat, "https://evil.example", None, HOME).key is None
    assert resolve_model_address(chat, "http://127.0.0.1:8080/v1", None, HOME).key is None
    assert resolve_model_address(chat, "http://127.0.0.1:8080", "LOCAL", HOME).key == "abcd"


def test_no_key_goes_over_plain_http_but_to_this_machine() -> None:
    with pytest.raises(UsageError, match="plain text"):
        resolve_model_address(ModelName("chat", "m"), "http://models.example", "LOCAL", HOME)
    with pytest.raises(UsageError, match="plain text"):
        resolve_model_address(ModelName("chat", "m"), "http://api.openai.com", "OPENAI_API_KEY", HOME)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        resolve_model_address(ModelName("responses", "m"), None, None, {})
    with pytest.raises(UsageError, match="NOPE"):
        resolve_model_address(ModelName("ollama", "m"), None, "NOPE", {})


@pytest.mark.parametrize("text", ["qwen3", "olama:qwen3", "chat:", ""])
def test_a_model_has_a_dialect_and_a_name(text: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        parse_model(text)
    assert parse_model("ollama:qwen3:8b") == ("ollama", "qwen3:8b")


def test_names_are_mapped_one_to_one() -> None:
    names = ["a.b", "a b", "a_b", "x" * 80, "x" * 81, "büch", "…"]
    mapped = make_name_map(names)
    assert mapped["a_b"] == "a_b"
    assert len(set(mapped.values())) == len(names)
    assert all(len(name) <= 64 and name.isascii() for name in mapped.values())


def test_no_temperature_or_tool_choice_is_sent_unless_asked_for() -> None:
    for dialect in DIALECTS.values():
        body: dict[str, Any] = dialect.make_body(ModelRequest("m", "", (PersonMessage("Hello"),), ()))
        assert not {"temperature", "tool_choice", "top_p"} & body.keys()
