from __future__ import annotations

from typing import Any

from defserve.inspector.recording.recorder import MAX_MESSAGE_SUMMARY_LENGTH, about_answer, summarize_message
from tests.rows import for_each_row


@for_each_row(
    ("message", "words"),
    [
        ({"method": "tools/call", "params": {"name": "add"}}, "add"),
        ({"method": "resources/read", "params": {"uri": "file:///a"}}, "file:///a"),
        ({"method": "elicitation/create", "params": {"message": "How many?"}}, "How many?"),
        (
            {"method": "notifications/progress", "params": {"progress": 1, "total": 3, "message": "North"}},
            "1 of 3, North",
        ),
        ({"method": "notifications/progress", "params": {"progress": 0.5}}, "0.5"),
        ({"method": "notifications/progress", "params": {"progress": None}}, "None"),
        ({"method": "notifications/message", "params": {"level": "info", "data": "warm"}}, "info: warm"),
        ({"method": "notifications/message", "params": {"level": "info", "data": {"message": "x"}}}, "info: x"),
        ({"method": "notifications/message", "params": {"level": "info", "data": {"a": 1, "b": 2}}}, "info: a, b"),
        ({"method": "notifications/message", "params": {"level": "info", "data": 3}}, "info: 3"),
        (
            {
                "method": "notifications/mgp.audit",
                "params": {"event_type": "TOOL_EXECUTED", "target": {"tool_name": "add"}},
            },
            "add TOOL_EXECUTED",
        ),
        ({"method": "notifications/mgp.audit", "params": {"event_type": 3, "target": "add"}}, ""),
        ({"method": "completion/complete", "params": {"ref": {"name": "greet"}}}, "greet"),
        ({"method": "initialize", "params": {"clientInfo": {"name": "a", "version": "1"}}}, "a 1"),
        ({"id": 1, "error": {"code": 1, "message": "no such tool"}}, "no such tool"),
        ({"method": "ping"}, ""),
        ({"method": "x", "params": {"uri": 5}}, ""),
        ({"method": "x", "params": [1]}, ""),
    ],
)
def test_what_a_message_is_about(message: dict[str, Any], words: str):
    assert summarize_message(message) == words


@for_each_row(
    ("method", "result", "words"),
    [
        ("tools/list", {"tools": [{}, {}]}, "2 tools"),
        ("prompts/list", {"prompts": [{}], "nextCursor": "x"}, "1 prompt, and more"),
        ("resources/list", {}, "0 resources"),
        ("initialize", {"serverInfo": {"name": "g", "version": "2"}, "protocolVersion": "v"}, "g 2, v"),
        ("server/discover", {"supportedVersions": ["a", "b"]}, "a, b"),
        ("server/discover", {}, ""),
        ("tools/call", {"content": []}, ""),
    ],
)
def test_what_an_answer_says_about_its_request(method: str, result: dict[str, Any], words: str):
    assert about_answer(method, result) == words


def test_secrets_are_not_told_and_long_texts_are_cut():
    told = summarize_message(
        {"method": "notifications/message", "params": {"level": "debug", "data": "password=hunter2 is set"}}
    )
    assert "hunter2" not in told
    assert len(summarize_message({"method": "x", "params": {"message": "word " * 400}})) == MAX_MESSAGE_SUMMARY_LENGTH
    assert len(summarize_message({"method": "tools/call", "params": {"name": "n" * 400}})) <= MAX_MESSAGE_SUMMARY_LENGTH
