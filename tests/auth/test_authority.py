"""Whose yes counts, which texts are addresses, and that nobody else decides it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.auth.authority import (
    identify_socket_user,
    is_local_user,
    is_stranger,
    make_anonymous_ip_principal,
    normalize_ip_address,
)
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal, make_anonymous_principal
from tests.imports import PACKAGE
from tests.rows import for_each_row


def test_only_the_local_user_and_verified_tokens_are_no_strangers():
    assert not is_stranger(LOCAL_PRINCIPAL)
    assert not is_stranger(Principal("ann"))
    for address in ("127.0.0.1", "::1", "localhost", "203.0.113.7", "unknown", ""):
        assert is_stranger(make_anonymous_principal(address)), address
        assert is_stranger(make_anonymous_ip_principal(address)), address
    assert [
        is_local_user(who) for who in (LOCAL_PRINCIPAL, Principal("ann"), make_anonymous_principal("127.0.0.1"))
    ] == [True, False, False]


def test_scopes_and_claims_do_not_make_a_stranger_known():
    assert is_stranger(Principal("anonymous:10.0.0.1", frozenset({"admin"}), {"sub": "local"}, kind="anonymous"))


def test_on_a_trusted_unix_socket_only_our_own_user_is_local():
    assert identify_socket_user(os.getuid()) is LOCAL_PRINCIPAL
    for user in (os.getuid() + 1, None, -1):
        assert is_stranger(identify_socket_user(user))


@for_each_row(
    ("text", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        (" 203.0.113.7\t", "203.0.113.7"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        *((text, None) for text in (
            "", " ", "localhost", "local", "unknown", "_hidden", "everyone", "session:x", "unix:",
            "127.1", "0x7f.1", "2130706433",
            "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:999999", "[::1", "[::1]x", "[]", "127.0.0.1, 10.0.0.1",
            "127.0.0.1/8",
            "127.0.0.1\x00", "１２７.0.0.1", "for=127.0.0.1",
        )),
    ],
)  # fmt: skip
def test_an_address_is_an_ip_address_or_nothing(text: str, address: str | None):
    assert normalize_ip_address(text) == address
    assert make_anonymous_ip_principal(text).id == f"anonymous:{address or 'unknown'}"


@given(st.ip_addresses())
def test_every_ip_address_is_read_in_every_form(address: IPv4Address | IPv6Address):
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    expected = str(mapped or address)
    forms = (
        [str(address), f"{address}:80"] if address.version == 4 else [str(address), f"[{address}]", f"[{address}]:80"]
    )
    assert {normalize_ip_address(form) for form in forms} == {expected}


@given(st.text(max_size=80))
def test_any_text_is_an_ip_address_or_nothing(text: str):
    found = normalize_ip_address(text)
    assert found is None or str(ip_address(found)) == found


# -- nobody else decides ---------------------------------------------------------------------------------

# The files that tell callers apart or find an address, but give nobody a right.
MAY_ASK: dict[str, set[str]] = {
    "is_shared_identity": {
        "core/session.py", "core/service.py", "serve/connection.py",  # limits of sessions
        "protocols/mcp/tasks/run.py",  # hands the fact on
        "serve/http/redis_sessions.py",  # limits of sessions
    },
    "is_loopback": {
        "guard/network.py",  # judges addresses that tools connect to
        "client/links/http_client.py", "serve/outbound.py",  # clients: proxies
        "server/serving.py",  # a client: encryption
        "cli/target_connection.py", "cli/commands/login.py",  # what to suggest
        "cli/commands/dev.py",  # whether a key is published
        "tooling/dev_issuer.py",  # for development: sends users back to this machine alone
        "client/signin/authorizer.py", "client/signin/issuer.py",  # a client: which addresses it follows
        "client/signin/fetching.py", "inspector/app_views.py",  # which addresses a view may reach
        "protocols/mcp/events/sending.py",  # which addresses webhooks go to, in tests
        "tooling/evals/endpoint.py",  # a client: whether a key goes out in plain text
        "server/web.py",  # the address that is served: whether other machines reach it
    },
    "kind": {
        "serve/connection.py", "serve/session_opener.py",  # hands the fact on; counts sessions by address
        "protocols/mcp/authorization.py",  # a conversation that has an owner takes no other
        "protocols/mgp/audit.py",  # names the key of a token
        "serve/http/redis_sessions.py",  # counts sessions by address
        "openapi/sending.py",  # a stranger has no account elsewhere
    },
}  # fmt: skip


def deciding(package: Path) -> Iterator[tuple[str, str, int]]:
    """What is asked about a caller outside of `auth`: the word, the file and the line."""
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("auth/"):
            continue
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in MAY_ASK):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute | ast.Name):
                word = node.attr if isinstance(node, ast.Attribute) else node.id
                if word in ("is_shared_identity", "is_loopback"):
                    yield word, name, node.lineno
            elif isinstance(node, ast.Compare) and _compares_kind(node):
                yield "kind", name, node.lineno


def _compares_kind(node: ast.Compare) -> bool:
    sides = (node.left, *node.comparators)
    asks = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
    words = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
    return asks and bool(words & {"anonymous", "local", "token"})


@pytest.mark.slow
def test_no_other_module_decides_by_the_kind_of_a_caller_or_its_address():
    found = [f"{name}:{line} asks for {word}" for word, name, line in deciding(PACKAGE) if name not in MAY_ASK[word]]
    assert found == []


def test_the_rule_finds_what_it_forbids(tmp_path: Path):
    (tmp_path / "bad.py").write_text(
        'if who.kind == "anonymous" and not who.is_shared_identity: pass\n'
        'if who.kind not in ("local", "token"): pass\n'
        "trusted = is_loopback(address)\n"
        'if item.kind == "tool": pass\n'
    )
    found = sorted((line, word) for word, _, line in deciding(tmp_path))
    assert found == [(1, "is_shared_identity"), (1, "kind"), (2, "kind"), (3, "is_loopback")]
