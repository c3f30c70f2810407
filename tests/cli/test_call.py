from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, UsageError
from defserve.cli.commands.call import (
    find_misnamed_arguments,
    parse_typed_arguments,
    render_waterfall,
    unknown_tool,
)
from defserve.cli.target_connection import MORE, shorten_traceback
from defserve.cli.terminal_answers import PreparedAnswers, make_terminal_answers
from defserve.client.answers import maybe_await
from defserve.client.targets import INSTALLED_CODE_FOLDERS, PACKAGE_FOLDER
from defserve.inspector.waterfalls import Waterfall, WaterfallStage
from tests.cli.running import Run
from tests.rows import for_each_row

pytestmark = pytest.mark.usefixtures("forked")

CALCULATOR = str(Path(__file__).parents[1] / "testing" / "calculator.py")


@pytest.mark.parametrize(
    "arguments",
    [["a:=1", "b:=2"], ["--json", '{"a": 1, "b": 2}'], ["b:=2", "--json", '{"a": 1, "b": 7}'], ["--era", "handshake"]],
)
def test_the_result_is_printed(defserve: Run, arguments: list[str]):
    if arguments[0] == "--era":
        arguments = [*arguments, "a:=1", "b:=2"]
    code, out, err = defserve("call", "tests.testing.toy", "add", *arguments)
    assert (code, out) == (0, "3\n")
    assert err == "Calling add: 1\ninfo    adding\n", "its progress and its log are no part of the result"


def test_a_command_is_called_over_stdio_and_text_fits_its_schema(defserve: Run):
    code, out, _ = defserve("call", "add", "a=1", "b=2", "--", sys.executable, CALCULATOR)
    assert (code, out) == (0, "3\n")


def test_tools_that_only_views_use_are_listed_and_called(defserve: Run):
    example = str(Path(__file__).parents[2] / "examples" / "weather_app.py")
    listed = defserve("list", example).out
    assert "convert(city: string, unit: string)" in listed and "ui://weather-app/forecast" in listed
    assert json.loads(defserve("call", example, "convert", "city=Oslo", "unit=F").out)["unit"] == "F"


def test_in_a_project_with_one_server_its_tools_are_called_and_it_is_installed_without_naming_it(
    defserve: Run, folder: Path
):
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'hall'\n[project.entry-points.'defserve.servers']\nhall = 'hall_of_one:server'\n"
    )
    (folder / "hall_of_one.py").write_text(
        "from defserve import Server\nserver = Server('hall')\n@server.tool\ndef greet(name: str = 'you') -> str:\n"
        "    return f'Hello, {name}!'\n@server.prompt\ndef ask() -> str:\n    return 'Well?'\n"
    )
    assert defserve("call", "greet") == (0, "Hello, you!\n", "")
    assert defserve("call", "greet", "name=Ann").out == "Hello, Ann!\n"
    assert defserve("call", "gret", "name=Ann").err == "error: hall has no tool 'gret'\n  fix: did you mean 'greet'?\n"
    assert "Well?" in defserve("prompt", "ask").out
    assert "hall_of_one.py:server" in defserve("install", "--dry-run").out
    assert defserve("call", "hall_of_one").err.startswith("error: no tool is given\n")


def test_the_raw_result_can_be_had(defserve: Run):
    raw = json.loads(defserve("call", "tests.testing.toy", "add", "a:=1", "b:=2", "--raw").out)
    assert raw == {"content": [{"type": "text", "text": "3"}]}


def test_what_a_server_prints_is_kept_out_of_the_result(defserve: Run, tmp_path: Path):
    file = tmp_path / "talkative.py"
    file.write_text(
        "from defserve import Server\nprint('loading')\nserver = Server('talkative')\n"
        "@server.tool\ndef one() -> int:\n    print('working')\n    return 1\n"
    )
    assert defserve("call", str(file), "one") == (0, "1\n", "loading\nworking\n")


