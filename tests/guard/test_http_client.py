"""The guarded client against a real server: what it refuses, what it pins, what it bounds."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from defserve.errors import LimitExceeded, Refused, UsageError
from defserve.guard.http_client import GuardedClient
from defserve.guard.network import Egress
from tests.certificate import self_signed
from tests.guard.web import OTHER, PUBLIC, SIXTH, Heard, answer, moved, web

pytestmark = pytest.mark.anyio

NAMES = {"example.com": (PUBLIC,), "other.example": (OTHER,), "inside.example": ("127.0.0.1",)}


def hello(heard: Heard) -> bytes:
    return answer(f"{heard.method} {heard.path}".encode())


async def refused(client: GuardedClient, url: str, **sending: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await client.get(url, **sending)
    return caught.value


async def test_a_public_page_is_fetched_from_the_pinned_address_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        response = await client.get("http://Example.COM./a", params={"b": "ä"}, headers={"host": "localhost"})
        assert response.status_code == 200
        assert response.text == "GET /a?b=%C3%A4"
        assert net.dialled == [PUBLIC]
        assert net.heard[0].headers["host"] == "example.com"


@pytest.mark.parametrize("wanted", [logging.NOTSET, logging.INFO])
async def test_what_is_in_a_request_is_logged_only_if_the_author_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: int
) -> None:
    caplog.set_level(logging.DEBUG)
    libraries = [logging.getLogger(name) for name in ("httpx2", "httpcore2")]
    for library in libraries:
        library.setLevel(wanted)
    try:
        async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
            await client.get("http://example.com/people/Ann?appid=s3cret")
        assert ("s3cret" in caplog.text) == ("Ann" in caplog.text) == (wanted == logging.INFO)
        assert "httpcore2" not in caplog.text
    finally:
        for library in libraries:
            library.setLevel(logging.NOTSET)


@pytest.mark.parametrize("verb", ["post", "put", "patch", "delete", "head"])
async def test_the_verbs_are_those_of_httpx(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        assert (await getattr(client, verb)("http://example.com/x")).status_code == 200
        assert net.heard[0].method == verb.upper()


@pytest.mark.parametrize("named", ["punycode", "idna", "undefined", "zlib", "rot13", "utf-8", "", "x" * 10_000])
async def test_what_a_page_says_of_its_characters_costs_no_more_than_its_length(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    # As punycode, it would take half a minute.
    body = b"a" * 150_000 + b"-" + b"ba" * 75_000

    def page(heard: Heard) -> bytes:
        return answer(body, f"content-type: text/plain; charset={named}")

    async with web(monkeypatch, page, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        response = await client.get("http://example.com/")
        assert response.text == body.decode()


async def test_a_page_is_read_in_its_character_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(heard: Heard) -> bytes:
        return answer(b"gr\xfc\xdfe", "content-type: text/plain; charset=latin-1")

    async with web(monkeypatch, page, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        assert (await client.get("http://example.com/")).text == "grüße"


async def test_a_body_is_sent_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        await client.post("http://example.com/x", json={"a": 1}, headers={"x-key": "k"}, auth=("u", "p"))
        assert net.heard[0].body == b'{"a":1}'
        assert net.heard[0].headers["x-key"] == "k"
        assert net.heard[0].headers["authorization"] == "Basic dTpw"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://example.com\\@127.0.0.1/",
        "file:///etc/passwd",
        "http://[::1]/",
    ],
)
async def test_a_url_that_is_refused_is_not_even_resolved(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    async with web(monkeypatch, hello, {}) as net, GuardedClient(resolver=net.resolve) as client:
        error = await refused(client, url)
        assert error.data["status"] == "rejected"
        assert error.data["reason"] == "URL refused"
        assert error.data["violations"]
        assert error.data["hints"]["allowed_schemes"] == ["http", "https"]
        assert (net.asked, net.dialled) == ([], [])


async def test_a_name_that_leads_inside_is_refused_before_a_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        error = await refused(client, "http://inside.example/")
        assert error.data["violations"] == ["Blocked address: '127.0.0.1' (loopback)"]
        assert net.dialled == []


@pytest.mark.parametrize("inner", ["10.0.0.1", "::1", "::ffff:169.254.169.254", "fe80::1%eth0", "64:ff9b::7f00:1"])
async def test_one_private_address_among_many_refuses_them_all(monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    names = {"example.com": (PUBLIC, OTHER, inner, SIXTH)}
    async with web(monkeypatch, hello, names) as net, GuardedClient(resolver=net.resolve) as client:
        await refused(client, "http://example.com/")
        assert net.dialled == []


async def test_a_name_that_changes_its_address_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"example.com": [(PUBLIC,), ("127.0.0.1",)]}
    async with web(monkeypatch, hello, names) as net, GuardedClient(resolver=net.resolve) as client:
        assert (await client.get("http://example.com/")).status_code == 200
        assert (net.asked, net.dialled) == (["example.com"], [PUBLIC])


async def test_a_name_that_changed_is_refused_on_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(heard: Heard) -> bytes:
        return answer(b"", "connection: close")

    names = {"example.com": [(PUBLIC,), ("127.0.0.1",)]}
    async with web(monkeypatch, once, names) as net, GuardedClient(resolver=net.resolve) as client:
        await client.get("http://example.com/")
        await refused(client, "http://example.com/")
        assert net.dialled == [PUBLIC]


async def test_the_next_address_is_tried_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"example.com": (SIXTH, PUBLIC)}
    async with web(monkeypatch, hello, names) as net, GuardedClient(resolver=net.resolve) as client:
        net.unreachable = {SIXTH}
        assert (await client.get("http://example.com/")).status_code == 200
        assert net.dialled == [SIXTH, PUBLIC]
        net.unreachable = {SIXTH, PUBLIC}
        net.names["other.example"] = (SIXTH, PUBLIC)
        with pytest.raises(httpx2.ConnectError):
            await client.get("http://other.example/")


async def test_an_address_literal_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, hello, {}) as net, GuardedClient(resolver=net.resolve) as client:
        await client.get(f"http://{PUBLIC}/")
        await client.get(f"http://[{SIXTH}]/")
        assert (net.asked, net.dialled) == ([], [PUBLIC, SIXTH])
        assert [heard.headers["host"] for heard in net.heard] == [PUBLIC, f"[{SIXTH}]"]


@pytest.mark.parametrize(
    "there",
    [
        "http://127.0.0.1/",
        "http://inside.example/",
        "//localhost/",
        "http://169.254.169.254/latest/",
        "http://[::ffff:7f00:1]/",
        "http://2130706433/",
        "http://user@other.example/",
        "http://other.example:22/",
        "ftp://other.example/",
        "file:///etc/passwd",
    ],
)
async def test_a_redirect_to_where_nobody_may_go_is_refused(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    async with web(monkeypatch, lambda heard: moved(there), dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            await refused(client, "http://example.com/")
            assert net.dialled == [PUBLIC]
            assert len(net.heard) == 1


async def test_three_redirects_are_followed_and_no_fourth(monkeypatch: pytest.MonkeyPatch) -> None:
    def further(heard: Heard) -> bytes:
        hop = int(heard.path[1:])
        return moved(f"/{hop - 1}") if hop else answer(b"there")

    async with web(monkeypatch, further, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        assert (await client.get("http://example.com/3")).text == "there"
        error = await refused(client, "http://example.com/4")
        assert error.data["reason"] == "Redirect refused"
        assert error.data["violations"] == ["Too many redirects: at most 3"]


async def test_a_redirect_in_circles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, lambda heard: moved("/"), dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            await refused(client, "http://example.com/")
            assert len(net.heard) == 4


async def test_without_redirects_one_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, lambda heard: moved("http://127.0.0.1/"), dict(NAMES)) as net:
        async with GuardedClient(Egress(redirects=0), resolver=net.resolve) as client:
            assert (await client.get("http://example.com/")).status_code == 302


@pytest.mark.parametrize(("there", "told"), [("http://other.example/b", False), ("http://example.com/b", True)])
async def test_credentials_stay_with_the_origin_they_are_for(
    monkeypatch: pytest.MonkeyPatch, there: str, told: bool
) -> None:
    def leads(heard: Heard) -> bytes:
        return moved(there) if heard.path == "/a" else answer()

    async with web(monkeypatch, leads, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        secret = {"x-api-key": "k", "cookie": "c=1", "accept": "text/plain"}
        await client.get("http://example.com/a", headers={"authorization": "Bearer t", **secret})
        await client.get("http://example.com/a", auth=("user", "password"))
        for heard in net.heard[1], net.heard[3]:
            assert ("authorization" in heard.headers) is told
        assert ("x-api-key" in net.heard[1].headers) is told
        assert "cookie" not in net.heard[1].headers
        assert net.heard[1].headers["accept"] == "text/plain"
        assert net.heard[1].headers["host"] == there.split("/")[2]


async def test_no_cookie_of_one_call_is_sent_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, lambda heard: answer(b"", "set-cookie: sid=1; Path=/"), dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            await client.get("http://example.com/")
            await client.get("http://example.com/")
            assert "cookie" not in net.heard[1].headers


SMALL = Egress(max_bytes=1_000)


async def test_a_body_that_says_it_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, lambda heard: answer(b"x" * 1_001), dict(NAMES)) as net:
        async with GuardedClient(SMALL, resolver=net.resolve) as client:
            error = await refused(client, "http://example.com/")
            assert isinstance(error, LimitExceeded)
            assert error.data["limit"] == "max_bytes"
            assert error.data["hints"] == {"max_bytes": 1_000}
            assert (await client.head("http://example.com/")).headers["content-length"] == "1001"


@pytest.mark.parametrize(("length", "fits"), [(1_000, True), (1_001, False)])
async def test_a_body_without_a_length_is_counted(monkeypatch: pytest.MonkeyPatch, length: int, fits: bool) -> None:
    def chunked(heard: Heard) -> bytes:
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (length, b"x" * length)

    async with web(monkeypatch, chunked, dict(NAMES)) as net, GuardedClient(SMALL, resolver=net.resolve) as client:
        if fits:
            assert len((await client.get("http://example.com/")).content) == length
        else:
            assert isinstance(await refused(client, "http://example.com/"), LimitExceeded)


def raw_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


CODINGS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "Deflate": raw_deflate}


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_body_is_read(monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
    text = b"".join(b"%d " % number for number in range(50_000))
    body = answer(CODINGS[coding](text), f"content-encoding: {coding}")
    async with web(monkeypatch, lambda heard: body, dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            headers = {"accept-encoding": "br, zstd"}
            assert (await client.get("http://example.com/", headers=headers)).content == text
            assert net.heard[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.slow
@pytest.mark.parametrize("coding", CODINGS)
async def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
    import tracemalloc

    bomb = answer(CODINGS[coding](bytes(50_000_000)), f"content-encoding: {coding}")
    async with web(monkeypatch, lambda heard: bomb, dict(NAMES)) as net:
        async with GuardedClient(Egress(max_bytes=100_000), resolver=net.resolve) as client:
            tracemalloc.start()
            try:
                assert isinstance(await refused(client, "http://example.com/"), LimitExceeded)
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "zstd"])
async def test_a_coding_that_was_not_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
    async with web(monkeypatch, lambda heard: answer(b"?", f"content-encoding: {coding}"), dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            await refused(client, "http://example.com/")


async def test_a_body_that_is_not_what_it_says_is_an_error_of_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, lambda heard: answer(b"plain", "content-encoding: gzip"), dict(NAMES)) as net:
        async with GuardedClient(resolver=net.resolve) as client:
            with pytest.raises(httpx2.DecodingError):
                await client.get("http://example.com/")


async def test_a_stream_is_read_piece_by_piece_within_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunked(heard: Heard) -> bytes:
        return (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"190\r\n" % ()
            + b"x" * 400
            + b"\r\n"
            + (b"384\r\n" + b"x" * 900 + b"\r\n0\r\n\r\n")
        )

    async with web(monkeypatch, chunked, dict(NAMES)) as net, GuardedClient(SMALL, resolver=net.resolve) as client:
        with pytest.raises(LimitExceeded):
            async with client.stream("GET", "http://example.com/") as response:
                async for _ in response.aiter_bytes():
                    pass


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"])
async def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    never = asyncio.Event()

    class Stalled:
        def __init__(self, heard: Heard) -> None: ...

        def __await__(self) -> Any:
            yield from never.wait().__await__()

    handler: Any = Stalled if not begun else lambda heard: begun
    async with web(monkeypatch, handler, dict(NAMES)) as net:
        async with GuardedClient(Egress(timeout=0.05), resolver=net.resolve) as client:
            error = await refused(client, "http://example.com/")
            assert isinstance(error, LimitExceeded)
            assert error.data["limit"] == "timeout"


async def test_one_deadline_covers_all_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(heard: Heard) -> bytes:
        await asyncio.sleep(0.04)
        return moved("/")

    async with web(monkeypatch, slowly, dict(NAMES)) as net:
        async with GuardedClient(Egress(timeout=0.1, redirects=100), resolver=net.resolve) as client:
            assert isinstance(await refused(client, "http://example.com/"), LimitExceeded)
            assert len(net.heard) <= 4


async def test_a_private_host_is_reached_only_as_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, hello, {"dev.example": ("127.0.0.1",), "localhost": ("127.0.0.1",)}) as net:
        named = Egress(private=[f"127.0.0.1:{net.port}", f"dev.example:{net.port}"])
        async with GuardedClient(named, resolver=net.resolve) as client:
            assert (await client.get(f"http://127.0.0.1:{net.port}/")).status_code == 200
            assert (await client.get(f"http://dev.example:{net.port}/")).status_code == 200
            await refused(client, f"http://localhost:{net.port}/")
            await refused(client, "http://127.0.0.1:8080/")
            await refused(client, "http://dev.example/")


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
async def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    async with web(monkeypatch, hello, dict(NAMES)) as net:
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        async with GuardedClient(resolver=net.resolve) as client:
            assert (await client.get("http://example.com/")).status_code == 200
            assert net.dialled == [PUBLIC]
            assert net.heard[0].path == "/"


async def test_a_proxy_that_the_author_names_gets_the_name_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(monkeypatch, hello, {}) as net:
        through = Egress(proxy=f"http://127.0.0.1:{net.port}")
        async with GuardedClient(through, resolver=net.resolve) as client:
            assert (await client.get("http://example.com/x")).text == "GET http://example.com/x"
            assert net.asked == []
            await refused(client, "http://127.0.0.1/")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of example.com and its key, signed by itself."""
    return self_signed(tmp_path_factory.mktemp("tls"), "example.com")


