"""`defserve call`: call one tool and print its result."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.base.redaction import escape_unprintable
from defserve.cli.content import (
    format_object_example,
    format_signature,
    is_content_list,
    list_media_blocks,
    render_content,
    render_value,
)
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.cli.screen import ProgressDisplay, can_draw, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, Table
from defserve.cli.target import TARGET_HELP, ServerTarget, redirect_stdout_to_stderr, split_server_command
from defserve.cli.target_connection import (
    ARGUMENT_PATTERN,
    MISSING_ARGUMENT_PATTERN,
    connect_target,
    explain_unlisted_tools,
    parse_argument_words,
    parse_subject_options,
    resolve_target_before_name,
    shorten_tracebacks,
)
from defserve.cli.terminal_answers import PreparedAnswers, parse_answer_option
from defserve.client.client import Client
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.client.replies import object_or_empty
from defserve.client.tasks import MISSING_CAPABILITY_ERROR_CODE, ServerTask, is_task_required_error
from defserve.core.call import Call
from defserve.core.json_values import is_array
from defserve.core.messages import METHOD_NOT_FOUND
from defserve.errors import DefserveError, PeerError, ToolError, UsageError, did_you_mean

if TYPE_CHECKING:
    from defserve.inspector.waterfalls import ServerWaterfall, Waterfall

EXAMPLES: Final = """  defserve call server.py add a=1 b=2
  defserve call server.py search query="two words" tags:='["x", "y"]'
  defserve call server.py search --args '{"query": "two words"}' --json
  defserve call server.py plot x=1 --output pictures  pictures are saved, and their names printed
  defserve call add a=1 b=2 -- python server.py
  defserve call weather forecast city=Oslo            a server in .mcp.json
  defserve call server.py add a=1 --validate
  defserve call todo.py clear_items --yes             a dangerous tool, without being asked
  defserve call server.py add a=1 b=2 --timing        with the time of each stage
  defserve call http://127.0.0.1:8000/mcp count --task    prints the id of a task: defserve tasks result URL ID