def test_a_server_whose_lifespan_fails_shows_the_author_s_line_and_nothing_of_ours(defserve: Run, tmp_path: Path):
    file = tmp_path / "unset.py"
    file.write_text(
        "from contextlib import asynccontextmanager\nfrom defserve import Server\n@asynccontextmanager\n"
        "async def life(server):\n    yield {}['ADDRESS']\nserver = Server('unset', lifespan=life)\n"
    )
    code, _, err = defserve("call", str(file), "one")
    assert (code, err.splitlines()[:2]) == (
        1,
        ["error: the server did not start", "Traceback (most recent call last):"],
    )
    assert "KeyError: 'ADDRESS'\nThe lifespan of server 'unset' failed, so it does not serve.\n" in err
    assert re.findall(r'File "([^"]+)"', err) == [str(file)]
    with pytest.raises(KeyError, match="ADDRESS"):
        defserve("call", str(file), "one", "-v")


def test_a_tool_that_asks_where_nobody_is_says_what_to_do(defserve: Run):
    code, _, err = defserve("call", CALCULATOR, "greet")
    assert code == 1
    assert "offers elicitation" in err and "fix: run it at a terminal" in err and "--answer" in err


def test_a_failed_tool_has_an_exit_code_of_its_own(defserve: Run):
    code, out, err = defserve("call", "add", "a=one", "b=2", "--", sys.executable, CALCULATOR)
    assert (code, out) == (5, "")
    assert "expected integer" in err


def test_an_unknown_tool_is_met_with_a_suggestion(defserve: Run):
    code, _, err = defserve("call", "ad", "--", sys.executable, CALCULATOR)
    assert code == 5
    assert "calculator has no tool 'ad'" in err and "did you mean 'add'?" in err


@for_each_row(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "1", 1),
        ({"type": "string"}, "1", "1"),
        ({}, "1", "1"),
        ({"type": "array"}, "[1]", [1]),
        ({"type": "boolean"}, "maybe", "maybe"),
    ],
)
def test_text_becomes_what_the_schema_wants(schema: dict[str, object], text: str, value: object):
    assert parse_typed_arguments({"a": text}, {"a": schema}) == {"a": value}


def test_arguments_can_be_validated_without_a_call(defserve: Run):
    assert defserve("call", "tests.export.shop", "price", "ticker=ABC", "--validate").out == "valid\n"
    code, _, err = defserve("call", "tests.export.shop", "price", "ticker=abc", "days=0", "--validate")
    assert code == 5
    assert (
        err == 'error: ticker: must match the pattern ^[A-Z]{1,5}$, got "abc"\n       days: must be at least 1, got 0\n'
    )
    assert "did you mean 'price'?" in defserve("call", "tests.export.shop", "prices", "--validate").err


@pytest.mark.req("MCP-10.3")
def test_a_server_that_validates_nothing_is_judged_by_its_list(defserve: Run):
    code, _, err = defserve("call", "tests.testing.toy", "greet", "nme=x", "--validate")
    assert (code, "nme" in err) == (5, True)


TODO = """from typing import Annotated
from defserve import Context, Server, dangerous, moderate
server = Server("todo", "1", confirm={confirm!r})

@server.tool(title="Clear it all")
@dangerous("filesystem.write")
def clear(folder: str = "here") -> str:
    return "cleared"

@server.tool
@moderate("filesystem.write", confirm=True)
def tidy() -> str:
    return "tidied"

@server.tool
@dangerous("filesystem.write")
async def rename(ctx: Context) -> str:
    name = await ctx.ask("The new name?", str)
    return f"{{name}} {{await ctx.confirm('Really?')}}"
"""


