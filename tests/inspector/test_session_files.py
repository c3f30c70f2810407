"""Session files: saved from an inspector, opened as a session to look at, and refused if somebody made them to harm."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, safe
from defserve.errors import DefserveError, PeerError, UsageError
from defserve.inspector import session_files
from defserve.inspector.inspection import Inspection
from defserve.inspector.recording.masking import mask_value
from defserve.inspector.session_files import SavedSession, make_session_target, read_session_file
from tests.inspector.beds import BEDS, greenhouse
from tests.inspector.conftest import Inspect, Run

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
ERAS = ("handshake", "stateless")


def shop() -> Server:
    server = Server("shop", "2.1", instructions="Be kind.")

    @server.tool
    @safe
    def price(item: str, api_key: str = "") -> dict[str, Any]:
        """The price of an item."""
        return {"item": item, "price": 3, "token": "s3cr3t-value-of-the-shop"}

    @server.resource("text://hours")
    def hours() -> str:
        return "nine to five"

    return server


async def save(do: Run, inspection: Inspection) -> str:
    """The whole file, as a page fetches it."""
    piece = await do(inspection, "session.save")
    text, stop = piece["text"], piece["stop"]
    while piece["next"] is not None:
        piece = await do(inspection, "session.save", start=piece["next"], stop=stop)
        text += piece["text"]
    return text


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens the bytes or the text of a file; a text is compressed first."""
    sessions: list[SavedSession] = []

    def open_bytes(content: bytes | str) -> SavedSession:
        path = tmp_path / "it.defsession"
        path.write_bytes(gzip.compress(content.encode()) if isinstance(content, str) else content)
        sessions.append(read_session_file(path))
        return sessions[-1]

    yield open_bytes
    for session in sessions:
        session.recorder.close()


@pytest.mark.parametrize("era", ERAS)
async def test_a_saved_session_shows_the_same_messages_tools_and_times(
    inspect: Inspect, do: Run, opened: Any, era: str
):
    async with inspect(shop(), era) as inspection:
        await do(inspection, "tools.call", tool="price", arguments={"item": "tea"})
        text = await save(do, inspection)
        rows = (await do(inspection, "wire.rows"))["rows"]
        tools = (await do(inspection, "tools.list", era=era))["tools"]
    async with Inspection(make_session_target(opened(text))) as saved:
        await saved.client(era)
        assert (await do(saved, "wire.rows"))["rows"] == rows[: saved.recorder.count]
        listed = (await do(saved, "tools.list", era=era))["tools"]
        assert [each["definition"] for each in listed] == [mask_value(each["definition"]) for each in tools]
        call = next(row for row in rows if row["method"] == "tools/call")
        shown = await do(saved, "wire.message", seq=call["seq"])
        assert shown["other"]["body"]["result"]["structuredContent"]["price"] == 3
        assert saved.latencies.describe_era(era)["tools"][0]["tool"] == "price"
        assert saved.hello()["target"]["saved"]["name"] == "it.defsession"


async def test_a_saved_session_has_the_calls_with_their_results_and_waterfalls(inspect: Inspect, do: Run, opened: Any):
    async with inspect(shop(), "stateless") as inspection:
        done = await do(inspection, "tools.call", tool="price", arguments={"item": "tea"})
        with suppress(DefserveError):
            await do(inspection, "tools.call", [], tool="price", arguments={"item": 1})
        text = await save(do, inspection)
    async with Inspection(make_session_target(opened(text))) as saved:
        failed, kept = (await do(saved, "tools.calls"))["calls"]
        assert (kept["tool"], kept["arguments"], kept["state"]) == ("price", {"item": "tea"}, "done")
        assert (failed["arguments"], failed["state"]) == ({"item": 1}, "failed")
        again = await do(saved, "tools.follow", call=kept["number"])
        assert again["result"]["structuredContent"] == mask_value(done["result"]["structuredContent"])
        assert again["waterfall"] == done["waterfall"]


async def test_no_secret_is_written(inspect: Inspect, do: Run):
    async with inspect(shop(), "stateless") as inspection:
        await do(inspection, "tools.call", tool="price", arguments={"item": "tea", "api_key": "hunter2-hunter2"})
        text = await save(do, inspection)
    assert "hunter2" not in text and "s3cr3t" not in text
    assert '"item":"tea"' in text


