"""The main module of the child: imports the author's module, reports its files, and serves."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from defserve.base.search_path import add_import_folder
from defserve.client.targets import is_file_target
from defserve.errors import UsageError
from defserve.tooling.devserver.handover import ServePlan
from defserve.tooling.loading import PACKAGE_FOLDER, PYTHON_FOLDERS, is_outside, load_quietly


def main(argument: str) -> int:
    plan = ServePlan.from_json(argument)
    if not is_file_target(plan.target):
        add_import_folder(os.getcwd())
    try:
        server = load_quietly(plan.target)
    except UsageError as error:
        cause = error.__cause__
        report(plan, _files_of(cause), _find_error_folders(cause))
        _complain(error, cause)
        return 1
    except BaseException as error:
        report(plan, _files_of(error), [])
        raise
    report(plan, [], [str(folder) for folder in skill_folders(server)])
    return serve(server, plan)


def serve(server: Any, plan: ServePlan) -> int:
    try:
        if plan.sockets:
            from defserve.tooling.devserver.child_http import serve_http_child

            return serve_http_child(server, plan)
        server.run(**plan.options)
    except UsageError as error:
        _complain(error, None)
        return 1
    return 0


def skill_folders(server: Any) -> list[Path]:
    """The folders of skills that a server has read, with those of servers mounted on it."""
    sections = [each.mcp.skills for each in getattr(server, "self_and_mounted", ())]
    return [folder for section in sections if section is not None for folder in section.folders]


def report(plan: ServePlan, more: list[str], folders: list[str]) -> None:
    """Write the names of the author's files to the report: imported files, and files that failed to import.

    `folders` are those that are served as they are.
    """
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = {os.path.abspath(file) for file in (*loaded, *more) if file and os.path.isfile(file)}
    files = [file for file in found if is_outside(file, (PACKAGE_FOLDER, *PYTHON_FOLDERS))]
    # Renamed when it is complete.
    Path(plan.report + ".new").write_text(json.dumps({"files": sorted(files), "folders": folders}), encoding="utf-8")
    os.replace(plan.report + ".new", plan.report)


def _files_of(error: BaseException | None) -> list[str]:
    if error is None:
        return []
    found = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return [*found, *([error.filename] if isinstance(error, SyntaxError) and error.filename else [])]


def _find_error_folders(error: BaseException | None) -> list[str]:
    """The folder of a file that an error names, such as a `SKILL.md`, so that the next try begins when it is mended."""
    named = Path(error.where) if isinstance(error, UsageError) and error.where else None
    if named is None or not named.exists():
        return []
    return [str(named if named.is_dir() else named.parent)]


def _complain(error: UsageError, cause: BaseException | None) -> None:
    """Print it as Python would, from the author's first line on."""
    if cause is None or isinstance(cause, (UsageError, SystemExit)):
        print(f"error: {error}", file=sys.stderr)
        return
    traceback.print_exception(type(cause), cause, _from_author(cause.__traceback__))


def _from_author(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((PACKAGE_FOLDER + os.sep, "<frozen")):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    # The author's module sees an empty command line.
    *_, given = sys.argv
    del sys.argv[1:]
    sys.exit(main(given))