@pytest.fixture(params=["auto", "always"])
def todo(folder: Path, request: pytest.FixtureRequest) -> str:
    """A server that trusts a client that cannot be asked, and one that does not."""
    (folder / "todo.py").write_text(TODO.format(confirm=request.param))
    return "todo.py"


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Somebody at the terminal, who types these lines."""

    def types(*lines: str) -> None:
        left = iter(lines)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")  # what is drawn at other terminals is tested with the screen
        answers = make_terminal_answers(lambda: next(left, ""))
        monkeypatch.setattr("defserve.cli.terminal_answers.make_terminal_answers", lambda: answers)

    return types


def test_what_is_dangerous_is_not_run_where_nobody_says_yes(defserve: Run, todo: str):
    told = "error: clear is dangerous and needs your yes\n  fix: run it at a terminal, or add --yes\n"
    assert defserve("call", todo, "clear") == (1, "", told)
    assert defserve("call", todo, "tidy").err.startswith("error: tidy needs your yes\n")


@pytest.mark.parametrize("era", ["stateless", "handshake"])
@pytest.mark.parametrize("consent", [["--yes"], ["--answer", '{"value": true}']])
def test_a_yes_can_be_given_beforehand(defserve: Run, todo: str, consent: list[str], era: str):
    assert defserve("call", todo, "clear", *consent, "--era", era) == (0, "cleared\n", "")


@pytest.mark.parametrize("given", [['{"FIELD": true}'], ['{"value": true}', '{"name": "Bob"}']])
def test_an_answer_with_a_field_that_the_question_lacks_is_refused(defserve: Run, todo: str, given: list[str]):
    code, out, err = defserve("call", todo, "rename", *(word for each in given for word in ("--answer", each)))
    assert (code, out) == (1, "") and " has no field '" in err
    assert err.endswith("""  fix: write --answer '{"value": …}'\n""")


def test_a_person_is_asked_once_and_sees_the_arguments(defserve: Run, todo: str, person: Callable[..., None]):
    person("what?\n", "\n", "y\n")
    code, out, err = defserve("call", todo, "clear", "folder=attic")
    assert (code, out) == (0, "cleared\n")
    asked = "Run it? [y/n] "
    again = "  type y or n\n"
    assert err == f"\ndangerous: clear needs filesystem.write\n  folder: attic\n\n{asked}{again}{asked}{again}{asked}"


def test_a_person_sees_which_permission_a_dangerous_tool_needs(
    defserve: Run, folder: Path, person: Callable[..., None]
):
    (folder / "disk.py").write_text(
        "from defserve import Server, dangerous\nserver = Server('disk')\n@server.tool\n"
        "@dangerous('filesystem.write')\ndef wipe(path: str) -> str:\n    return 'wiped'\n"
    )
    person("\n", "n\n")
    code, out, err = defserve("call", "disk.py", "wipe", "path=/")
    assert (code, out) == (5, "") and "wipe was not run, because you did not confirm it" in err
    assert err.startswith("\ndangerous: wipe needs filesystem.write\n  path: /\n\nRun it? [y/n] ")


@for_each_row("command", ["echo token='x; rm -rf ~'", "ls" + " " * 2_100 + "; rm -rf ~"])
def test_a_person_reads_what_a_command_does_to_its_end(
    defserve: Run, folder: Path, person: Callable[..., None], command: str
):
    (folder / "shell.py").write_text(
        "from defserve import Server, dangerous\nserver = Server('shell')\n@server.tool\n"
        "@dangerous(validator='none')\ndef run(command: str) -> str:\n    return 'ran'\n"
    )
    person("n\n")
    assert "; rm -rf ~" in defserve("call", "shell.py", "run", f"command={command}").err


HIDING = """from defserve import Server, dangerous
server = Server("disks", search="always")

@server.tool
@dangerous
def wipe(disk: str = "sda") -> str:
    return "wiped"
