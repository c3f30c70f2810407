"""The main module of the child: imports the author's module, reports its files, and serves."""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

from defserve.base.search_path import add_author_import_folder
from defserve.client.targets import (
    INSTALLED_CODE_FOLDERS,
    PACKAGE_FOLDER,
    is_author_file,
    is_file_target,
    is_outside_folders,
)
from defserve.core.call import Call
from defserve.core.messages import encode
from defserve.errors import UsageError
from defserve.server.metrics import RequestOutcome, RequestWatcher
from defserve.server.server import Server
from defserve.tooling.devserver.handover import DevChildReport, ServePlan, ServerSummary, StartProblem
from defserve.tooling.listing import estimate_definition_tokens, server_listing
from defserve.tooling.loading import load_without_serving, print_load_error


def main(argument: str) -> int:
    plan = ServePlan.from_json(argument)
    if not is_file_target(plan.target):
        add_author_import_folder(os.getcwd())
    try:
        server = load_without_serving(plan.target)
        options = prepare_server(server, plan)
    except UsageError as error:
        cause = error.__cause__
        report(plan, _files_of(cause), _find_error_folders(cause), problem=describe_problem(error))
        if not plan.is_quiet:
            print_load_error(error)
        return 1
    except BaseException as error:
        report(plan, _files_of(error), [])
        raise
    summary = summarize_server(server) if isinstance(server, Server) else None
    report(plan, [], [str(folder) for folder in skill_folders(server)], served=summary)
    return serve(server, replace(plan, options=options))


def prepare_server(server: Any, plan: ServePlan) -> dict[str, Any]:
    """Add what observes the server, because nothing can be added once it was listed. The options that are left."""
    if not isinstance(server, Server):
        return plan.options
    if plan.last_call:
        server.extend(LastCallRecorder(Path(plan.last_call)))
    observed = ("log_level", "log_json", "metrics", "telemetry")
    given: Any = {name: plan.options[name] for name in observed if name in plan.options}
    server.observe(**given)
    done = ("log_level", "log_json", "telemetry")
    return {name: value for name, value in plan.options.items() if name not in done}


def serve(server: Any, plan: ServePlan) -> int:
    try:
        if plan.sockets:
            from defserve.tooling.devserver.child_http import serve_http_child

            return serve_http_child(server, plan)
        server.run(**plan.options)
    except UsageError as error:
        report(plan, [], [], problem=describe_problem(error))
        if not plan.is_quiet:
            print_load_error(error)
        return 1
    return 0


def skill_folders(server: Any) -> list[Path]:
    """The folders of skills that a server has read, with those of servers mounted on it."""
    sections = [each.mcp.skills for each in getattr(server, "self_and_mounted", ())]
    return [folder for section in sections if section is not None for folder in section.folders]


def report(
    plan: ServePlan,
    more: list[str],
    folders: list[str],
    *,
    served: ServerSummary | None = None,
    problem: StartProblem | None = None,
) -> None:
    """Write the report, with the names of the author's files: imported ones, and those that failed to import.

    `folders` are those that are served as they are.
    """
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = {os.path.abspath(file) for file in (*loaded, *more) if file and os.path.isfile(file)}
    files = [file for file in found if is_outside_folders(file, (PACKAGE_FOLDER, *INSTALLED_CODE_FOLDERS))]
    DevChildReport(sorted(files), folders, served, problem).write_file(plan.report)


def _files_of(error: BaseException | None) -> list[str]:
    if error is None:
        return []
    found = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return [*found, *([error.filename] if isinstance(error, SyntaxError) and error.filename else [])]


def _find_error_folders(error: BaseException | None) -> list[str]:
    """The folder of a file that an error names, such as a `SKILL.md`, so that fixing it starts the next try."""
    named = Path(error.where) if isinstance(error, UsageError) and error.where else None
    if named is None or not named.exists():
        return []
    return [str(named if named.is_dir() else named.parent)]


# -- What a person is told of a server that does not start: one place, one sentence, the lines that led there.


MAX_PROBLEM_LINES: Final = 6
MAX_LINE_LENGTH: Final = 300
MAX_PROBLEM_LENGTH: Final = 1_000