"""

UNKNOWN_TOOL: Final = -32602
UNFINISHED: Final = re.compile(r"<(?:coroutine|async_generator) object (?P<name>[\w.<>]{1,200}) at 0x[0-9a-f]{1,16}>")
ERROR: Final = "dev.defserve/error"
# The kind of a refusal → what helps a person, where its text is for a model.
FIXES: Final = {
    "state_unowned": "--era handshake opens a session, whose state ends with it. To keep a state for each caller, "
    "start the server with --local-token (on this machine) or give it Server(auth=…). "
    "See the page State of the documentation",
}
# Where a schema may allow arguments that its properties do not name.
OPEN: Final = {"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if"}
# The server did not ask, so the fields of its question are not known. A single one is called `value`.
ANSWER_OPTION_FIX: Final = """--answer '{"value": …}', or with the fields of its form"""


ANSWER_OPTIONS: Final = (
    make_flag("--yes", "-y", help="say yes to everything that needs confirmation"),
    CommandArgument(
        "--answer",
        action="append",
        default=[],
        type=parse_answer_option,
        metavar="JSON",
        help="the answer to a question of the tool, as JSON: an object, or the value of its only field; "
        "repeatable, in the order of the questions",
    ),
)


def main(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    options = parse_call_options(before)
    words: list[str] = options.words
    with redirect_stdout_to_stderr():
        target = resolve_target_before_name(words, options.module, command)
    if not words or ARGUMENT_PATTERN.fullmatch(words[0]):
        raise UsageError("no tool is given", fix="defserve call server.py TOOL key=value ...")
    if loose := next((word for word in words[1:] if word.lstrip().startswith("{")), None):
        raise UsageError(f"{loose!r} is not an argument", fix=f"write --args {shlex.quote(loose)}")
    if options.task and not target.address:
        raise UsageError(
            "a task ends with the process that runs it, and this command would end the server",
            fix="start the server first: defserve run server.py --on http://127.0.0.1:8000/mcp; then call that address",
        )
    tool, texts, values = words[0], *parse_argument_words(words[1:], options.args)
    measurement = CallMeasurement() if options.timing else None
    try:
        with (
            redirect_stdout_to_stderr(),
            nullcontext() if options.verbose else shorten_tracebacks(),
            measurement.measure_server() if measurement is not None else nullcontext(),
            ProgressDisplay(f"Calling {tool}") as work,
        ):
            result = asyncio.run(call(target, tool, texts, values, options, work, measurement))
        show_stdout(*iter_result_lines(result, tool, options))
    finally:
        if measurement is not None and measurement.waterfall is not None:
            # On stderr: stdout has the result, which a program may read.
            show_stderr("", *render_waterfall(measurement.waterfall))
    if result.is_task and not options.raw and not options.json:
        which = shlex.join((target.address, str(result.value)))  # the id is the server's
        show_stderr(escape_unprintable(f"{tool} runs as a task: defserve tasks result {which}"))
    if result.problem is not None:
        raise result.problem
    if found := UNFINISHED.search(json.dumps(result.value)):
        raise ToolError(
            f"the result contains {found[0]}, so {tool} did not await it\n  fix: await {found['name']}(…) in the tool"
        )
    return 0


def parse_call_options(argv: list[str]) -> Namespace:
    """The options of `defserve call`, with its words."""
    return parse_subject_options(
        CommandParser("defserve call", "Call a tool of a server and print its result.", EXAMPLES),
        _as_arguments(argv),
        "call",
        "tool",
        CommandArgument("words", nargs="*", metavar="[TARGET] TOOL key=value key:=json", help=TARGET_HELP),
        CommandArgument("--args", metavar="OBJECT", help="the arguments as one JSON object; --json OBJECT is the same"),
        make_flag("--validate", help="only check whether the tool would accept the arguments"),
        make_flag("--task", help="start a task, print its id and do not wait; `defserve tasks` asks for it"),
        *ANSWER_OPTIONS,
        make_flag("--timing", help="show on stderr where the time of the call went, stage by stage"),
        make_flag("--json", help="print the tool's value as JSON, text too"),
        make_flag("--raw", help="print the whole result as JSON"),
    )


def _as_arguments(words: list[str]) -> list[str]:
    """`--json OBJECT` gives arguments, `--json` alone chooses how the result is printed."""
    made: list[str] = []
    for number, word in enumerate(words):
        follows = words[number + 1].lstrip()[:1] if number + 1 < len(words) else ""
        is_given = word.startswith("--json=") or (word == "--json" and follows in ("{", "["))
        made.append(word.replace("--json", "--args", 1) if is_given else word)
    return made


class PrintableCallResult(NamedTuple):
    """A tool's value, and the content blocks that hold bytes beside it. `problem`: what it could not be told.

    If it `is_task`, the value is the id of a task, or all that was said of it.
    """

    value: Any
    media: list[Any] = []
    problem: UsageError | None = None
    is_task: bool = False


def iter_result_lines(result: PrintableCallResult, tool: str, options: Namespace) -> Iterator[ScreenBlock]:
    """The result for a terminal. Pictures are saved, unless JSON is wanted."""
    value, media, *_ = result
    if options.raw or options.json:
        yield JsonBlock(value)
    elif is_content_list(value):
        yield from render_content(value, tool, options.output)
    else:
        yield render_value(value)
        yield from render_content(media, tool, options.output)


async def call(
    target: ServerTarget,
    tool: str,
    texts: dict[str, str],
    values: dict[str, Any],
    options: Namespace,
    work: ProgressDisplay,
    measurement: CallMeasurement | None = None,
) -> PrintableCallResult:
    """The tool's value, or its raw result. Raises ToolError when it fails or does not exist."""
    given = PreparedAnswers(options.answer, yes=options.yes, around=work.pause_drawing)
    # Its questions can be answered when its result is asked for.
    offer: dict[str, Any] | None = {"elicitation": {"form": {}}} if options.task else None
    answers = given.make_client_answers()
    async with connect_target(target, options, offer=offer, answers=answers, work=work) as client:
        tools = {str(item.get("name")): item for item in await client.tools()}
        listed, hidden = tools.get(tool, {}), explain_unlisted_tools(target, options, tool)
        arguments = {
            **parse_typed_arguments(
                texts, object_or_empty(object_or_empty(listed.get("inputSchema")).get("properties"))
            ),
            **values,
        }
        if options.validate:
            if tool not in tools:
                raise unknown_tool(client, tool, list(tools), hidden)
            return PrintableCallResult(await validate_arguments(client, tool, arguments, tools))
        security = parse_tool_security(tool, listed)
        if not security.is_listed and not await is_hidden(client, tool, arguments, can_ask=given.can_answer):
            raise unknown_tool(client, tool, list(tools), hidden)
        if security.confirmation_required and (
            wrong := find_misnamed_arguments(object_or_empty(listed.get("inputSchema")), arguments)
        ):
            # Nobody is asked about a call that cannot run.
            raise ToolError("\n".join(wrong))
        try:
            await given.confirm(security, arguments)
        except asyncio.CancelledError:
            show_stderr("", f"{tool} was not run")
            raise
        try:
            with measurement.measure_call() if measurement is not None else nullcontext():
                return (await _call_tool(client, tool, arguments, options))._replace(problem=given.unanswered)
        except asyncio.CancelledError:
            show_stderr("", f"stopped: {tool} did not finish")
            raise
        except (PeerError, ToolError) as error:
            if tool in tools or (isinstance(error, PeerError) and error.code != UNKNOWN_TOOL):
                raise explain_error(error, given, listed, arguments) from None
            raise unknown_tool(client, tool, list(tools), hidden) from None


