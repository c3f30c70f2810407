"""Servers that a question they do not know stops: they are started again, and asked differently from then on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.client import Client, eras
from defserve.client.eras import MAX_FILE_BYTES, MAX_SERVERS, REMEMBERED_SECONDS, SILENT_SERVERS, SilentServers
from defserve.client.links.stdio import ProcessLink
from defserve.errors import PeerGone, PeerTimeout
from tests.waiting import until

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "plain_server.py"


@pytest.fixture(autouse=True)
def forgets() -> Iterator[None]:
    SILENT_SERVERS.clear()
    yield
    SILENT_SERVERS.clear()


class Plain:
    """The plain server, and how often it was started."""

    def __init__(self, folder: Path, how: str, *changes: str) -> None:
        self._count = folder / "count"
        self.arguments = [str(SERVER), str(self._count), how, *changes]

    @property
    def starts(self) -> int:
        return self._count.read_text().count("started")

    async def open(self, **options: object) -> Client:
        before = self.starts if self._count.exists() else 0
        link = await ProcessLink.spawn(sys.executable, self.arguments, grace=0.1)
        await until(lambda: self._count.exists() and self.starts > before)
        return Client(link, **options)  # type: ignore[arg-type]


# Its limit is a minute; a test that waits for it fails by its own.
@pytest.mark.timeout(55)
@pytest.mark.parametrize("how", ["stuck", "closes", "closes-both", "exits"])
async def test_a_server_that_the_probe_stops_is_started_again_and_the_next_time_not_probed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only of one that is stuck it must pass.
    monkeypatch.setattr(eras, "PROBE_SECONDS", 0.3 if how == "stuck" else 3.0)
    plain = Plain(tmp_path, how)
    async with await plain.open() as client:
        assert client.version == "2025-06-18" and [tool["name"] for tool in await client.tools()] == ["add"]
    assert plain.starts == 2
    async with await plain.open() as client:
        assert await client.call("add") == "done"
    assert plain.starts == 3, "the second time it is not asked what it does not know"


@pytest.mark.timeout(55)
async def test_a_server_that_only_ignores_the_probe_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eras, "PROBE_SECONDS", 3.0)
    plain = Plain(tmp_path, "deaf")
    async with await plain.open() as client:
        assert client.version == "2025-06-18"
    assert plain.starts == 1
    monkeypatch.setattr(eras, "PROBE_SECONDS", 3600.0)
    async with await plain.open() as client:  # and is not waited for again
        assert client.version == "2025-06-18"


@pytest.mark.timeout(55)
async def test_who_asks_for_the_other_era_of_a_silent_server_is_told_at_once(tmp_path: Path) -> None:
    plain = Plain(tmp_path, "stuck")
    SILENT_SERVERS.add(await ProcessLinkTarget.of(plain))
    with pytest.raises(PeerTimeout, match="silent at server/discover"):
        async with await plain.open(version="stateless"):
            pass


class ProcessLinkTarget:
    @staticmethod
    async def of(plain: Plain) -> str:
        link = await ProcessLink.spawn(sys.executable, plain.arguments, grace=0.1)
        try:
            return link.target
        finally:
            await link.aclose()


@pytest.mark.timeout(55)
async def test_a_server_that_is_silent_at_initialize_too_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eras, "PROBE_SECONDS", 0.2)
    (tmp_path / "mute.py").write_text("import time\nwhile True: time.sleep(3600)\n")
    link = await ProcessLink.spawn(sys.executable, [str(tmp_path / "mute.py")], grace=0.1)
    with pytest.raises((PeerTimeout, PeerGone), match="initialize"):
        async with Client(link, timeout=0.5):
            pass
    assert not SILENT_SERVERS.is_silent(link.target)


def test_what_is_remembered_is_a_digest_for_some_days_and_of_so_many(tmp_path: Path) -> None:
    now = [1_000_000.0]
    file = tmp_path / "cache" / "silent.json"
    first = SilentServers(lambda: now[0])
    first.remember_in_file(str(file))
    first.add("npx server --token secret")
    assert "secret" not in file.read_text()
    second = SilentServers(lambda: now[0])
    second.remember_in_file(str(file))
    assert (
        second.is_silent("npx server --token secret")
        and not second.is_silent("npx server")
        and not second.is_silent("")
    )
    now[0] += REMEMBERED_SECONDS + 1
    assert not second.is_silent("npx server --token secret")
    for number in range(MAX_SERVERS + 20):
        now[0] += 1
        second.add(f"server {number}")
    assert not second.is_silent("server 0") and second.is_silent(f"server {MAX_SERVERS + 19}")
    assert file.stat().st_size < MAX_FILE_BYTES


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"x": 1}',
        '{"%s": "soon"}' % ("a" * 32),
        f'{{"{"a" * 32}": {"9" * 400}}}',
        '{"%s": NaN}' % ("a" * 32),
        "\0" * 100,
        "[" * 90_000,
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(content: str, tmp_path: Path) -> None:
    file = tmp_path / "silent.json"
    file.write_text(content)
    servers = SilentServers()
    servers.remember_in_file(str(file))
    assert not servers.is_silent("a")
    servers.add("a")
    again = SilentServers()
    again.remember_in_file(str(file))
    assert again.is_silent("a")


def test_a_folder_that_cannot_be_written_is_no_error() -> None:
    servers = SilentServers()
    servers.remember_in_file("/proc/nowhere/silent.json")
    servers.add("a")
    assert servers.is_silent("a")


def test_a_command_with_bytes_that_are_no_text_can_be_remembered() -> None:
    servers = SilentServers()
    servers.add("caf\udce9")
    assert servers.is_silent("caf\udce9") and not servers.is_silent("caf\udce8")
