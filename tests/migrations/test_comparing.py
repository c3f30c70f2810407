"""The comparison of servers finds what differs, and nothing else."""

from __future__ import annotations

import sys
from typing import Any

from tests.migrations.asking import Answers, Question, StdioPeer, ask_everything, make_questions, make_value, read_lists
from tests.migrations.comparing import compare, simplify_schema
from tests.migrations.servers import PASSED_OVER, SERVERS
from tests.rows import for_each_row

SERVER = """
from defserve import Server
server = Server("shop")

@server.tool
def price(item: str, times: int = 1) -> str:
    return f"{item}: {times}"

@server.resource("shop://open")
def hours() -> str:
    return "always"

server.run()
"""


def test_a_server_is_asked_what_its_lists_suggest() -> None:
    with StdioPeer([sys.executable, "-c", SERVER], {}) as peer:
        lists = read_lists(peer)
        questions = make_questions(lists)
        replies = ask_everything(peer, questions)
    assert [question.title for question in questions] == [
        "call price (what it needs)",
        "call price (everything)",
        "call price (nothing)",
        "call price (a wrong type)",
        "read shop://open",
        "call a tool that is not there",
    ]
    assert replies["call price (everything)"]["result"]["content"][0]["text"] == "word: 1"
    assert all("error" in r or r["result"].get("isError") for q in questions if q.is_wrong for r in [replies[q.title]])
    answers = Answers(lists, replies, {})
    assert list(compare(answers, answers, answers, questions)) == []


def answers(text: str = "a", *, is_error: bool = False, **tool: Any) -> Answers:
    listed = {"name": "t", "description": "d", "inputSchema": {"type": "object"}, **tool}
    reply = {"result": {"content": [{"type": "text", "text": text}], "isError": is_error}}
    return Answers({"tools": [listed], "resources": [], "templates": [], "prompts": []}, {"call t": reply}, {})


@for_each_row(
    "before again after differences",
    [
        (answers(), answers(), answers(), 0),
        (answers(), answers(), answers("b"), 1),
        (answers("1"), answers("2"), answers("3"), 0),
        (answers("1"), answers("2"), answers("3", is_error=True), 1),
        (answers(description="x"), answers(), answers(), 1),
        (answers('{"a": 1}'), answers('{"a": 1}'), answers('{"a":1}'), 0),
        (answers(inputSchema={"properties": {"a": {"type": "string"}}}), answers(), answers(), 1),
    ],
)
def test_differences_are_found(before: Answers, again: Answers, after: Answers, differences: int) -> None:
    assert len(list(compare(before, again, after, [Question("call t", "tools/call", {})]))) == differences


@for_each_row(
    "one other",
    [
        ({"title": "A", "type": "string"}, {"type": "string", "description": "a"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {"type": ["null", "string"]}),
        ({"const": "a", "type": "string"}, {"enum": ["a"]}),
        ({"type": "object", "properties": {}}, {"type": "object"}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}, {"type": "integer"}),
    ],
)
def test_two_ways_to_write_a_schema_are_one(one: Any, other: Any) -> None:
    assert simplify_schema(one) == simplify_schema(other)


@for_each_row(
    "schema value",
    [
        ({"type": "integer", "minimum": 5}, 5),
        ({"enum": ["x", "y"]}, "x"),
        ({"type": "array", "items": {"type": "boolean"}}, [True]),
        ({"anyOf": [{"type": "null"}, {"type": "number", "maximum": 0}]}, 0),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, {"a": "word"}),
    ],
)
def test_values_fit_their_schema(schema: Any, value: Any) -> None:
    assert make_value(schema, {}) == value


def test_there_are_25_servers_of_5_generations() -> None:
    generations = [server.framework.partition(".")[0] for server in SERVERS]
    assert {each: generations.count(each) for each in generations} == dict.fromkeys(
        ["FastMCP 2", "FastMCP 3", "FastMCP 4", "SDK 1", "SDK 2"], 5
    )
    assert not PASSED_OVER.keys() & {server.name for server in SERVERS}