async def test_tls_asks_for_the_name_and_verifies_it_though_it_connects_to_the_address(
    monkeypatch: pytest.MonkeyPatch, certificate: Path
) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with web(monkeypatch, hello, {**NAMES, "other.example": (PUBLIC,)}, serving) as net:
        async with GuardedClient(resolver=net.resolve, tls=trust) as client:
            assert (await client.get("https://example.com/")).status_code == 200
            assert net.server_name == "example.com"
            assert net.heard[0].headers["host"] == "example.com"
            # The same address: a connection that was verified for one name must not serve another.
            with pytest.raises(httpx2.ConnectError, match="(?i)certificate"):
                await client.get("https://other.example/")
            assert net.dialled == [PUBLIC, PUBLIC]


def test_trusted_certificates_are_read_once_and_again_where_others_are_named(
    monkeypatch: pytest.MonkeyPatch, certificate: Path
) -> None:
    reads = list[str]()
    read = httpcore2.default_ssl_context

    def count_reads() -> ssl.SSLContext:
        reads.append("read")
        return read()

    monkeypatch.setattr(httpcore2, "default_ssl_context", count_reads)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for _ in range(3):
        GuardedClient()
    assert len(reads) == 1
    monkeypatch.setenv("SSL_CERT_DIR", str(certificate.parent))
    GuardedClient()
    assert len(reads) == 2


async def test_a_body_that_is_streamed_out_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    async with web(monkeypatch, hello, dict(NAMES)) as net, GuardedClient(resolver=net.resolve) as client:
        await client.post("http://example.com/", content=parts(), headers={"content-length": "3"})
        assert net.heard[0].body == b"abc"


def test_without_httpx2_the_error_has_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(UsageError, match=r"defserve\[client\]"):
        GuardedClient()
