"""The caller's address behind a trusted proxy: the last one in the list that is not a proxy's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import UsageError
from defserve.auth.authority import normalize_ip_address
from defserve.serve.sockets import ForwardedAddressMiddleware
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PROXY, CALLER = "127.0.0.1", "203.0.113.7"


class App:
    """Remembers what it was given."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope


async def seen(
    headers: list[tuple[str, str]], client: tuple[str, int] | None = (PROXY, 1), kind: str = "http"
) -> dict[str, Any]:
    app = App()
    scope = {
        "type": kind,
        "client": client,
        "scheme": "http" if kind == "http" else "ws",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    await ForwardedAddressMiddleware(app, normalize_ip_address)(scope, None, None)
    return app.scope


async def address(*values: str, client: tuple[str, int] | None = (PROXY, 1)) -> str | None:
    found = (await seen([("x-forwarded-for", value) for value in values], client))["client"]
    return found[0] if found else None


@for_each_row(
    ("values", "found"),
    [
        ([CALLER], CALLER),
        ([f"{CALLER}:4711"], CALLER),
        (["[2001:db8::1]:443"], "2001:db8::1"),
        (["127.0.0.1, 203.0.113.7"], CALLER),
        (["localhost, 203.0.113.7"], CALLER),
        (["local", "203.0.113.7"], CALLER),
        (["10.0.0.1, 203.0.113.7, 127.0.0.1"], CALLER),
        (["203.0.113.7", "127.0.0.1"], CALLER),
        (["203.0.113.7, localhost"], PROXY),
        (["203.0.113.7, unknown"], PROXY),
        (["203.0.113.7,"], PROXY),
        (["localhost"], PROXY),
        (["anonymous:203.0.113.7"], PROXY),
        ([""], PROXY),
        ([","], PROXY),
        ([], PROXY),
        (["127.0.0.1"], PROXY),
    ],
)
async def test_the_last_address_that_is_not_a_proxys_is_the_callers(values: list[str], found: str):
    assert await address(*values) == found


async def test_nobody_else_may_forward_an_address():
    assert await address(CALLER, client=("198.51.100.9", 1)) == "198.51.100.9"
    assert await address(CALLER, client=("localhost", 1)) == "localhost"


async def test_a_proxy_on_a_unix_socket_may():
    assert await address(CALLER, client=None) == CALLER
    assert await address("localhost", client=None) is None


async def test_proxies_elsewhere_are_named_by_the_operator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "198.51.100.0/24, 10.0.0.1")
    assert await address(f"127.0.0.1, {CALLER}, 198.51.100.3", client=("10.0.0.1", 1)) == CALLER
    assert await address(CALLER, client=("127.0.0.1", 1)) == "127.0.0.1"


async def test_if_everybody_is_a_proxy_the_last_one_saw_the_caller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert await address(f"127.0.0.1, {CALLER}", client=("198.51.100.9", 1)) == CALLER


def test_a_list_of_proxies_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "proxy.example")
    with pytest.raises(UsageError, match="FORWARDED_ALLOW_IPS"):
        ForwardedAddressMiddleware(App(), normalize_ip_address)


async def test_the_scheme_is_forwarded_too():
    assert (await seen([("x-forwarded-proto", "https")]))["scheme"] == "https"
    assert (await seen([("x-forwarded-proto", "https")], kind="websocket"))["scheme"] == "wss"
    assert (await seen([("x-forwarded-proto", "gopher")]))["scheme"] == "http"


@pytest.mark.slow
@given(st.lists(st.text(st.characters(codec="latin-1"), max_size=30), max_size=4))
async def test_whatever_is_forwarded_the_address_is_one(values: list[str]):
    found = await address(*values)
    assert found is not None and normalize_ip_address(found) == found


@given(st.text(st.characters(codec="latin-1", exclude_characters=","), max_size=30))
async def test_what_a_caller_writes_in_front_changes_nothing(text: str):
    assert await address(f"{text}, {CALLER}") == CALLER