async def _call_tool(client: Client, tool: str, arguments: dict[str, Any], options: Namespace) -> PrintableCallResult:
    if options.task:
        started = await client.start_raw(tool, arguments)
        if isinstance(started, ServerTask):
            return PrintableCallResult(started.told if options.raw or options.json else started.id, is_task=True)
        show_stderr(f"note: {tool} does not run as a task here; this is its result")
        result = await started.result_raw()
        return PrintableCallResult(
            result if options.raw else await client.value(tool, result), list_media_blocks(result)
        )
    try:
        result = await client.call_raw(tool, arguments)
    except PeerError as error:
        if options.raw or not is_task_required_error(error):
            _show_details(error.data, options)
            raise
        return PrintableCallResult(await (await client.start(tool, **arguments)).result())
    if options.raw:
        return PrintableCallResult(result)
    try:
        return PrintableCallResult(await client.value(tool, result), list_media_blocks(result))
    except ToolError as error:
        details = object_or_empty(object_or_empty(result.get("_meta")).get(ERROR))
        _show_details(details, options)
        kind = str(details.get("error_type"))
        if kind not in FIXES:
            raise
        raise ToolError(f"{error.message}\n  fix: {FIXES[kind]}", data=error.data) from None


def _show_details(details: Any, options: Namespace) -> None:
    """What a program reads of a failure. A person reads its sentence, and this with `-v`."""
    if details and options.verbose:
        show_stderr(JsonBlock(details))


def explain_error(
    error: PeerError | ToolError, given: PreparedAnswers, tool: dict[str, Any], arguments: dict[str, Any]
) -> DefserveError:
    """The error, worded for a person; the server worded it for a model. For a wrong argument, what to write."""
    if given.unanswered is not None:
        return given.unanswered
    if isinstance(error, ToolError):
        words = re.sub(r"^the user (declined|dismissed)", r"you \1", error.message)
        missing = [] if "did you mean" in words else MISSING_ARGUMENT_PATTERN.findall(words)
        return ToolError(words + (_takes(tool, missing) or _format_list_hint(tool, arguments, words)), data=error.data)
    if error.code == MISSING_CAPABILITY_ERROR_CODE and "elicitation" in str(error.data) and not given.can_answer:
        return UsageError(error.message, fix=f"run it at a terminal, where you can answer, or add {ANSWER_OPTION_FIX}")
    return error


