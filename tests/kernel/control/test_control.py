"""The control socket: who may use it, what it takes, and what it never does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import PeerGone, UsageError
from defserve.kernel import control as control_listener
from defserve.kernel.control import (
    MAX_PEERS,
    MAX_REQUEST_BYTES,
    ask_kernel,
    ask_kernel_async,
    find_socket_paths,
    locate_running_kernel_file,
    make_socket_path,
    open_control_socket,
)
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mgp.toml"
    path.write_text("")
    return path


class FakeKernel:
    """Stands for a kernel: the socket is what is tested."""

    def __init__(self) -> None:
        self.following = 0
        self.stopping, self.may_stop, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_stop.set()

    def status(self) -> dict[str, Any]:
        return {"pid": os.getpid()}

    def ps(self) -> list[dict[str, Any]]:
        return [{"id": "a"}, {"id": "b"}]

    async def logs(self, id: str | None, follow: bool) -> AsyncIterator[dict[str, Any]]:
        yield {"id": id, "text": "hello"}
        self.following += 1
        try:
            if follow:
                await asyncio.Event().wait()
        finally:
            self.following -= 1

    async def restart(self, id: str, now: bool) -> dict[str, Any]:
        raise UsageError(f"there is no server {id!r}", fix="did you mean 'a'?")

    async def start(self, id: str) -> dict[str, Any]:
        return {"id": id}

    async def stop(self, id: str, reason: str = "", timeout: float | None = None) -> dict[str, Any]:
        self.stopping.set()
        await self.may_stop.wait()
        self.stopped.set()
        return {"id": id}

    async def reload(self) -> dict[str, Any]:
        raise UsageError("comand is not a setting", where="mgp.toml:3", fix="did you mean command?")

    async def search(self, query: str, top: int) -> list[dict[str, Any]]:
        return [{"name": query}] * top


def asked(config: Path, **request: Any) -> list[Any]:
    return list(ask_kernel(config, request))


async def left(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def raw(path: Path, content: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(content)
    writer.write_eof() if not content.endswith(b"\n") else None
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await left(writer)


async def test_a_kernel_that_dies_within_an_answer_has_ended(config: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"answer": [1')
        await left(writer)

    async with await asyncio.start_unix_server(answer, make_socket_path(config)):
        with pytest.raises(PeerGone, match="ended before it answered"):
            await asyncio.to_thread(asked, config, verb="ps")
        with pytest.raises(PeerGone, match="ended before it answered"):
            await anext(ask_kernel_async(config, {"verb": "ps"}))


async def test_verbs_are_answered_over_a_socket_that_others_cannot_use(config: Path) -> None:
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert await asyncio.to_thread(asked, config, verb="ps") == [{"id": "a"}, {"id": "b"}]
        assert await asyncio.to_thread(asked, config, verb="search", query="x", top=2) == [{"name": "x"}] * 2
    assert not path.exists()


async def test_a_kernel_is_found_though_its_file_is_gone(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    monkeypatch.delenv("MGP_CONFIG_PATH", raising=False)
    async with open_control_socket(config, FakeKernel()):
        os.unlink(config)
        for given in (None, "mgp.toml", str(config)):
            assert await asyncio.to_thread(locate_running_kernel_file, given) == config
        assert await asyncio.to_thread(locate_running_kernel_file, None, {"MGP_CONFIG_PATH": str(config)}) == config
        assert await asyncio.to_thread(asked, config, verb="status") == [{"pid": os.getpid()}]
    for given in (None, "mgp.toml"):
        with pytest.raises(UsageError):
            locate_running_kernel_file(given)


async def test_a_refusal_arrives_with_its_fix(config: Path) -> None:
    async with open_control_socket(config, FakeKernel()):
        with pytest.raises(UsageError, match="there is no server 'x'") as caught:
            await asyncio.to_thread(asked, config, verb="restart", id="x")
        assert caught.value.fix == "did you mean 'a'?"
        with pytest.raises(UsageError) as caught:
            await asyncio.to_thread(asked, config, verb="reload")
        assert str(caught.value) == "mgp.toml:3: comand is not a setting\n  fix: did you mean command?"


@pytest.mark.parametrize(
    "content",
    [
        b"not json\n",
        b"[]\n",
        b"1\n",
        b"{}\n",
        b'{"verb": "__init__"}\n',
        b'{"verb": ["ps"]}\n',
        b'{"verb": "ps", "more": 1}\n',
        b'{"verb": "stop"}\n',
        b'{"verb": "stop", "id": 1}\n',
        b'{"verb": "logs", "id": {"a": 1}}\n',
        b'{"verb": "search", "query": "x", "top": true}\n',
        b"[" * 50_000 + b"\n",
        b"\xff\xfe\n",
        b"x" * (MAX_REQUEST_BYTES + 2) + b"\n",
    ],
)
async def test_a_request_that_is_not_one_is_refused_and_the_kernel_goes_on(config: Path, content: bytes) -> None:
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is not None
        assert json.loads(await raw(path, content))["error"]["problem"]
        assert json.loads((await raw(path, b'{"verb": "status"}\n')).splitlines()[0]) == {
            "answer": {"pid": os.getpid()}
        }


async def test_another_user_is_told_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is not None
        other = os.getuid() + 1
        monkeypatch.setattr(control_listener, "get_peer_user", lambda one: other)
        assert await raw(path, b'{"verb": "ps"}\n') == b""


async def test_who_follows_logs_and_leaves_is_forgotten(config: Path) -> None:
    kernel = FakeKernel()
    async with open_control_socket(config, kernel) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"verb": "logs", "follow": true}\n')
        assert json.loads(await reader.readline())["answer"]["text"] == "hello"
        await until(lambda: kernel.following == 1)
        await left(writer)
        await until(lambda: kernel.following == 0)


async def test_who_leaves_does_not_end_half_way_what_it_asked_to_be_done(config: Path) -> None:
    kernel = FakeKernel()
    kernel.may_stop.clear()
    async with open_control_socket(config, kernel) as path:
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"verb": "stop", "id": "a"}\n')
        await kernel.stopping.wait()
        await left(writer)
        # Who comes later is served later: the kernel has seen the other one leave.
        assert await asyncio.to_thread(asked, config, verb="ps")
        kernel.may_stop.set()
        async with asyncio.timeout(DEADLINE):
            await kernel.stopped.wait()


async def test_the_number_of_peers_is_bounded(config: Path) -> None:
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is not None
        silent = [await asyncio.open_unix_connection(str(path)) for _ in range(MAX_PEERS)]
        assert b"too many" in await raw(path, b'{"verb": "ps"}\n')
        for _, writer in silent:
            await left(writer)


async def test_a_socket_that_a_killed_kernel_left_is_no_kernel(config: Path) -> None:
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is not None
        left = path.with_name(path.name.replace(f"-{os.getpid()}", f"-{ended_process()}"))
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(left))
        assert set(find_socket_paths(config)) == {os.getpid()}
        assert not left.exists()
    with pytest.raises(PeerGone, match="no kernel serves"):
        asked(config, verb="ps")


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_socket_of_a_kernel_that_does_not_listen_yet_is_left_to_it(config: Path) -> None:
    path = make_socket_path(config)
    with socket.socket(socket.AF_UNIX) as starting:
        starting.bind(str(path))
        assert find_socket_paths(config) == {}
        starting.listen()
        assert find_socket_paths(config) == {os.getpid(): path}
    path.unlink()


async def test_without_a_private_folder_the_kernel_serves_all_the_same(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        control_listener, "make_socket_path", lambda config: (_ for _ in ()).throw(UsageError("no folder"))
    )
    async with open_control_socket(config, FakeKernel()) as path:
        assert path is None
    assert "cannot be operated" in caplog.text


async def test_an_event_loop_asks_as_a_thread_does_and_ends_what_it_does_not_read(config: Path):
    kernel: Any = FakeKernel()
    async with open_control_socket(config, kernel):
        assert [answer async for answer in ask_kernel_async(config, {"verb": "ps"})] == [{"id": "a"}, {"id": "b"}]
        with pytest.raises(UsageError, match="there is no server 'x'") as told:
            [answer async for answer in ask_kernel_async(config, {"verb": "restart", "id": "x"})]
        assert told.value.fix == "did you mean 'a'?"
        lines = ask_kernel_async(config, {"verb": "logs", "follow": True}, os.getpid())
        assert (await anext(lines))["text"] == "hello"
        await until(lambda: kernel.following == 1)
        await lines.aclose()
        await until(lambda: kernel.following == 0)
    with pytest.raises(PeerGone, match="no kernel serves"):
        [answer async for answer in ask_kernel_async(config, {"verb": "ps"})]


@pytest.mark.parametrize("sent", [b"", b'{"answer": 1}\n', b"not JSON\n"])
async def test_a_kernel_that_ends_while_it_answers_is_gone(config: Path, sent: bytes):
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent if await reader.readline() else b"")
        writer.close()

    async with await asyncio.start_unix_server(cut, make_socket_path(config)):
        with pytest.raises(PeerGone, match="ended before it answered|cannot be reached"):
            [answer async for answer in ask_kernel_async(config, {"verb": "ps"})]
