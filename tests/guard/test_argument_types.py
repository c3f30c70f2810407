"""Argument types: a judgement that is part of validation, wherever the type stands."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from defserve import Server, ToolError
from defserve.errors import Rejected
from defserve.guard.argument_types import Code, PublicUrl, Shell, ShellCommand, Url, Within
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict, require_allowed
from defserve.testing import SyncClient
from tests.rows import for_each_row


class Task(BaseModel):
    command: ShellCommand
    seconds: int = 1


def validated(annotation: Any, value: Any) -> Any:
    return TypeAdapter(annotation).validate_python(value)


def rejection(annotation: Any, value: Any) -> Rejected:
    with pytest.raises(Rejected) as found:
        validated(annotation, value)
    return found.value


# -- commands --------------------------------------------------------------------------------------------


def test_a_command_hands_over_its_words():
    command = validated(ShellCommand, "git commit -m 'two words'")
    assert isinstance(command, ShellCommand)
    assert command.argv == ("git", "commit", "-m", "two words")
    assert command.text == str(command) == "git commit -m 'two words'"
    assert repr(command) == "ShellCommand(\"git commit -m 'two words'\")"


def test_a_command_is_no_text_and_cannot_be_changed():
    command = validated(ShellCommand, "ls")
    assert not isinstance(command, str)
    for name in ("text", "argv", "more"):
        with pytest.raises(AttributeError, match="stays as it was judged"):
            setattr(command, name, ("rm",))
    with pytest.raises(AttributeError):
        del command.argv
    with pytest.raises(TypeError):
        command.argv[0] = "rm"


def test_commands_are_equal_when_their_words_are():
    one, other = validated(ShellCommand, "ls -l"), validated(ShellCommand, "ls   '-l'")
    assert one == other
    assert hash(one) == hash(other)
    assert one != validated(ShellCommand, "ls")
    assert one != "ls -l"


@for_each_row("text", ["", " ", "id; id", "echo `id`", "ls > /etc/passwd", "ls\nid", "a\x00b", "'open"])
def test_a_refused_command_ends_validation(text: str):
    error = rejection(ShellCommand, text)
    assert error.guard == "sandbox"
    assert error.data["status"] == "rejected"
    assert error.data["reason"] == "Command refused"
    assert error.data["violations"]


@for_each_row("value", [7, None, True, ["ls"], {"text": "ls"}, 1.5])
def test_what_is_no_text_is_a_mistake_and_not_a_refusal(value: Any):
    for annotation in (ShellCommand, PublicUrl, Annotated[str, Code()], Annotated[Path, Within("/srv")]):
        with pytest.raises(ValidationError):
            validated(annotation, value)


def test_options_say_how_a_command_is_judged():
    listed = Annotated[ShellCommand, Shell(allowed={"git": ["status"]})]
    assert validated(listed, "git status").argv == ("git", "status")
    assert rejection(listed, "git push").guard == "sandbox"
    assert rejection(listed, "ls").data["hints"]["allowed"] == {"git": ["status"]}
    reading = Annotated[ShellCommand, Shell(mode="readonly")]
    assert validated(reading, "ls -l").argv == ("ls", "-l")
    assert rejection(reading, "touch x").guard == "readonly"


def test_a_command_is_judged_inside_lists_models_and_unions():
    assert validated(list[ShellCommand], ["ls", "pwd"])[1].argv == ("pwd",)
    assert rejection(list[ShellCommand], ["ls", "id; id"])
    assert validated(Task, {"command": "ls"}).command.argv == ("ls",)
    assert rejection(Task, {"command": "id; id"})
    assert rejection(dict[str, ShellCommand | int], {"a": "id; id"})
    # Another branch of the union would take it, and is not asked.
    assert rejection(ShellCommand | Literal["id; id"], "id; id")
    assert validated(ShellCommand | None, None) is None


def test_a_command_travels_as_its_text():
    task = validated(Task, {"command": "git   status"})
    assert json.loads(task.model_dump_json()) == {"command": "git   status", "seconds": 1}
    assert TypeAdapter(ShellCommand).json_schema() == {"type": "string"}
    assert TypeAdapter(Annotated[ShellCommand, Shell(mode="readonly")]).json_schema() == {"type": "string"}


def test_a_copy_of_a_command_is_one_that_cannot_be_changed_either():
    command = validated(ShellCommand, "ls -l")
    task = validated(Task, {"command": "ls -l"}).model_copy(deep=True)
    for made in (copy.copy(command), copy.deepcopy(command), task.command):
        assert made == command
        with pytest.raises(AttributeError):
            made.argv = ("rm",)


# -- URLs ------------------------------------------------------------------------------------------------


def test_a_public_url_is_a_text():
    url = validated(PublicUrl, "https://example.com/a?b=c")
    assert isinstance(url, PublicUrl)
    assert url == "https://example.com/a?b=c"
    assert TypeAdapter(PublicUrl).json_schema() == {"type": "string"}


def test_a_url_is_handed_over_as_it_was_understood():
    assert validated(PublicUrl, "HTTPS://EXAMPLE.com/a") == "https://example.com/a"


@for_each_row(
    "text",
    [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://0x7f.1/",
        "ftp://example.com/",
        "javascript:alert(1)",
        "//x",
        "",
        "x",
    ],
)
def test_a_refused_url_ends_validation(text: str):
    error = rejection(PublicUrl, text)
    assert (error.guard, error.data["reason"]) == ("network_restricted", "URL refused")


@for_each_row("hosts", [["1.1.1.1"], {"1.1.1.1"}, "1.1.1.1"])
def test_hosts_may_be_given_as_any_collection_or_as_one(hosts: Any) -> None:
    server = Server("reader")

    async def read(url: PublicUrl) -> str:
        """Read a page."""
        return url

    read.__annotations__["url"] = Annotated[PublicUrl, Url(hosts=hosts, ports=[80], schemes=("http",))]
    server.tool(read)
    with SyncClient(server) as client:
        assert client.call("read", url="http://1.1.1.1/") == "http://1.1.1.1/"
        with pytest.raises(ToolError, match="not on the list"):
            client.call("read", url="http://1.0.0.1/")


def test_options_say_which_urls_are_wanted():
    api = Annotated[PublicUrl, Url(hosts=("api.example.com",), schemes=("https",), ports=(443,))]
    assert validated(api, "https://api.example.com/v1")
    for text in ("https://example.com/", "http://api.example.com/", "https://api.example.com:8443/"):
        assert rejection(api, text)
    opened = Annotated[PublicUrl, Url(private=("127.0.0.1:8000",))]
    assert validated(opened, "http://127.0.0.1:8000/")
    assert rejection(opened, "http://127.0.0.1:8001/")
    assert rejection(opened, "http://localhost:8000/")


def test_options_of_urls_may_be_written_in_capitals():
    wanted = Annotated[PublicUrl, Url(hosts=["API.example.com"], schemes=["HTTPS"])]
    assert validated(wanted, "https://api.example.com/")
    assert rejection(wanted, "http://api.example.com/")
    assert validated(Annotated[PublicUrl, Url(private=["LocalHost:8000"])], "http://localhost:8000/")


# -- paths -----------------------------------------------------------------------------------------------


def test_a_path_stays_below_its_root(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    inside = Annotated[Path, Within(tmp_path)]
    assert validated(inside, "a/b.txt") == tmp_path / "a" / "b.txt"
    assert isinstance(validated(inside, "a"), Path)
    for text in ("../x", "a/../../x", "/etc/passwd", "out/passwd", "a\x00b"):
        assert rejection(inside, text).data["reason"] == "Path refused", text
    assert TypeAdapter(inside).json_schema() == {"type": "string"}


# -- code ------------------------------------------------------------------------------------------------


def test_code_is_handed_over_as_it_was_judged():
    source = "x = 1\r\nresult = x\t# é"
    assert validated(Annotated[str, Code()], source) == source


@for_each_row(
    ("options", "source"),
    [
        ({}, "import os"),
        ({"level": "strict"}, "import decimal\nx = ().__class__"),
        ({"level": "readonly"}, "x = []\nx.append(1)\nopen('a', 'w')"),
        ({"block": ["json"]}, "import json"),
        ({"allow": ["math"]}, "import json"),
        ({"allow": ["os"]}, "import os"),
        ({"max_bytes": 10}, "x = 1234567890"),
        ({}, "def ("),
    ],
)
def test_refused_code_ends_validation(options: Any, source: str):
    error = rejection(Annotated[str, Code(**options)], source)
    assert error.guard == "code_safety"
    assert error.error_type == "code_safety_violation"
    assert error.data["reason"] == "Code validation failed"


# -- all -------------------------------------------------------------------------------------------------


def test_a_verdict_that_allows_is_handed_on_and_another_raises():
    good = Verdict(True)
    assert require_allowed(good, "no", "sandbox") is good
    with pytest.raises(Rejected, match="no: because"):
        require_allowed(make_refused_verdict([Violation("rule", "because")]), "no", "sandbox")


@given(st.text(max_size=200))
def test_whatever_the_text_it_is_taken_or_refused(text: str):
    for annotation in (ShellCommand, PublicUrl, Annotated[Path, Within("/srv")], Annotated[str, Code(level="strict")]):
        try:
            validated(annotation, text)
        except Rejected as error:
            assert error.violations
            json.dumps(error.data)
