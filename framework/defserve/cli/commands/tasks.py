"""`defserve tasks`: how far a task of a server is, its result, and its end. `defserve call --task` starts one."""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Final, TypeVar

from defserve.cli.commands.call import ANSWER_OPTION_FIX, ANSWER_OPTIONS, PrintableCallResult, iter_result_lines
from defserve.cli.content import list_media_blocks
from defserve.cli.parser import JSON_FLAG, CommandArgument, CommandParser, make_flag, run_action
from defserve.cli.screen import ProgressDisplay, show_stdout
from defserve.cli.screen_blocks import JsonBlock
from defserve.cli.target import redirect_stdout_to_stderr, resolve_target
from defserve.cli.target_connection import CONNECTION_OPTIONS, connect_target, shorten_tracebacks
from defserve.cli.terminal_answers import PreparedAnswers
from defserve.client.client import Client
from defserve.client.replies import object_or_empty
from defserve.client.tasks import ServerTask
from defserve.core.messages import INVALID_PARAMS, METHOD_NOT_FOUND
from defserve.errors import PeerError, PeerGone, PeerTimeout, ToolError, UsageError

T = TypeVar("T")

ABOUT: Final = """Look up a task on a running server, get its result, or cancel it.

`defserve call URL TOOL --task` starts one and prints its id. Servers list no tasks, so keep the id."""
EXAMPLES: Final = """  defserve call http://127.0.0.1:8000/mcp count to=3 --task     prints the id
  defserve tasks get http://127.0.0.1:8000/mcp ID               its status
  defserve tasks result http://127.0.0.1:8000/mcp ID            waits for its result, and answers its questions
  defserve tasks cancel http://127.0.0.1:8000/mcp ID            asks the server to stop it
"""
DASHED_ID: Final = re.compile(r"-[\w-]{19,}", re.ASCII)
"""As long as an id that cannot be guessed. No option of ours is."""
TARGET_ARGUMENTS: Final = (
    CommandArgument("target", help="the address of a running server, or its name in .mcp.json"),
    CommandArgument("id", help="the id that `defserve call --task` has printed"),
)


def main(argv: list[str]) -> int:
    actions = {"get": show_status, "result": show_result, "cancel": cancel_task}
    return run_action("defserve tasks", ABOUT, EXAMPLES, actions, move_id_to_end(argv))


def move_id_to_end(argv: list[str]) -> list[str]:
    """An id may begin with a dash: it is moved behind `--`, where it cannot be taken for an option."""
    ids = [word for word in argv if DASHED_ID.fullmatch(word)]
    return argv if len(ids) != 1 or "--" in argv else [*(word for word in argv if word != ids[0]), "--", ids[0]]


def show_status(argv: list[str]) -> int:
    """`defserve tasks get`."""
    parser = CommandParser("defserve tasks get", "Show how far a task is.")
    options = parser.parse_options(argv, *TARGET_ARGUMENTS, JSON_FLAG, *CONNECTION_OPTIONS)

    async def fetch_task(client: Client, task: ServerTask) -> ServerTask:
        return task

    _show_task(_run_on_task(options, fetch_task), options)
    return 0


def show_result(argv: list[str]) -> int:
    """`defserve tasks result`."""
    parser = CommandParser("defserve tasks result", "Wait for a task, and print its result as `defserve call` does.")
    options = parser.parse_options(
        argv,
        *TARGET_ARGUMENTS,
        *ANSWER_OPTIONS,
        make_flag("--json", help="print the tool's value as JSON, text too"),
        make_flag("--raw", help="print the whole result as JSON"),
        CommandArgument("-o", "--output", metavar="DIR", default=".", help="where files are saved (default: here)"),
        *CONNECTION_OPTIONS,
    )

    async def wait_for_result(client: Client, task: ServerTask) -> PrintableCallResult:
        try:
            result = await task.result_raw()
        except PeerError as error:
            if not task.is_over:
                raise
            raise ToolError(error.message, data=error.data) from None
        if options.raw:
            return PrintableCallResult(result)
        return PrintableCallResult(await client.value(task.tool, result), list_media_blocks(result))

    show_stdout(*iter_result_lines(_run_on_task(options, wait_for_result), options.id, options))
    return 0


def cancel_task(argv: list[str]) -> int:
    """`defserve tasks cancel`."""
    parser = CommandParser("defserve tasks cancel", "Ask the server to stop a task. It may end all the same.")
    options = parser.parse_options(argv, *TARGET_ARGUMENTS, JSON_FLAG, *CONNECTION_OPTIONS)

    async def cancel(client: Client, task: ServerTask) -> ServerTask:
        if not task.is_over:
            await task.cancel()
            await task.refresh()
        return task

    _show_task(_run_on_task(options, cancel), options)
    return 0


def _run_on_task(options: Namespace, act: Callable[[Client, ServerTask], Awaitable[T]]) -> T:
    """What `act` makes of the task. Raises UsageError for a task that the server does not know."""
    with redirect_stdout_to_stderr():
        target = resolve_target([options.target], None, None)
    if not target.address:
        raise UsageError(
            f"{options.target!r} is not a running server, and a task ends with the process that runs it",
            fix="give the address at which it was started: http://127.0.0.1:8000/mcp",
        )

    async def run(work: ProgressDisplay) -> T:
        given = PreparedAnswers(
            getattr(options, "answer", ()), yes=getattr(options, "yes", False), around=work.pause_drawing
        )
        async with connect_target(target, options, answers=given.make_client_answers(), work=work) as client:
            try:
                task = await client.task(options.id)
            except (PeerGone, PeerTimeout):
                raise
            except PeerError as error:
                raise _explain_unknown_task(error, options.id) from None
            try:
                return await act(client, task)
            except PeerError:
                if given.unanswered is not None:
                    raise given.unanswered from None
                if (questions := format_questions(task)) and not given.can_answer:
                    fix = f"run it at a terminal, where you can answer, or add {ANSWER_OPTION_FIX}"
                    raise UsageError(f"the task asks: {questions}", fix=fix) from None
                raise

    with (
        redirect_stdout_to_stderr(),
        nullcontext() if options.verbose else shorten_tracebacks(),
        ProgressDisplay(f"Asking for task {options.id}") as work,
    ):
        return asyncio.run(run(work))


def _explain_unknown_task(error: PeerError, id: str) -> PeerError | UsageError:
    if error.code == METHOD_NOT_FOUND:
        return UsageError("this server runs no tasks", fix='declare a tool as one: @server.tool(task="optional")')
    if error.code != INVALID_PARAMS:
        return error
    fix = "use the id that `defserve call --task` printed, and the same token; a task is kept until its ttl has passed"
    return UsageError(f"the server knows no task {id!r} of yours", fix=fix)


def format_questions(task: ServerTask) -> str:
    """What a task waits for an answer to; empty if it waits for none."""
    if task.status != "input_required":
        return ""
    requests = map(object_or_empty, object_or_empty(task.told.get("inputRequests")).values())
    return "; ".join(str(object_or_empty(request.get("params")).get("message") or "") for request in requests)


def _show_task(task: ServerTask, options: Namespace) -> None:
    if options.json:
        show_stdout(JsonBlock(task.told))
    else:
        more = format_questions(task) or task.message
        show_stdout(f"{task.status}: {more}" if more else task.status)