async def test_a_saved_session_calls_nothing_and_adds_nothing(inspect: Inspect, do: Run, opened: Any):
    async with inspect(shop(), "stateless") as inspection:
        await inspection.client()
        text = await save(do, inspection)
    async with Inspection(make_session_target(opened(text))) as saved:
        before = saved.recorder.count
        with pytest.raises(PeerError, match="saved session") as refused:
            await do(saved, "tools.call", era="stateless", tool="price", arguments={"item": "tea"})
        assert "defserve inspect greenhouse.py --web" in refused.value.data["fix"]
        assert saved.recorder.count == before


async def test_what_was_read_in_the_session_can_be_read_again(inspect: Inspect, do: Run, opened: Any):
    async with inspect(shop(), "stateless") as inspection:
        await do(inspection, "resources.read", uri="text://hours")
        text = await save(do, inspection)
    async with Inspection(make_session_target(opened(text))) as saved:
        client = await saved.client("stateless")
        assert await client.read_text("text://hours") == "nine to five"
        with pytest.raises(PeerError, match="saved session"):
            await client.read_text("text://other")


async def test_an_era_that_was_not_used_is_refused_with_a_way_out(inspect: Inspect, do: Run, opened: Any):
    async with inspect(shop(), "stateless") as inspection:
        await inspection.client()
        text = await save(do, inspection)
    async with Inspection(make_session_target(opened(text))) as saved:
        with pytest.raises(PeerError, match="no definitions of this era"):
            await saved.client("handshake")


@pytest.mark.parametrize("era", ERAS)
async def test_the_tree_of_a_state_is_saved_with_its_contents(inspect: Inspect, do: Run, opened: Any, era: str):
    async with inspect(greenhouse(), era) as inspection:
        client = await inspection.client()
        await client.call("add_bed", name="fern")
        await client.call("add_plant", bed="fern", plant="moss")
        text = await save(do, inspection)
        head = await inspection.states.open_tree(era, BEDS, None).get_head_id()
    async with Inspection(make_session_target(opened(text))) as saved:
        told = await do(saved, "state.sets", era=era)
        beds = next(each for each in told["sets"] if each["name"] == BEDS)
        assert beds["trees"] == [{"owner": None, "kept": 2, "own": True}]
        shown = await do(saved, "state.content", era=era, set=BEDS, b=head)
        assert shown["content"]["beds"]["fern"]["plants"] == ["moss"]
        assert head is not None and await do(saved, "state.changes", era=era, set=BEDS, ids=[head])


async def test_a_server_that_has_left_is_saved_as_the_timeline_knows_it(inspect: Inspect, do: Run, opened: Any):
    async with inspect(shop(), "stateless") as inspection:
        await do(inspection, "tools.list")
        connection = inspection.connection("stateless")
        await connection.aclose()
        text = await save(do, inspection)
    session = opened(text)
    assert [tool["name"] for tool in session.listings["stateless"].tools] == ["price"]
    assert session.listings["stateless"].info["name"] == "shop"


# -- files of strangers. Each is made by hand here.


HEAD: Json = {"defsession": {"version": 1, "maker": "somebody", "time": 1.0, "address": "", "words": []}}
END: Json = {"end": True}
CALL: Json = {
    "seq": 0,
    "time": 1.0,
    "era": "stateless",
    "direction": "sent",
    "kind": "request",
    "method": "tools/call",
    "id": 1,
    "size": 2,
    "body": {"method": "tools/call"},
}
STAGE: Json = {"kind": "function", "title": "add", "depth": 0, "start": 0, "ms": 1}
LISTED: Json = {"era": "stateless", "initialize": {"protocolVersion": "2026-07-28", "capabilities": {"tools": {}}}}


def lines(*records: Any) -> str:
    return "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in records)


def whole(*records: Any) -> str:
    return lines(HEAD, *records, END)


def deep(levels: int) -> str:
    return '{"message": {"body": ' + "[" * levels + "]" * levels + "}}\n"


def message(**changed: Any) -> Json:
    return {"message": CALL | changed}


PACKED = gzip.compress(whole({"message": CALL}).encode())