def describe_problem(error: UsageError) -> StartProblem:
    """The error, or what caused it, for somebody who looks at the file and not at a traceback."""
    cause = error.__cause__
    if isinstance(cause, SyntaxError) and cause.filename:
        place = f"{_shorten_path(cause.filename)}:{cause.lineno}"
        return StartProblem(place, f"{type(cause).__name__}: {cause.msg}"[:MAX_LINE_LENGTH], _mark_column(cause))
    if cause is None or isinstance(cause, (UsageError, SystemExit)):
        fix = [f"fix: {error.fix}"] if error.fix else []
        return StartProblem(_shorten_path(error.where), error.problem, fix)
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_author_file(frame.filename)]
    places = [f"{_shorten_path(frame.filename)}:{frame.lineno}" for frame in frames]
    lines = [f"{place}  {frame.line}"[:MAX_LINE_LENGTH] for place, frame in zip(places, frames, strict=True)]
    text = "".join(traceback.format_exception_only(cause)).strip()[:MAX_PROBLEM_LENGTH]
    return StartProblem(places[-1] if places else "", text, lines[-MAX_PROBLEM_LINES:])


def _mark_column(error: SyntaxError) -> list[str]:
    """The line that Python cannot read, and below it a mark where it stopped."""
    line = (error.text or "").rstrip().replace("\t", " ")
    column = (error.offset or 1) - 1 - (len(line) - len(line.lstrip()))
    shown = line.lstrip()[:MAX_LINE_LENGTH]
    return [shown, " " * column + "^"] if 0 <= column <= len(shown) and shown else [shown] if shown else []


def _shorten_path(path: str) -> str:
    return path.removeprefix(os.getcwd() + os.sep)


# -- What a child serves, in a few words, and which tool was called last.


MAX_CALL_BYTES: Final = 64 * 1024
"""Bytes of a call that can be repeated: its arguments, as JSON."""


def summarize_server(server: Server) -> ServerSummary | None:
    """None if the server's lists cannot be read before it serves."""
    listed = server_listing(server.composition)
    if listed is None:
        return None
    functions = {_name_item(item.kind, item.name): item.function for item in server.mcp.items()}
    kinds = {"tool": listed.tools, "resource": [*listed.resources, *listed.templates], "prompt": listed.prompts}
    items = {
        (name := _name_item(kind, str(item["name"]))): _digest_item(item, functions.get(name))
        for kind, items in kinds.items()
        for item in items
    }
    tokens = sum(map(estimate_definition_tokens, listed.tools))
    return ServerSummary(server.name, str(listed.info.get("version", "")), len(listed.tools), tokens, items)


def _name_item(kind: str, name: str) -> str:
    """A tool by its name; others also by what they are."""
    return name if kind == "tool" else f"{'prompt' if kind == 'prompt' else 'resource'} {name}"


def _digest_item(listed: dict[str, Any], function: Any) -> str:
    """What an item says of itself, and the code of its function. What that calls does not count."""
    code = getattr(inspect.unwrap(function.signature.function), "__code__", None) if function is not None else None
    told = json.dumps(listed, sort_keys=True, default=str)
    return sha256(f"{told}{_describe_code(code) if code is not None else ''}".encode()).hexdigest()[:16]


def _describe_code(code: CodeType) -> str:
    """All that a function does, without the places of its lines: those change with everything above it."""
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {list(map(_describe_constant, code.co_consts))}"


def _describe_constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _describe_code(value)
    # The order of a set is another one in each process.
    return f"{sorted(map(repr, cast('frozenset[object]', value)))}" if isinstance(value, frozenset) else repr(value)


class LastCallRecorder(RequestWatcher[None]):
    """Keeps the last call of a tool in a file that only this user can read, so that a person can repeat it."""

    name = "last call"
    methods_watched = ("tools/call",)

    def __init__(self, file: Path) -> None:
        self._file = file

    def begin(self, call: Call) -> None:
        asked = {name: call.params.get(name) for name in ("name", "arguments")}
        if len(told := encode(asked)) <= MAX_CALL_BYTES:
            with suppress(OSError), open(self._file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
                f.write(told)

    def end(self, call: Call, begun: None, seconds: float, outcome: RequestOutcome) -> None:
        pass


if __name__ == "__main__":
    # The author's module sees an empty command line.
    *_, given = sys.argv
    del sys.argv[1:]
    sys.exit(main(given))