"""


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_tool_that_is_not_listed_is_not_run_without_a_yes(defserve: Run, folder: Path, era: str):
    (folder / "disks.py").write_text(HIDING)
    code, out, err = defserve("call", "disks.py", "wipe", "disk=sda", "--era", era)
    assert (code, out) == (1, "") and "wipe is not in the server's list" in err and "--yes" in err
    assert defserve("call", "disks.py", "wipe", "disk=sda", "--yes", "--era", era) == (0, "wiped\n", "")
    assert "disks has no tool 'wip'" in defserve("call", "disks.py", "wip", "--era", era).err


def test_a_person_is_asked_about_a_tool_that_is_not_listed(defserve: Run, folder: Path, person: Callable[..., None]):
    (folder / "disks.py").write_text(HIDING)
    person("n\n")
    code, out, err = defserve("call", "disks.py", "wipe", "disk=sdb")
    assert (code, out) == (5, "") and "dangerous: wipe is not in the server's list" in err and "\n  disk: sdb\n" in err


def test_nobody_is_asked_about_a_call_whose_arguments_are_misnamed(
    defserve: Run, todo: str, person: Callable[..., None]
):
    person("y\n")
    code, out, err = defserve("call", todo, "clear", "foldr=attic")
    assert (code, out, err) == (5, "", "error: unknown argument 'foldr'; did you mean 'folder'?\n")


@for_each_row(
    ("schema", "wrong"),
    [
        ({"properties": {"name": {}}, "required": ["name"]}, ["name: missing", "unknown argument 'nam'; did you mean"]),
        ({"properties": {"name": {}}, "additionalProperties": {}}, []),
        ({"properties": {"name": {}}, "additionalProperties": {}, "required": ["name"]}, ["name: missing"]),
        ({"type": "object"}, []),
        ({"properties": [], "required": 1}, []),
        ({"properties": {"other": {}}}, ["unknown argument 'nam'; its arguments are other"]),
    ],
)
def test_arguments_are_misnamed_by_their_schema(schema: dict[str, Any], wrong: list[str]):
    found = find_misnamed_arguments(schema, {"nam": "bob"})
    assert len(found) == len(wrong) and all(map(str.startswith, found, wrong))


@pytest.mark.parametrize("line", ["n\n", "\n", ""])
def test_a_persons_no_is_told_in_words_for_a_person(defserve: Run, todo: str, person: Callable[..., None], line: str):
    person(line)
    code, out, err = defserve("call", todo, "clear")
    assert (code, out) == (5, "")
    assert err.endswith("error: clear was not run, because you did not confirm it\n")


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_answers_are_taken_in_their_order(defserve: Run, todo: str, era: str):
    given = ["--answer", '{"value": true}', "--answer", '{"value": "Bob"}', "--answer", '{"value": false}']
    assert defserve("call", todo, "rename", *given, "--era", era).out == "Bob False\n"
    assert defserve("call", todo, "rename", "--yes", "--answer", '{"value": "Bob"}', "--era", era).out == "Bob True\n"


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_question_without_an_answer_names_what_to_give(defserve: Run, todo: str, era: str):
    code, _, err = defserve("call", todo, "rename", "--yes", "--era", era)
    assert code == 1
    assert err.endswith(
        "error: nobody can answer 'The new name?'\n  fix: run it at a terminal, or add --answer '{\"value\": …}'\n"
    )


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_question_with_one_field_takes_its_value_alone(defserve: Run, todo: str, era: str):
    given = ["--answer", "true", "--answer", '"Bob"', "--answer", "false"]
    assert defserve("call", todo, "rename", *given, "--era", era).out == "Bob False\n"


def test_one_value_does_not_answer_a_form_with_several_fields(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", StringIO())
    ask = PreparedAnswers([True], yes=False).make_client_answers().ask
    form = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    assert ask is not None
    with pytest.raises(UsageError, match=r"has 2 fields, and true is one value\n  fix: write --answer .*name.*age"):
        asyncio.run(maybe_await(ask("Who?", form)))


@for_each_row("text", ["yes", "null", "{"])
def test_an_answer_has_to_be_json(defserve: Run, text: str):
    code, _, err = defserve("call", CALCULATOR, "greet", "--answer", text)
    assert (code, f"{text!r} is not an answer in JSON; write --answer true" in err) == (1, True)


def test_what_a_person_declined_is_said_to_them(defserve: Run, folder: Path, person: Callable[..., None]):
    (folder / "todo.py").write_text(TODO.format(confirm="auto"))
    person("y\n", "\n", "/decline\n")
    assert defserve("call", "todo.py", "rename").err.endswith("error: you declined: The new name?\n")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--name", "Ada"], "write name=Ada;"),
        (["--name", "Ada L"], "write name='Ada L';"),
        (["--name=Ada"], "write name=Ada;"),
        (["--name=Ada L"], "write name='Ada L';"),
        (["--first-name"], "write first_name=…;"),
        (["--9"], "run defserve call --help"),
    ],
)
def test_an_argument_written_as_an_option_is_told_how_to_write_it(defserve: Run, words: list[str], fix: str):
    code, _, err = defserve("call", CALCULATOR, "greet", *words)
    assert (code, f"fix: {fix}" in err) == (1, True), err


@pytest.mark.anyio
async def test_who_is_shown_no_tools_is_told_that_the_token_may_be_why():
    async with Server("shop", "1").connect() as client:
        told = [str(unknown_tool(client, "buy", [], hidden)) for hidden in ("this token may not use it", "")]
    assert told == [
        "shop shows you no tools\n  fix: this token may not use it",
        "shop has no tool 'buy'\n  fix: it has no tools",
    ]


def test_an_exception_is_shown_by_the_authors_frames_and_whole_with_verbose(
    defserve: Run, folder: Path, caplog: pytest.LogCaptureFixture
):
    (folder / "broken.py").write_text(
        "import json\nfrom defserve import Server\nserver = Server('broken', '1')\n"
        "@server.tool\ndef boom() -> str:\n    return json.loads('{')\n"
    )
    assert defserve("call", "broken.py", "boom").code == 5
    defserve("call", "broken.py", "boom", "-v")
    brief, whole = [record.exc_text or "" for record in caplog.records]
    assert re.findall(r'File ".*?(\w+\.py)"', brief) == ["broken.py"]
    assert "return json.loads('{')" in brief and "JSONDecodeError: Expecting" in brief and brief.endswith(MORE)
    assert "tools.py" in whole and "decoder.py" in whole and MORE not in whole


def test_a_refusal_is_a_sentence_and_with_verbose_also_its_details(defserve: Run, folder: Path):
    (folder / "shell.py").write_text(
        "from defserve import Server, ShellCommand\nserver = Server('shell', '1')\n"
        "@server.tool\ndef run(command: ShellCommand) -> str:\n    return command.text\n"
    )
    code, _, err = defserve("call", "shell.py", "run", "command=grpe x")
    assert (code, "Command refused: Blocked program: 'grpe'. Try grep" in err, "programs" in err) == (5, True, False)
    assert '"programs"' in defserve("call", "shell.py", "run", "command=grpe x", "-v").err


def test_a_traceback_of_packages_alone_only_loses_our_frames():
    ours = f'  File "{PACKAGE_FOLDER}/x.py", line 1, in a\n    a()\n'
    text = f'Traceback:\n{ours}  File "{INSTALLED_CODE_FOLDERS[0]}/y.py", line 2, in b\nE: e\n'
    assert (
        shorten_traceback(text) == f'Traceback:\n  File "{INSTALLED_CODE_FOLDERS[0]}/y.py", line 2, in b\nE: e\n{MORE}'
    )
    assert shorten_traceback("no traceback\n") == "no traceback\n"
    assert shorten_traceback(f"Traceback (most recent call last):\n{ours}E: e") == f"E: e\n{MORE}"


OBJECTS = """from pydantic import BaseModel
from defserve import Server
server = Server("objects", "1")

