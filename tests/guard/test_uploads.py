"""Uploads: what a caller sends for a file, judged; and its bytes, read in pieces from text or from a link."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from defserve import Server, ToolError, UsageError, dangerous
from defserve.errors import Rejected
from defserve.guard import Egress, FileTypes, Upload, paths
from defserve.guard import network as egress
from defserve.guard.uploads import MAX_CHUNK_BYTES, sanitize_name
from defserve.testing import SyncClient
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
GIF = b"GIF89a" + bytes(20)
PDF = b"%PDF-1.7\n" + b"x" * 100
Picture = Annotated[Upload, FileTypes("image/*", max_size=1_000)]


def encode(data: bytes) -> str:
    return b64encode(data).decode()


def data_uri(data: bytes, kind: str = "image/png", *parameters: str) -> str:
    return ";".join((f"data:{kind}", *parameters, f"base64,{encode(data)}"))


def validated(value: Any, annotation: Any = Picture) -> Any:
    return TypeAdapter(annotation).validate_python(value)


# -- a server with a tool that takes a picture, and a place on this machine that links lead to


class Place:
    """Answers each connection with what `send` writes."""

    def __init__(self, send: Callable[[asyncio.StreamWriter], Any]) -> None:
        self.send, self.authority, self.asked = send, "", 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            await self.send(writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def link(self, **more: Any) -> dict[str, Any]:
        return {"download_url": f"http://{self.authority}/file?sig=1", "file_id": "file_1", **more}


@asynccontextmanager
async def place(send: Callable[[asyncio.StreamWriter], Any]) -> AsyncGenerator[Place]:
    there = Place(send)
    listening = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    there.authority = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield there
    finally:
        listening.close()


def answering(body: bytes, *lines: str, status: str = "200 OK", length: int | None = None) -> Callable[..., Any]:
    async def send(writer: asyncio.StreamWriter) -> None:
        head = (f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *lines)
        writer.write("".join(f"{line}\r\n" for line in head).encode() + b"\r\n" + body)

    return send


async def send_endlessly(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + PNG)
    while True:
        writer.write(bytes(10_000))
        await writer.drain()


async def send_never(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + PNG)
    await writer.drain()
    await asyncio.Event().wait()


def make_server(*private: str, timeout: float = 20.0) -> tuple[Server, list[str]]:
    server, begun = Server("pictures", egress=Egress(private=private, timeout=timeout)), list[str]()

    @server.tool
    async def measure(picture: Picture) -> str:
        """Measure a picture."""
        begun.append(picture.name)
        length = len(await picture.read())
        return f"{picture.name} {picture.media_type} {picture.size} {length}"

    return server, begun


async def refusal(server: Server, picture: Any) -> str:
    async with server.connect() as client:
        with pytest.raises(ToolError) as found:
            await client.call("measure", picture=picture)
    return str(found.value)


# -- what is accepted


@for_each_row(
    ("value", "told"),
    [
        (encode(PNG), "upload image/png 108 108"),
        (data_uri(PNG), "upload image/png 108 108"),
        (data_uri(PNG, "IMAGE/PNG", "name=my%20cat.png"), "my cat.png image/png 108 108"),
        (data_uri(PNG, ""), "upload image/png 108 108"),
        (data_uri(GIF, "image/png"), "upload image/gif 26 26"),
    ],
)
async def test_a_file_in_the_argument_is_read(value: str, told: str) -> None:
    server, _ = make_server()
    async with server.connect() as client:
        assert await client.call("measure", picture=value) == told


async def test_a_link_is_fetched_when_the_tool_reads_it() -> None:
    async with place(answering(PNG)) as there:
        server, _ = make_server(there.authority)
        async with server.connect() as client:
            told = await client.call("measure", picture=there.link(file_name="a/b/cat.png", mime_type="image/png"))
            assert told == "cat.png image/png 108 108"
            assert there.asked == 1
            told = await client.call(
                "measure", picture=there.link(file_name=None, thumbnail="unknown members are fine")
            )
            assert told == "upload image/png 108 108"


async def test_a_list_of_files_and_a_file_that_may_be_left_out() -> None:
    server = Server("pictures")

    @server.tool
    async def sizes(pictures: list[Picture], notes: Annotated[Upload, FileTypes("text/*")] | None = None) -> str:
        """Tell sizes."""
        read = [len(await one.read()) for one in pictures]
        return f"{read} {notes.media_type if notes else None}"

    async with server.connect() as client:
        assert await client.call("sizes", pictures=[encode(PNG), encode(GIF)]) == "[108, 26] None"
        assert await client.call("sizes", pictures=[], notes=encode(b"hello")) == "[] text/plain"


async def test_a_call_has_a_hundred_files_at_most() -> None:
    server = Server("pictures")

    @server.tool
    async def count(pictures: list[Picture]) -> int:
        """Count pictures."""
        return len(pictures)

    async with server.connect() as client:
        assert await client.call("count", pictures=[encode(GIF)] * 100) == 100
        with pytest.raises(ToolError, match="more than 100 in one call"):
            await client.call("count", pictures=[encode(GIF)] * 101)


@for_each_row(
    ("kind", "declared", "name", "data", "media_type"),
    [
        ("text/csv", None, "a.csv", b"MZ,1\n", "text/csv"),
        ("text/*", "text/markdown", "", b"<html>", "text/markdown"),
        ("application/*", "application/epub+zip", "", b"PK\x03\x04zip", "application/epub+zip"),
        ("image/jpeg", "image/jpg", "", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("image/svg+xml", None, "", b"<?xml version='1.0'?><!-- a --><svg/>", "image/svg+xml"),
        ("*/*", None, "", b"\0\1\2", "application/octet-stream"),
        ("application/pdf", "application/octet-stream", "", PDF, "application/pdf"),
        ("text/plain", "text/plain", "", "ä".encode("utf-16"), "text/plain"),
    ],
)
def test_the_media_type_is_what_the_bytes_say(
    kind: str, declared: str | None, name: str, data: bytes, media_type: str
) -> None:
    uri = data_uri(data, declared or "", *([f"name={name}"] if name else []))
    assert validated(uri, Annotated[Upload, FileTypes(kind)]).media_type == media_type


async def test_a_large_file_in_an_argument_comes_in_pieces() -> None:
    data = bytes(range(256)) * 1_000
    upload = validated(encode(data), Upload)
    pieces = [piece async for piece in upload]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= MAX_CHUNK_BYTES
    with pytest.raises(Rejected, match="larger than 1000 bytes"):
        await upload.read(1_000)


# -- twenty hostile uploads: none reaches the tool


@for_each_row(
    ("value", "told"),
    [
        (encode(PDF), "it is application/pdf. Try a file of the type image/*"),
        (data_uri(PDF, "image/png"), "it is application/pdf"),
        (data_uri(b"<html><script>", "image/png"), "it is text/html"),
        (data_uri(b"\x7fELF" + bytes(20), "image/png"), "it is application/x-elf"),
        (data_uri(b"just text", "image/png"), "it says image/png, but its bytes are something else"),
        (data_uri(b"just text", "text/plain"), "it is text/plain"),
        (encode(PNG + bytes(1_000)), "larger than 1000 bytes"),
        ("", "it is empty"),
        (data_uri(b""), "it is empty"),
        (encode(PNG)[:-1], "not base64"),
        (encode(PNG).replace("A", "-", 1), "not base64"),
        (encode(PNG)[:8] + "\n" + encode(PNG)[9:], "not base64"),
        (encode(PNG)[:4] + "====" + encode(PNG)[8:], "not base64"),
        ("data:image/png," + encode(PNG), "without base64"),
        ("data:image/png;base64" + "x" * 2_000, "no comma"),
        ("data:image/png\r\nx;base64," + encode(PNG), "media type that is none"),
        ("data:;base64;charset=x," + encode(PNG), "without base64"),
        ("file:///etc/passwd", "not base64"),
        ("https://example.com/cat.png", "not base64"),
        (7, "is not a file"),
        ({"download_url": "https://127.0.0.1/", "file_id": "1"}, "Blocked address: '127.0.0.1' (loopback)"),
        ({"download_url": "https://[::ffff:10.0.0.1]/", "file_id": "1"}, "Blocked address"),
        ({"download_url": "https://169.254.169.254/latest", "file_id": "1"}, "Blocked address"),
        ({"download_url": "https://2130706433/", "file_id": "1"}, "refused"),
        ({"download_url": "https://localhost/", "file_id": "1"}, "refused"),
        ({"download_url": "http://example.com/", "file_id": "1"}, "Blocked scheme: 'http'"),
        ({"download_url": "file:///etc/passwd", "file_id": "1"}, "Blocked scheme"),
        ({"download_url": "https://u:p@example.com/", "file_id": "1"}, "refused"),
        ({"download_url": "https://example.com/" + "x" * 9_000, "file_id": "1"}, "download_url must be a text"),
        ({"download_url": "https://example.com/"}, "file_id must be a text"),
        ({"download_url": ["https://example.com/"], "file_id": "1"}, "download_url must be a text"),
        ({"download_url": "https://example.com/", "file_id": "1", "mime_type": "text/html"}, "it is text/html"),
        ({"download_url": "https://example.com/", "file_id": "1", "mime_type": "png"}, "media type that is none"),
    ],
)
async def test_a_hostile_upload_is_refused_before_the_tool_runs(value: Any, told: str) -> None:
    server, begun = make_server("127.0.0.1:9")
    assert told in await refusal(server, value)
    assert begun == []


@for_each_row(
    ("send", "told"),
    [
        (answering(b"", "location: https://example.com/", status="302 Found"), "302 (redirects are not followed)"),
        (answering(b"", "location: http://127.0.0.1:1/", status="307 Moved"), "307 (redirects are not followed)"),
        (answering(b"gone", status="404 Not Found"), "answered 404. Try a link that is still valid"),
        (answering(PNG, length=5_000), "larger than 1000 bytes"),
        (answering(PNG, length=500), "cannot be read"),
        (send_endlessly, "larger than 1000 bytes"),
        (answering(PDF, "content-type: image/png"), "it is application/pdf"),
        (answering(b"<html>sign in</html>"), "it is text/html"),
        (answering(b"text"), "says image/png, but its bytes are something else"),
        (answering(b""), "it is empty"),
        (answering(PNG, "content-encoding: br"), "Content-Encoding"),
    ],
)
async def test_a_hostile_link_is_refused_while_it_is_read(send: Callable[..., Any], told: str) -> None:
    async with place(send) as there:
        server, _ = make_server(there.authority)
        assert told in await refusal(server, there.link(mime_type="image/png"))
        assert there.asked == 1


@for_each_row("url", ["http://files.test/1", "http://FILES.test:80/1", "http://files.test"])
async def test_a_link_without_tls_may_name_a_private_host_in_any_form(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.7"]

    monkeypatch.setattr(egress, "resolve_with_system", resolve)
    upload = validated({"download_url": url, "file_id": "1"})
    await upload.judge_link(Egress(private=["files.test:80"]))
    with pytest.raises(Rejected):
        await upload.judge_link(Egress(private=["files.test:8080"]))


@pytest.mark.parametrize(("answers", "begins"), [(["10.0.0.7"], 0), (["8.8.8.8", "10.0.0.7"], 1)])
async def test_a_name_that_leads_to_a_private_address_is_refused_at_each_look(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], begins: int
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return [answers.pop(0)]

    monkeypatch.setattr(egress, "resolve_with_system", resolve)
    server, begun = make_server()
    told = await refusal(server, {"download_url": "https://files.example.com/1", "file_id": "1"})
    assert "Blocked address: '10.0.0.7'" in told
    assert (answers, len(begun)) == ([], begins)


async def test_a_link_that_never_ends_is_given_up() -> None:
    async with place(send_never) as there:
        server, _ = make_server(there.authority, timeout=0.3)
        assert "not downloaded in time" in await refusal(server, there.link())


async def test_a_host_outside_the_rules_of_the_server_is_refused() -> None:
    server = Server("pictures", egress=Egress(hosts=["files.example.com"]))

    @server.tool
    async def measure(picture: Picture) -> int:
        """Measure a picture."""
        return len(await picture.read())

    told = await refusal(server, {"download_url": "https://other.example.org/", "file_id": "1"})
    assert "File refused" in told
    assert "files.example.com" in told


def test_many_comments_before_a_tag_cost_no_time() -> None:
    begun = time.process_time()
    assert validated(encode(b"<!---->" * 10_000), Upload).media_type == "text/plain"
    assert time.process_time() - begun < 1


@given(st.one_of(st.text(), st.dictionaries(st.text(), st.text()), st.binary().map(encode), st.none(), st.integers()))
def test_whatever_is_sent_is_a_file_or_refused(value: Any) -> None:
    try:
        assert isinstance(validated(value), Upload)
    except (Rejected, ValidationError):
        pass


@for_each_row("kind", ["image/jpg", "IMAGE/PJPEG", "image/jpeg"])
def test_a_type_is_accepted_by_each_of_its_names(kind: str) -> None:
    photo = Annotated[Upload, FileTypes(kind)]
    assert validated(encode(b"\xff\xd8\xff" + bytes(20)), photo).media_type == "image/jpeg"
    assert validated(data_uri(b"\xff\xd8\xff" + bytes(20), "image/jpg"), photo).media_type == "image/jpeg"


# -- names


@for_each_row(
    ("given", "name"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\system.ini", "system.ini"),
        ("..", "upload"),
        (".bashrc", "bashrc"),
        ("nul.txt", "_nul.txt"),
        ("a\0b\r\n.png", "ab.png"),
        ("cod\u202egnp.exe", "codgnp.exe"),
        ("\uff0e\uff0e\uff0fx", "x"),
        ("-rf", "rf"),
        ("$(id);`x`.png", "_(id)__x_.png"),
        ("x" * 500 + ".png", "x" * 116 + ".png"),
        ("größe.png", "größe.png"),
        (None, "upload"),
        ("con .txt", "_con .txt"),
        ("a\u2028b.png", "a b.png"),
        ("a\u3164\ufe0f.png", "a.png"),
        ("x" * 119 + " y" * 9, "x" * 119),
        ("\u4e2d" * 120 + ".txt", "\u4e2d" * 78 + ".txt"),
    ],
)
def test_a_name_is_safe_on_every_system(given: str | None, name: str) -> None:
    assert sanitize_name(given) == name


@given(st.text("con. 1\\/:~%-\u00b9\u2024\uff0e\u1680\u2028\u200b\u3164\ufe0f\u0301\ud800\u4e2d\U0001f600"))
def test_a_safe_name_is_a_path_that_is_allowed(given: str) -> None:
    name = sanitize_name(given)
    assert paths.judge(name, "/srv").allowed and "/" not in name and name == name.strip(". ")


# -- what is published


async def test_one_declaration_is_published_in_the_form_of_each_client() -> None:
    server, _ = make_server()
    async with server.connect() as client:
        (tool,) = (await client.request("tools/list"))["tools"]
    picture = tool["inputSchema"]["properties"]["picture"]
    text, link = picture["anyOf"]
    assert text == {"type": "string", "contentEncoding": "base64"}
    assert set(link["properties"]) == {"download_url", "file_id", "mime_type", "file_name"}
    assert link["required"] == ["download_url", "file_id"]
    assert picture["x-mcp-file"] == {"accept": ["image/*"], "maxSize": 1_000}
    assert tool["_meta"]["openai/fileParams"] == ["picture"]
    assert "annotations" not in tool, "a file tells nothing about what the tool does with it"


def test_a_tool_without_async_cannot_take_a_file() -> None:
    server = Server("pictures")

    with pytest.raises(UsageError, match="only async code can read"):

        @server.tool
        def measure(picture: Picture) -> int:  # pyright: ignore[reportUnusedFunction]
            """Measure a picture."""
            return 1


@for_each_row("kind", ["png", "image/", "*/png", "image/png; q=1", ".png"])
def test_what_is_no_media_type_cannot_be_accepted(kind: str) -> None:
    with pytest.raises(UsageError, match="is no media type"):
        FileTypes(kind)


def test_a_person_who_is_asked_sees_the_name_and_not_the_bytes() -> None:
    server = Server("pictures", confirm="always")

    @server.tool
    @dangerous
    async def replace_logo(picture: Picture) -> str:  # pyright: ignore[reportUnusedFunction]
        """Replace the logo."""
        return picture.name

    asked: list[str] = []

    def answer(message: str, *_: Any) -> bool:
        asked.append(message)
        return True

    with SyncClient(server) as client:
        client.will_answer(answer)
        assert client.call("replace_logo", picture=data_uri(PNG, "image/png", "name=logo.png")) == "logo.png"
    assert "logo.png" in asked[0]
    assert encode(PNG)[:20] not in asked[0]


# -- memory


@pytest.mark.slow
async def test_memory_stays_flat_while_a_file_of_100_mb_is_streamed() -> None:
    import tracemalloc

    pieces, piece = 1_600, bytes(65_536)

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {pieces * len(piece)}\r\n\r\n".encode())
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()

    async with place(send) as there:
        server = Server("films", egress=Egress(private=[there.authority], timeout=300))

        @server.tool
        async def count(film: Annotated[Upload, FileTypes(max_size=200_000_000)]) -> int:
            """Count bytes."""
            total = 0
            async for chunk in film:
                assert len(chunk) <= MAX_CHUNK_BYTES
                total += len(chunk)
            return total

        async with server.connect() as client:
            tracemalloc.start()
            try:
                assert await client.call("count", film=there.link()) == pieces * len(piece)
                assert tracemalloc.get_traced_memory()[1] < 10_000_000
            finally:
                tracemalloc.stop()