REFUSED: dict[str, tuple[bytes | str, str, str]] = {
    "nothing": (b"", "its end is missing", "copy the whole file"),
    "a program": (b"\x7fELF" + bytes(100), "not a session file", "that the inspector saved"),
    "other JSON": ('{"name": "shop"}\n', "not a session file", "that the inspector saved"),
    "a page": ("<script>alert(1)</script>\n", "not a session file", "that the inspector saved"),
    "a version to come": (lines({"defsession": {"version": 2}}), "version 2", "newer defserve"),
    "no version": (lines({"defsession": {"version": True}}), "not a session file", "that the inspector saved"),
    "cut between lines": (lines(HEAD, {"message": CALL}), "its end is missing", "copy the whole file"),
    "cut in a line": (lines(HEAD, '{"message": {"seq": 0, "ti'), "not JSON", "copy the whole file"),
    "cut in its compressed data": (PACKED[:-20], "end is missing", "copy the whole file"),
    "damaged in its compressed data": (PACKED[:30] + b"\0\0\0\0" + PACKED[34:], "damaged", "copy the whole file"),
    "something after the end": (whole() + lines({"message": CALL}), "follows its last line", ""),
    "something after the compressed data": (PACKED + b"more", "follows its compressed data", ""),
    "two members of a name": (lines(HEAD, '{"message": {"seq": 0, "seq": 1}}\n', END), "same name", ""),
    "deep": (lines(HEAD, deep(5_000), END), "levels", ""),
    "so deep that a parser gives up": (lines(HEAD, deep(1_000_000), END), "levels", ""),
    "not a number": (lines(HEAD, '{"message": {"time": NaN}}\n', END), "NaN", ""),
    "too large a number": (lines(HEAD, '{"message": {"time": 1e999}}\n', END), "too large", ""),
    "a number of a million digits": (
        lines(HEAD, '{"message": {"id": ' + "9" * 1_000_000 + "}}\n", END),
        "not JSON",
        "",
    ),
    "half a character": (lines(HEAD, '{"message": {"method": "\\ud800"}}\n', END), "not JSON", ""),
    "not UTF-8": (lines(HEAD).encode() + b'{"message": "\xff"}\n', "not JSON", ""),
    "an unknown record": (whole({"script": {}}), "no record 'script'", ""),
    "a record with a bidi name": (whole({"\u202etpircs": {}}), "no record '\\\\u202etpircs'", ""),
    "a record that is a list": (whole({"message": []}), "is an object", ""),
    "two records in a line": (whole({"message": CALL, "end": True}), "one member", ""),
    "a wrong direction": (whole(message(direction="up")), "'direction'", ""),
    "a wrong time": (whole(message(time="now")), "'time'", ""),
    "a time after all times": (whole(message(time=1e18)), "'time'", ""),
    "a wrong id": (whole(message(id=[1])), "'id'", ""),
    "a wrong size": (whole(message(size=-1)), "'size'", ""),
    "a long method": (whole(message(method="m" * 10_000)), "'method'", ""),
    "a waterfall that is none": (whole(message(waterfall="slow")), "a list of stages", ""),
    "a waterfall of too many stages": (whole(message(waterfall={"ms": 1, "stages": [STAGE] * 201})), "200 stages", ""),
    "a stage of no kind": (whole(message(waterfall={"ms": 1, "stages": [STAGE | {"kind": "x y"}]})), "one of", ""),
    "a stage with a long title": (
        whole(message(waterfall={"ms": 1, "stages": [STAGE | {"title": "t" * 81}]})),
        "80 characters",
        "",
    ),
    "a stage after its call": (whole(message(waterfall={"ms": 1, "stages": [STAGE | {"ms": 5}]})), "ends after", ""),
    "a stage that is endless": (whole(message(waterfall={"ms": 1, "stages": [STAGE | {"ms": 1e300}]})), "'ms'", ""),
    "an exchange after all times": (whole(message(exchange={"at": 1e18})), "'at'", ""),
    "headers that are none": (whole(message(exchange={"headers": {"a": 1}})), "'headers'", ""),
    "tools that are none": (whole({"definitions": LISTED | {"tools": ["add"]}}), "'tools'", ""),
    "a server without a name": (
        whole({"definitions": LISTED | {"initialize": {"serverInfo": "shop"}}}),
        "'serverInfo'",
        "",
    ),
    "a checkpoint without a tree": (whole({"checkpoint": {"id": "a", "time": 1}}), "before its tree", ""),
    "a checkpoint twice": (
        whole({"tree": {"era": "stateless", "set": "s"}}, *[{"checkpoint": {"id": "a", "time": 1}}] * 2),
        "same id",
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_wrong_is_refused_with_its_reason(name: str, opened: Any):
    content, why, way = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        opened(content)
    assert why in str(refused.value)
    assert "it.defsession" in str(refused.value) and way in refused.value.fix
    assert refused.value.fix


def bomb(size: int, beginning: bytes) -> bytes:
    """Zeros that take a thousandth of their size."""
    packer = zlib.compressobj(9, wbits=31)
    zeros = b"0" * (1024 * 1024)
    return b"".join(
        [packer.compress(beginning), *(packer.compress(zeros) for _ in range(size // len(zeros))), packer.flush()]
    )


def test_a_compressed_bomb_is_not_unpacked(opened: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="a line has more than"):
        opened(bomb(64 * 1024 * 1024, lines(HEAD).encode()))
    monkeypatch.setattr(session_files, "MAX_BYTES", 1024 * 1024)
    with pytest.raises(UsageError, match="unpacks to more than"):
        opened(whole(*[message(body="a" * 1000)] * 2_000))


def test_a_file_that_claims_gigabytes_is_not_read(tmp_path: Path):
    path = tmp_path / "large.defsession"
    with path.open("wb") as file:
        file.truncate(8 * 1024**3)  # sparse: it takes no room
    with pytest.raises(UsageError, match="8,589,934,592 bytes"):
        read_session_file(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.defsession")
    for name in ("pipe.defsession", "."):
        with pytest.raises(UsageError, match="not a file"):
            read_session_file(tmp_path / name)
    with pytest.raises(UsageError, match="no such file"):
        read_session_file(tmp_path / "none.defsession")


@pytest.mark.parametrize(
    ("most", "records"),
    [
        ("MAX_LINES", [message()] * 20),
        ("MAX_ENTRIES", [message()] * 20),
        ("MAX_TREES", [{"tree": {"era": "stateless", "set": "s"}}] * 20),
        (
            "MAX_CHECKPOINTS",
            [
                {"tree": {"era": "stateless", "set": "s"}},
                *({"checkpoint": {"id": str(n), "time": 1}} for n in range(20)),
            ],
        ),
        (
            "MAX_CONTENT_BYTES",
            [{"tree": {"era": "stateless", "set": "s"}}, {"checkpoint": {"id": "a", "time": 1, "content": "a" * 20}}],
        ),
    ],
)
def test_there_is_a_limit_for_everything_that_can_be_many(
    most: str, records: list[Json], opened: Any, monkeypatch: pytest.MonkeyPatch
):
    assert opened(whole(*records)).name == "it.defsession"
    monkeypatch.setattr(session_files, most, 10)
    with pytest.raises(UsageError, match="more than 10"):
        opened(whole(*records))


async def test_what_a_file_says_of_other_messages_is_believed_only_where_it_can_be_true(opened: Any):
    session = opened(
        whole(
            message(seq=7, of=99),
            message(seq=8, kind="answer", direction="received", of=7, ms=5, error=-32000, time=0.5),
            message(seq=9, kind="answer", direction="received", of=12_345),
            message(seq=10, kind="notice", of=8),
        )
    )
    asked, answer, lone, notice = session.recorder.get_messages(0, 4)
    assert (asked.seq, asked.of, answer.of) == (0, 1, 0)
    assert lone.of is None and notice.of is None
    assert answer.time == asked.time  # time does not run backwards
    assert session.recorder.errors == 1


async def test_scripts_and_hidden_characters_stay_text(opened: Any, do: Run):
    nasty = "<img src=x onerror=alert(1)>\u202e\x1b[2J\0"
    session = opened(
        whole(
            {"definitions": LISTED | {"tools": [{"name": nasty, "inputSchema": {}}]}},
            message(
                about=nasty,
                body={"params": {"name": nasty}},
                waterfall={"ms": 1, "stages": [STAGE | {"title": nasty}], "note": nasty},
            ),
        )
    )
    async with Inspection(make_session_target(session)) as saved:
        assert (await do(saved, "tools.list", era="stateless"))["tools"][0]["name"] == nasty
        shown = await do(saved, "wire.message", seq=0)
        assert shown["waterfall"]["stages"][0]["title"] == nasty
        # As it is for a server: the page escapes texts, and what is masked is escaped here already.
        assert "\x1b" not in json.dumps(shown["body"], ensure_ascii=False)