class Place(BaseModel):
    street: str
    floor: int
    note: str = ""

class Parcel(BaseModel):
    place: Place

@server.tool
def send(place: Place, times: int = 1) -> str:
    return place.street

@server.tool
def pack(parcel: Parcel) -> str:
    return parcel.place.street
"""


def test_a_missing_object_is_shown_with_the_fields_that_it_needs(defserve: Run, folder: Path):
    (folder / "objects.py").write_text(OBJECTS)
    err = defserve("call", "objects.py", "send").err
    assert err.endswith("""; write place:='{"street": …, "floor": …}'\n"""), err
    err = defserve("call", "objects.py", "pack").err
    assert err.endswith("""; write parcel:='{"place": …}'\n"""), err


def test_a_field_that_is_missing_inside_of_an_argument_says_enough_by_itself(defserve: Run, folder: Path):
    (folder / "objects.py").write_text(OBJECTS)
    err = defserve("call", "objects.py", "send", """place:={"street": "x"}""").err
    assert err == "error: place.floor: missing\n"


LISTS = """
from defserve import Server

server = Server("lists", "1")

@server.tool
def tag(labels: list[str], name: str = "") -> int:
    return len(labels)
"""


def test_a_text_where_a_list_is_needed_is_met_with_how_a_list_is_written(defserve: Run, folder: Path):
    (folder / "lists.py").write_text(LISTS)
    code, _, err = defserve("call", "lists.py", "tag", "labels=it's", "name=x")
    assert code == 5
    assert err.endswith("""\n  fix: a list is written as JSON: labels:='["it'"'"'s"]'\n"""), err
    assert defserve("call", "lists.py", "tag", """labels:=["it's"]""").out == "1\n"


def test_arguments_in_one_object_are_met_with_the_option_for_them(defserve: Run):
    code, _, err = defserve("call", CALCULATOR, "add", '{"a": 1}')
    assert code == 1
    assert err.endswith("""fix: write --args '{"a": 1}'\n"""), err


def test_a_missing_argument_shows_what_the_tool_takes(defserve: Run):
    code, _, err = defserve("call", CALCULATOR, "add")
    assert code == 5
    assert err == "error: a: missing\n  fix: give what it takes: add(a: integer, b: integer = 2)\n"


TIMED = """
from typing import Annotated
from defserve import Depends, Server, ToolError
server = Server("timed")

