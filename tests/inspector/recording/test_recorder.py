from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve.inspector.recording.recorder import Bodies, RecordedExchange, RecordedMessage, Recorder
from tests.rows import for_each_row


def sent(recorder: Recorder, **message: Any) -> RecordedMessage:
    return recorder.append("stateless", "sent", json.dumps(message).encode())


def received(recorder: Recorder, **message: Any) -> RecordedMessage:
    return recorder.append("stateless", "received", json.dumps(message).encode())


def test_an_answer_belongs_to_its_request():
    recorder = Recorder()
    asked = sent(recorder, id=1, method="tools/call", params={"name": "add", "arguments": {}})
    notice = received(recorder, method="notifications/progress", params={"progressToken": 1, "progress": 1})
    answer = received(recorder, id=1, result={"content": []})
    assert (asked.kind, asked.about, asked.of) == ("request", "add", answer.seq)
    assert (notice.kind, notice.id) == ("notice", 1)
    assert (answer.kind, answer.method, answer.of, answer.error) == ("answer", "tools/call", asked.seq, None)
    assert answer.ms == asked.ms is not None


def test_the_same_id_in_the_other_direction_or_era_is_another_request():
    recorder = Recorder()
    ours = sent(recorder, id=1, method="tools/call", params={})
    theirs = received(recorder, id=1, method="elicitation/create", params={"message": "How many?"})
    other = recorder.append("handshake", "received", b'{"id": 1, "result": {}}')
    assert (theirs.about, other.of, ours.of) == ("How many?", None, None)
    assert sent(recorder, id=1, result={}).of == theirs.seq


@for_each_row(
    ("reply", "error"),
    [({"error": {"code": -3, "message": "no"}}, -3), ({"result": {"isError": True}}, True), ({"error": "?"}, True)],
)
def test_errors_are_counted_and_marked_on_both_halves(reply: dict[str, Any], error: Any):
    recorder = Recorder()
    asked = sent(recorder, id=1, method="tools/call", params={})
    assert received(recorder, id=1, **reply).error == asked.error == error
    assert recorder.make_status_figures()["errors"] == 1


def test_what_is_no_message_is_kept_too():
    recorder = Recorder()
    assert recorder.append("stateless", "received", b"\xff not JSON").kind == "other"
    assert recorder.describe_message(0)["body"] == "\N{REPLACEMENT CHARACTER} not JSON"


def test_a_message_is_shown_with_secrets_masked_and_its_exchange():
    recorder = Recorder()
    sent(
        recorder,
        id=1,
        method="x",
        params={"password": "hunter2", "_meta": {"progressToken": 5}, "properties": {"token": {"type": "string"}}},
    )
    recorder.attach(
        0,
        RecordedExchange(
            "POST",
            "http://x/mcp?api_key=s3cr3tvalue",
            {"authorization": "Bearer abcdefghijklmnopqrstuvwxyz", "accept": "a"},
            200,
            {"mcp-session-id": "0123456789abcdef0123456789"},
        ),
    )
    shown = recorder.describe_message(0)
    text = json.dumps(shown)
    assert "s3cr3tvalue" not in text and "hunter2" not in text and "abcdefgh" not in text and "456789abcdef" not in text
    assert shown["body"]["params"]["_meta"] == {"progressToken": 5}
    assert shown["body"]["params"]["properties"] == {"token": {"type": "string"}}
    assert shown["exchange"]["headers"]["accept"] == "a" and shown["exchange"]["status"] == 200


