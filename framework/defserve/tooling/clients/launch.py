"""The command with which a client starts a server. Its paths are absolute: clients have another folder and PATH."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from defserve.errors import UsageError
from defserve.host.clients.table import Launch
from defserve.host.targets import is_module, split_target

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def of_command(command: Sequence[str], env: Mapping[str, str]) -> Launch:
    """A command as it was given, with its program looked up on our PATH."""
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(f"there is no command {command[0]!r}", fix="install it, or write its full path")
    return Launch(os.path.abspath(found), tuple(command[1:]), env)


def of_target(target: str, env: Mapping[str, str]) -> Launch:
    """A file, `file:object`, a module, or the name of an installed server."""
    path, attribute = split_target(target)
    if path.endswith(".py"):
        target = os.path.abspath(path) + (f":{attribute}" if attribute else "")
        return _run(target, env)
    script = Path(sys.executable).with_name(target + (".exe" if os.name == "nt" else ""))
    if not attribute and not is_module(target) and script.is_file():
        return Launch(str(script), (), env)
    return _run(target, _findable(path, env))


def of_package(package: str, env: Mapping[str, str]) -> Launch:
    """`-m package`."""
    return _run("-m", _findable(package, env), package)


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """`K=V` pairs."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise UsageError(f"--env {pair.partition('=')[0]!r} is not a variable", fix="write --env NAME=value")
        found[name] = value
    return found


def _run(target: str, env: Mapping[str, str], *more: str) -> Launch:
    # The interpreter of this installation has defserve, whatever is on the PATH of the client.
    return Launch(sys.executable, ("-m", "defserve", "run", target, *more), env)


def _findable(module: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """A module of the current folder needs PYTHONPATH to be found from another folder."""
    from importlib.util import find_spec

    here = os.getcwd()
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return env
    origin = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec is not None else ""
    if not origin or "PYTHONPATH" in env:
        return env
    top = Path(origin).parents[1] if Path(origin).name == "__init__.py" else Path(origin).parent
    return {**env, "PYTHONPATH": here} if str(top) == os.path.realpath(here) or str(top) == here else env
