from __future__ import annotations

from typing import Any

import pytest

from defserve import UsageError
from defserve.serve.http.request_heads import HostOriginGate, is_loopback_name
from tests.rows import for_each_row

EVIL_HOSTS = [
    "127.0.0.1.evil.com",
    "localhost.evil",
    "localhost.evil.com:8000",
    "evil.localhost",
    "evil.com",
    "127.0.0.2",
    "127.1",
    "2130706433",
    "0.0.0.0",
    "[::]",
    "[::ffff:127.0.0.1]",
    "192.168.0.1:8000",
    "xn--lcalhost-c8a",
]

MALFORMED_HOSTS = [
    "",
    " localhost",
    "localhost ",
    "evil@localhost",
    "localhost@evil.com",
    "localhost:80:80",
    "localhost:",
    "localhost:port",
    "localhost:-1",
    "localhost:123456",
    "localhost.",
    "localhost/",
    "localhost#",
    "localhost?x",
    "localhost\\evil.com",
    "localhost%00.evil.com",
    "localhost, localhost",
    "localhost,evil.com",
    "localhost\tevil.com",
    "localhost\n",
    "http://localhost",
    "::1",
    "[::1",
    "[::1]evil.com",
    "[::1]:80:80",
    "[fe80::1%25eth0]",
    "*",
    "*.localhost",
    "ⓛocalhost",
    "loca\u017fhost",
    "a" * 400,
]

EVIL_ORIGINS = [
    "null",
    " null",
    "",
    "file://",
    "file:///etc/passwd",
    "http://",
    "http:localhost",
    "http:/localhost",
    "localhost",
    "//localhost",
    "http://localhost.evil.com",
    "http://127.0.0.1.evil.com",
    "http://evil.com",
    "http://evil.com:8000",
    "http://evil@localhost",
    "http://localhost@evil.com",
    "http://localhost/",
    "http://localhost/path",
    "http://localhost:80:80",
    "http://localhost http://evil.com",
    "http://localhost, http://localhost",
    "http://localhost\\.evil.com",
    "ftp://localhost",
    "ws://localhost",
    "javascript://localhost",
    "chrome-extension://localhost",
    "http://localhost\n",
    "*",
]


@pytest.fixture
def local() -> HostOriginGate:
    return HostOriginGate(port=8000)


