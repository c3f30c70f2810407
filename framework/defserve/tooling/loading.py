"""Loads the server that a command is about, without serving it. A failure names the author's own line."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from traceback import print_exception
from typing import Any, Final

from defserve.client.targets import find_author_line, is_author_file, load_server, split_target
from defserve.errors import UsageError

SERVES: Final = ("run", "main")
GUARD: Final = 'put what ends it below `if __name__ == "__main__":`; a command only loads the file'


def load_without_serving(target: str) -> Any:
    """The server that `target` names, though its file may serve without a guard.

    Raises UsageError as `load_server` does, with the author's own line, and if the file ends the program.
    """
    try:
        with _not_serving():
            return load_server(target)
    except SystemExit as stop:
        file = os.path.basename(split_target(target)[0])
        code = stop.code or 0 if stop.code is None or isinstance(stop.code, int) else f"1: {stop.code}"
        problem = f"{file} ended the program while it was loaded (exit {code})"
        raise UsageError(problem, where=find_author_line(stop), fix=GUARD) from stop
    except UsageError as error:
        raise _locate_error(error, target) from error.__cause__


def load_package(package: str) -> Any:
    """The server of a package, from the package itself or from its module `server`. Raises UsageError."""
    try:
        return load_without_serving(package)
    except UsageError as error:
        try:
            return load_without_serving(f"{package}.server")
        except UsageError:
            raise error from None


def print_load_error(error: UsageError) -> None:
    """Print why a server cannot be loaded to stderr, as Python would, from the author's first line on."""
    cause = error.__cause__
    if cause is None or isinstance(cause, UsageError | SystemExit):
        print(f"error: {error}", file=sys.stderr)
        return
    trace = cause.__traceback__
    while trace is not None and not is_author_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    print_exception(type(cause), cause, trace)


@contextmanager
def _not_serving() -> Generator[None]:
    """Within the block, servers that are told to serve return at once: what the command line says comes first."""
    from defserve.server.server import Server

    kept = {name: getattr(Server, name) for name in SERVES}
    try:
        for name in SERVES:
            setattr(Server, name, _nothing)
        yield
    finally:
        for name, method in kept.items():
            setattr(Server, name, method)


def _nothing(*_: object, **__: object) -> None:
    """Stands where a server would serve."""


def _locate_error(error: UsageError, target: str) -> UsageError:
    """The error with the author's line instead of a library's, and what helps a file that belongs to a package."""
    cause = error.__cause__
    if cause is None or isinstance(cause, UsageError):
        return error
    if isinstance(cause, SyntaxError) and not error.where.startswith("<"):
        return error
    is_relative = isinstance(cause, ImportError) and "relative import with no known parent" in str(cause)
    fix = _as_module(split_target(target)[0]) if is_relative else error.fix
    return UsageError(error.problem, where=find_author_line(cause) or error.where, fix=fix)


def _as_module(path: str) -> str:
    """How to name a file by its package."""
    folder, name = os.path.split(os.path.abspath(path))
    parts = [name.removesuffix(".py")]
    while len(parts) == 1 or os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    place = "" if folder == os.getcwd() else f"in {folder}, "
    return f"{place}name the module instead of the file: defserve list {'.'.join(parts)}"