async def open_database():
    yield "db"

@server.tool
async def find(word: str, db: Annotated[str, Depends(open_database)]) -> str:
    return word

@server.tool
async def fail() -> str:
    raise ToolError("no such luck")
"""


def test_timing_prints_the_stages_beside_the_result(defserve: Run, folder: Path):
    (folder / "timed.py").write_text(TIMED)
    code, out, err = defserve("call", "timed.py", "find", "word=a", "--timing")
    assert (code, out) == (0, "a\n")
    head, *rows = err.strip().splitlines()
    assert head.split() == ["stage", "time", "share"]
    order = ("arguments", "set-up: open_database", "find", "tear-down: open_database", "packing the result", "in all")
    assert [name for row in rows if (name := row.strip().partition("  ")[0]) in order] == list(order)
    # Plain: aligned, and without colour or drawing.
    assert err.isascii() and "\x1b" not in err
    assert len({row.index(" ms") for row in rows}) == 1
    assert all("#" in row for row in rows if not row.startswith(("between", "in all")))


def test_timing_shows_where_a_call_failed_and_its_error_comes_last(defserve: Run, folder: Path):
    (folder / "timed.py").write_text(TIMED)
    code, out, err = defserve("call", "timed.py", "fail", "--timing")
    assert (code, out) == (5, "")
    assert [row.split()[0] for row in err.splitlines() if row.endswith(" failed")] == ["fail"]
    assert err.splitlines()[-1] == "error: no such luck"


def test_timing_of_a_server_in_another_process_is_the_round_trip_and_says_why(defserve: Run):
    code, out, err = defserve("call", "add", "a=1", "b=2", "--timing", "--", sys.executable, CALCULATOR)
    assert (code, out) == (0, "3\n")
    assert "sending, and waiting for the server" in err and "in another process" in err


def test_the_times_of_stages_are_whole_in_a_narrow_terminal():
    pytest.importorskip("rich")
    from defserve.cli.screen import make_console
    from defserve.cli.screen_drawing import draw_blocks

    outer = WaterfallStage("around", "a stage with a long title", 0, 0, 600)
    screen = StringIO()
    inner = WaterfallStage("function", "its part", 1, 100, 450.25)
    draw_blocks(make_console(screen, width=60), render_waterfall(Waterfall(606.7, (outer, inner))))
    shown = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert "600.00 ms" in shown and "450.25 ms" in shown and "99 %" in shown and "…" not in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_a_call_that_fails_inside_another_process_says_where_to_look(defserve: Run, folder: Path):
    Path("calc.py").write_text(
        "from defserve import Server\nserver = Server('calc')\n@server.tool\ndef broken() -> int:\n    return 1 // 0\n"
    )
    command = ("--", sys.executable, "-m", "defserve", "run", "calc.py")
    code, _, err = defserve("call", "broken", *command)
    assert code == 5 and err.endswith(")\n  fix: -v shows what the server writes to stderr\n")
    code, _, err = defserve("call", "broken", "-v", *command)
    assert code == 5 and "fix:" not in err