@for_each_row("bind", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "[::1]", "127.0.0.5"])
@for_each_row(
    "host", ["localhost", "localhost:8000", "LocalHost:1", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:8000"]
)
def test_on_loopback_the_loopback_names_pass_with_any_port(bind: str, host: str):
    assert HostOriginGate(bind=bind).check(host, None, None) is None


def test_on_loopback_the_address_itself_passes():
    assert HostOriginGate(bind="127.0.0.5").check("127.0.0.5:8000", None, None) is None


@for_each_row("host", EVIL_HOSTS)
def test_another_host_is_misdirected_and_told_the_setting(local: HostOriginGate, host: str):
    refusal = local.check(host, None, None)
    assert refusal is not None
    assert refusal.status == 421
    assert "allowed_hosts" in refusal.text


@for_each_row("host", MALFORMED_HOSTS)
@for_each_row("trusted_proxy", [False, True])
def test_a_malformed_host_is_refused_even_behind_a_proxy(host: str, trusted_proxy: bool):
    refusal = HostOriginGate(trusted_proxy=trusted_proxy).check(host, None, None)
    assert refusal == (400, "the Host header is malformed")


def test_a_request_without_host_is_refused(local: HostOriginGate):
    assert local.check(None, None, None) == (400, "the Host header is missing")


@for_each_row(
    "origin",
    ["http://localhost", "https://localhost:3000", "http://127.0.0.1:1", "HTTP://LocalHost", "https://[::1]:8443"],
)
def test_on_loopback_pages_of_this_machine_may_call(local: HostOriginGate, origin: str):
    assert local.check("localhost:8000", origin, None) is None


@for_each_row("origin", EVIL_ORIGINS)
def test_another_origin_is_forbidden_and_told_the_setting(local: HostOriginGate, origin: str):
    refusal = local.check("localhost:8000", origin, None)
    assert refusal is not None
    assert refusal.status == 403
    assert "allowed_origins" in refusal.text


def test_a_rebound_name_is_refused_though_host_and_origin_agree(local: HostOriginGate):
    refusal = local.check("evil.com:8000", "http://evil.com:8000", "same-origin")
    assert refusal is not None
    assert refusal.status == 421


@for_each_row("fetch_site", ["cross-site", "Cross-Site", "same-origin, cross-site"])
def test_a_page_of_another_site_is_refused_where_it_shows_no_origin(local: HostOriginGate, fetch_site: str):
    refusal = local.check("localhost", None, fetch_site)
    assert refusal is not None
    assert refusal.status == 403


@for_each_row("fetch_site", [None, "same-origin", "same-site", "none"])
def test_other_fetches_pass(local: HostOriginGate, fetch_site: str | None):
    assert local.check("localhost", None, fetch_site) is None


def test_an_origin_that_is_allowed_may_call_across_sites(local: HostOriginGate):
    assert local.check("127.0.0.1:8000", "http://localhost:3000", "cross-site") is None
    assert (
        HostOriginGate(allowed_origins=["https://app.example.com"]).check(
            "localhost", "https://app.example.com", "cross-site"
        )
        is None
    )


def test_what_passed_once_does_not_open_the_gate_for_others(local: HostOriginGate):
    for _ in range(2):
        assert local.check("localhost", None, None) is None
        assert local.check("localhost", "http://evil.com", None) is not None
        assert local.check("localhost", None, "cross-site") is not None
        assert local.check("evil.com", None, None) is not None


def test_ever_new_values_do_not_fill_the_memory(local: HostOriginGate):
    for port in range(1, 2000):
        assert local.check(f"localhost:{port}", None, None) is None
    assert len(vars(local)["_passed"]) <= 256


@for_each_row(
    ("rule", "host", "allowed"),
    [
        ("example.com", "example.com", True),
        ("Example.COM", "eXample.com", True),
        ("example.com", "example.com:80", True),
        ("example.com", "example.com:443", True),
        ("example.com", "example.com:8000", True),
        ("example.com", "example.com:8001", False),
        ("example.com", "www.example.com", False),
        ("example.com", "badexample.com", False),
        ("example.com", "example.com.evil.com", False),
        ("example.com:9000", "example.com:9000", True),
        ("example.com:9000", "example.com", False),
        ("example.com:9000", "example.com:8000", False),
        ("example.com:443", "example.com", True),
        ("example.com:443", "example.com:80", False),
        ("example.com:*", "example.com:1", True),
        ("example.com:*", "example.com", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", ".example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "a.example.com:1", False),
        ("*.example.com:*", "a.example.com:1", True),
        ("[2001:db8::1]:9000", "[2001:DB8::1]:9000", True),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", True),
        ("192.168.0.7", "192.168.0.7:8000", True),
        ("192.168.0.7", "localhost:8000", False),
        ("kiosk.example", "\u212aiosk.example", False),
    ],
)
def test_hosts_are_allowed_by_name_and_port(rule: str, host: str, allowed: bool):
    gate = HostOriginGate(allowed_hosts=[rule], bind="0.0.0.0", port=8000)
    assert (gate.check(host, None, None) is None) is allowed


@for_each_row(
    ("rule", "origin", "allowed"),
    [
        ("https://app.example", "https://app.example", True),
        ("https://app.example", "https://APP.example:443", True),
        ("https://app.example:443", "https://app.example", True),
        ("https://app.example", "http://app.example", False),
        ("https://app.example", "https://app.example:8443", False),
        ("https://app.example:*", "https://app.example:8443", True),
        ("https://*.app.example", "https://a.app.example", True),
        ("https://*.app.example", "https://app.example", False),
        ("vscode-webview://1a2b", "vscode-webview://1a2b", True),
        ("vscode-webview://1a2b", "vscode-webview://1a2c", False),
        ("*", "https://anything.example:1", True),
        ("*", "null", False),
    ],
)
def test_origins_are_allowed_by_scheme_name_and_port(rule: str, origin: str, allowed: bool):
    gate = HostOriginGate(allowed_hosts=["api.example"], allowed_origins=[rule], bind="0.0.0.0")
    assert (gate.check("api.example", origin, None) is None) is allowed


@for_each_row(
    ("host", "origin", "same"),
    [
        ("api.example", "https://api.example", True),
        ("api.example", "http://api.example", True),
        ("api.example:443", "https://api.example", True),
        ("api.example:443", "http://api.example", False),
        ("api.example", "https://www.api.example", False),
        ("api.example", "https://api.example:8443", False),
        ("api.example", "http://localhost", False),
        ("api.example", "ftp://api.example", False),
    ],
)
def test_a_page_of_an_allowed_host_may_call_that_host(host: str, origin: str, same: bool):
    gate = HostOriginGate(allowed_hosts=["api.example"], bind="0.0.0.0")
    assert (gate.check(host, origin, None) is None) is same


def test_behind_a_trusted_proxy_any_host_passes_and_origins_are_still_checked():
    gate = HostOriginGate(trusted_proxy=True, bind="0.0.0.0")
    assert gate.check("whatever.example", None, None) is None
    refusal = gate.check("whatever.example", "http://whatever.example", None)
    assert refusal is not None
    assert refusal.status == 403


def test_a_trusted_proxy_does_not_lift_the_hosts_that_are_named():
    gate = HostOriginGate(["api.example"], trusted_proxy=True, bind="0.0.0.0")
    assert gate.check("api.example", None, None) is None
    assert gate.check("other.example", None, None) is not None


@for_each_row("bind", ["0.0.0.0", "::", "", "192.168.0.7", "example.com", "127.evil.com", "127.0.0.1.evil"])
def test_a_bind_the_network_can_reach_needs_names_or_a_proxy(bind: str):
    with pytest.raises(UsageError, match=r"(?s)allowed_hosts.*trusted_proxy"):
        HostOriginGate(bind=bind)


@for_each_row(
    ("settings", "problem"),
    [
        ({"allowed_hosts": ["https://example.com"]}, "not a host"),
        ({"allowed_hosts": ["example.com/mcp"]}, "not a host"),
        ({"allowed_hosts": ["exa*mple.com"]}, "not a host"),
        ({"allowed_hosts": ["*.*.example.com"]}, "not a host"),
        ({"allowed_hosts": ["bücher.example"]}, "xn--"),
        ({"allowed_hosts": [""]}, "not a host"),
        ({"allowed_hosts": ["*"]}, "every name"),
        ({"allowed_hosts": "example.com"}, "write a list"),
        ({"allowed_origins": ["example.com"]}, "not an origin"),
        ({"allowed_origins": ["https://example.com/"]}, "not an origin"),
        ({"allowed_origins": ["null"]}, "not an origin"),
        ({"allowed_origins": "https://example.com"}, "write a list"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_at_once(settings: dict[str, Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        HostOriginGate(**settings)


@for_each_row("host", ["localhost", "LocalHost:80", "127.0.0.1", "127.1.2.3:8000", "[::1]", "[::1]:65535"])
def test_a_loopback_name_is_one_with_any_port(host: str):
    assert is_loopback_name(host)


@for_each_row(
    "host",
    [
        None, "", "localhost.", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example", "127.0.0",
        "[::2]", "0.0.0.0", "localhost, evil.example", "localhost@evil.example", "localhost:x", "192.168.0.1",
    ],
)  # fmt: skip
def test_any_other_name_is_not(host: str | None):
    assert not is_loopback_name(host)