def _takes(tool: dict[str, Any], missing: list[str]) -> str:
    """What to give a tool, as a line; empty if none of its own arguments is missing, or its schema cannot be read."""
    schema = object_or_empty(tool.get("inputSchema"))
    properties = object_or_empty(schema.get("properties"))
    wanted = [name for name in missing if name in properties]
    if not wanted or not is_array(schema.get("required", [])):
        return ""
    examples = [example for name in wanted if (example := format_object_example(name, properties[name], schema))]
    written = f"; write {' '.join(examples)}" if examples else ""
    return f"\n  fix: give what it takes: {format_signature(tool)}{written}"


def _format_list_hint(tool: dict[str, Any], arguments: dict[str, Any], told: str) -> str:
    """How to write a list, as a line, where a server complains of a text; empty if it does not."""
    properties = object_or_empty(object_or_empty(tool.get("inputSchema")).get("properties"))
    wrong = [
        f"{name}:={shlex.quote(json.dumps([value], ensure_ascii=False))}"
        for name, value in arguments.items()
        if isinstance(value, str) and object_or_empty(properties.get(name)).get("type") == "array" and name in told
    ]
    return f"\n  fix: a list is written as JSON: {' '.join(wrong)}" if wrong else ""


async def validate_arguments(
    client: Client, tool: str, arguments: dict[str, Any], tools: dict[str, dict[str, Any]]
) -> str:
    """Check the arguments. Raises ToolError. If the server has no `tools/validate`, its list of tools is used."""
    try:
        answer = await client.request("tools/validate", {"name": tool, "arguments": arguments})
        found = [f"{p['field']}: {p['reason']}" if p.get("field") else p["reason"] for p in answer["problems"]]
    except PeerError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        from defserve.tooling.lint.definitions import problems

        found = problems(tools.values(), tool, arguments)
    if found:
        raise ToolError("\n".join(found))
    return "valid"


async def is_hidden(client: Client, tool: str, arguments: dict[str, Any], *, can_ask: bool) -> bool:
    """Whether a tool that is not listed may be there all the same. It is not run for that.

    A server that cannot be asked for it may have it: then it is worth a question to a person, if there is one.
    """
    try:
        await client.request("tools/validate", {"name": tool, "arguments": arguments})
    except PeerError as error:
        return error.code != UNKNOWN_TOOL and (error.code != METHOD_NOT_FOUND or can_ask)
    return True


def find_misnamed_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """The arguments that are missing, and those that the schema does not name, unless it may allow others."""
    properties, required = object_or_empty(schema.get("properties")), schema.get("required")
    missing = [name for name in required if name not in arguments] if is_array(required) else []
    is_open = not properties or OPEN & schema.keys() or schema.get("additionalProperties", False) is not False
    unknown = [] if is_open else [name for name in arguments if name not in properties]
    known = f"its arguments are {', '.join(properties)}"
    return [
        *(f"{name}: missing" for name in missing),
        *(f"unknown argument {name!r}; {did_you_mean(name, properties, known)}" for name in unknown),
    ]


def parse_typed_arguments(texts: dict[str, str], properties: dict[str, Any]) -> dict[str, Any]:
    """Text becomes JSON if the schema names a type that is not text, and the text is JSON."""
    fitted: dict[str, Any] = {}
    for name, text in texts.items():
        fitted[name] = text
        if object_or_empty(properties.get(name)).get("type", "string") != "string":
            try:
                fitted[name] = json.loads(text)
            except ValueError:
                pass
    return fitted


def unknown_tool(client: Client, tool: str, known: list[str], hidden: str) -> ToolError:
    """The error for a tool that is not listed. `hidden` says what it means if the server has it; else it is empty."""
    name = client.server_info.get("name", "the server")
    if not hidden:
        listed = f"its tools are {', '.join(known)}" if known else "it has no tools"
        fix = did_you_mean(tool, known, listed)
        return ToolError(f"{name} has no tool {tool!r}\n  fix: {fix}")
    if not known:
        return ToolError(f"{name} shows you no tools\n  fix: {hidden}")
    fix = did_you_mean(tool, known, f"you see {', '.join(known)}")
    return ToolError(f"{name} shows you no tool {tool!r}\n  fix: {fix}{'' if fix.endswith('?') else ';'} or {hidden}")