anything = st.recursive(
    st.sampled_from([10**400, -(10**4000), 1]) | st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
METHODS = ("notifications/progress", "notifications/message", "notifications/cancelled", "tools/call", "tools/list")
MORE = ("initialize", "server/discover", "x")


def some(names: str) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of these members, each of any type."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names.split(), anything))


parameters = some("progress total message level data name ref uri reason clientInfo progressToken requestId request_id")
results = some("tools nextCursor serverInfo protocolVersion supportedVersions resultType isError content")
asked = st.fixed_dictionaries(
    {"method": st.sampled_from(METHODS + MORE) | anything, "params": parameters | anything}, optional={"id": anything}
)
answered = st.fixed_dictionaries(
    {"id": st.sampled_from((1, *METHODS, *MORE)) | anything},
    optional={"result": results | anything, "error": some("code message") | anything},
)


@pytest.mark.slow
@example([{"method": "notifications/progress", "params": {"progress": 10**400}}], True)
@given(st.lists(asked | answered | anything, max_size=6), st.booleans())
def test_whatever_a_peer_sends_is_recorded_and_goes_on(bodies: list[Any], is_pair: bool):
    recorder = Recorder()
    for method in METHODS + MORE:
        sent(recorder, id=method if is_pair else 1, method=method)
    for place, body in enumerate(bodies, len(METHODS + MORE)):
        entry = recorder.append("stateless", "received", json.dumps(body).encode())
        assert recorder.get_message(place) is entry and recorder.describe_message(place) is not None
    assert recorder.count == len(METHODS + MORE) + len(bodies)


def test_a_number_that_no_float_holds_is_told_and_belongs_to_its_request():
    recorder = Recorder()
    asked = sent(recorder, id=1, method="tools/call", params={"name": "a"})
    params = {"progressToken": 1, "progress": 10**400, "total": -(10**4000)}
    notice = received(recorder, method="notifications/progress", params=params)
    assert notice.about.startswith("1000") and notice.of == asked.seq


def test_what_follows_a_message_cannot_stop_it():
    def fails(*_: object) -> None:
        raise OSError("no space left on device")

    bodies = Bodies()
    bodies.store_body = fails
    recorder, heard = Recorder(bodies), list[RecordedMessage]()
    recorder.subscribe(fails)
    recorder.subscribe(heard.append)
    assert heard == [sent(recorder, id=1, method="ping")]
    recorder.attach(0, RecordedExchange("POST", "http://x/\ud800", {}, 200, {}))
    assert "body" not in recorder.describe_message(0)


def test_the_timeline_is_read_by_number_and_by_time():
    recorder = Recorder()
    for id in range(10):
        sent(recorder, id=id, method="ping")
    assert [entry.seq for entry in recorder.get_messages(3, 6)] == [3, 4, 5]
    assert recorder.get_messages(8, 100)[-1].seq == 9
    assert recorder.get_message(10) is None and recorder.describe_message(10) is None
    assert recorder.find_first_since(recorder.get_messages(4, 5)[0].time) <= 4
    assert recorder.find_first_since(0.0) == 0


def test_the_oldest_messages_are_forgotten_and_numbers_go_on():
    recorder = Recorder(most=100)
    for id in range(250):
        sent(recorder, id=id, method="ping")
    assert recorder.count == 250 and recorder.first >= 100 and recorder.describe_message(0) is None
    assert recorder.get_messages(0, 250)[0].seq == recorder.first
    recorder.clear()
    assert (recorder.first, recorder.count, recorder.get_messages(0, 300)) == (250, 250, [])
    assert sent(recorder, id=1, method="ping").seq == 250


def test_subscribers_hear_each_message_until_they_end_it():
    recorder, heard = Recorder(), list[int]()
    end = recorder.subscribe(lambda entry: heard.append(entry.seq))
    sent(recorder, id=1, method="ping")
    end()
    sent(recorder, id=2, method="ping")
    assert heard == [0]


@pytest.mark.slow
def test_a_hundred_thousand_messages_stay_within_memory():
    import tracemalloc

    body = json.dumps(
        {"id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"x": "y" * 800}}}
    ).encode()
    recorder = Recorder(Bodies(in_memory=4 * 1024 * 1024))
    tracemalloc.start()
    try:
        # A tenth of them: tracing takes long. What one message costs beside its body is the same.
        for _ in range(10_000):
            recorder.append("stateless", "sent", body)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (used - 4 * 1024 * 1024) * 10 < 100 * 1024 * 1024
    assert recorder.describe_message(0)["body"]["params"]["name"] == "add"
    recorder.close()