# -- `defserve call --timing`: where the time of a call went, as a table with bars.


BAR_WIDTH: Final = 30
INDENT: Final = "  "
STYLES: Final = {"wait": "warning", "check": "default", "around": "default", "dependency": "name", "function": "title"}
"""The kind of a stage → the style of its bar."""
ELSEWHERE: Final = (
    "only the round trip is known, because the server runs in another process; "
    "name its file to see the stages: defserve call server.py …"
)


class CallMeasurement:
    """Measures the calls of a server of this process, and the round trip of any."""

    def __init__(self) -> None:
        self.waterfall: Waterfall | None = None
        """Where the time of the newest call went."""
        self._measured: ServerWaterfall | None = None

    @contextmanager
    def measure_server(self) -> Generator[None]:
        """While the block runs, a server that is loaded in it is measured."""
        from defserve.inspector.call_timer import CallTimer

        with CallTimer(self._take_report):
            yield

    @contextmanager
    def measure_call(self) -> Generator[None]:
        """The block makes the call, and waits for its end."""
        from defserve.inspector.waterfalls import measure_round_trip, place_in_round_trip

        sent, is_failed = perf_counter(), True
        try:
            yield
            is_failed = False
        finally:
            ms = (perf_counter() - sent) * 1000
            if self._measured is not None:
                self.waterfall = place_in_round_trip(self._measured, sent, ms)
            else:
                self.waterfall = measure_round_trip(ms, is_failed=is_failed, note=ELSEWHERE)

    def _take_report(self, call: Call, measured: ServerWaterfall) -> None:
        self._measured = measured


def render_waterfall(waterfall: Waterfall) -> Iterator[ScreenBlock]:
    """The stages with their times and shares. What failed is marked."""
    whole, block = waterfall.ms, "█" if can_draw(sys.stderr) else "#"
    rows = [
        (
            (INDENT * stage.depth + stage.title, "bad" if stage.is_failed else ""),
            _format_ms(stage.ms),
            _format_share(stage.ms, whole),
            (
                _draw_bar(stage.start, stage.ms, whole, block) + (" failed" if stage.is_failed else ""),
                "bad" if stage.is_failed else STYLES.get(stage.kind, "faint"),
            ),
        )
        for stage in waterfall.stages
    ]
    between = waterfall.ms_between_stages
    if between * 100 >= whole:
        rows.append((("between the stages", "faint"), _format_ms(between), _format_share(between, whole), ("", "")))
    rows.append((("in all", "heading"), _format_ms(whole), "", ("", "")))
    yield Table(("stage", f"{'time':>10}", "share", ""), rows, fit=("",))
    if waterfall.left_out:
        yield StyledLine((f"{waterfall.left_out:,} more stages are not shown", "faint"))
    if waterfall.note:
        yield StyledLine((waterfall.note, "faint"))


def _draw_bar(start: float, ms: float, whole: float, block: str) -> str:
    """At least one character, which is inside of the width."""
    begin = round(start / whole * BAR_WIDTH) if whole else 0
    width = max(1, round(ms / whole * BAR_WIDTH) if whole else 1)
    return " " * min(begin, BAR_WIDTH - 1) + block * min(width, BAR_WIDTH - min(begin, BAR_WIDTH - 1))


def _format_ms(ms: float) -> str:
    return f"{ms / 1000:.1f} s".rjust(10) if ms >= 10_000 else f"{ms:.2f} ms".rjust(10)


def _format_share(ms: float, whole: float) -> str:
    share = ms / whole * 100 if whole else 0.0
    return ("<1 %" if 0 < share < 1 else f"{share:.0f} %").rjust(5)
