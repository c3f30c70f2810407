"""The settings files of MCP clients, the servers in a project's `.mcp.json`, and the commands written into them.

An edit keeps every other byte of the file, or is refused. Files are replaced in one step, with a backup. Nothing here
starts a server or imports one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.client.known_clients import LaunchCommand, SettingsFormat
from defserve.client.targets import is_importable_module, split_target
from defserve.core.json_values import is_array, is_mapping
from defserve.errors import UsageError, did_you_mean
from defserve.tooling import jsonc, toml_tables
from defserve.tooling.jsonc import BrokenDocument, NotEditable

BACKUP: Final = ".bak"
PRIVATE: Final = 0o600
"""A new file may hold secrets, such as keys in `env`."""

PUT: Final[dict[SettingsFormat, Callable[[str, Sequence[str], Any], str]]] = {
    "json": jsonc.set_value,
    "toml": toml_tables.set_value,
}
REMOVE: Final[dict[SettingsFormat, Callable[[str, Sequence[str]], str]]] = {
    "json": jsonc.remove,
    "toml": toml_tables.remove,
}
PARSE: Final[dict[SettingsFormat, Callable[[str], Any]]] = {"json": jsonc.parse, "toml": toml_tables.parse}


class SettingsEdit(NamedTuple):
    """The text of a file before an edit (None: it does not exist) and after it."""

    path: Path
    before: str | None
    after: str

    @property
    def is_change(self) -> bool:
        return (self.before or "") != self.after

    def diff(self) -> str:
        """The change, as `diff -u` shows it."""
        from difflib import unified_diff

        old, new = (self.before or "").splitlines(keepends=True), self.after.splitlines(keepends=True)
        lines = unified_diff(old, new, os.devnull if self.before is None else str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> Path | None:
        """Replace the file and return its backup, if there was a file. Raises UsageError."""
        # A link stays a link; the file it points to is replaced.
        target = Path(os.path.realpath(self.path))
        try:
            if self.before is None:
                target.parent.mkdir(parents=True, exist_ok=True)
            if _content(target) != self.before:
                raise UsageError(
                    f"{self.path} has changed in the meantime; it was left alone", fix="run the command again"
                )
            if self.before is None:
                _replace(target, self.after, PRIVATE)
                return None
            mode = stat.S_IMODE(target.stat().st_mode)
            backup = target.with_name(target.name + BACKUP)
            _replace(backup, self.before, mode)
            _replace(target, self.after, mode)
            return backup
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}", fix="check its permissions") from None


def set_entry(path: Path, format: SettingsFormat, keys: Sequence[str], value: Any) -> SettingsEdit:
    """The file with `value` at `keys`. Raises UsageError for a file that cannot be read or edited."""
    before = read_settings_text(path)
    return SettingsEdit(path, before, _run_edit(path, lambda: PUT[format](before or "", keys, value)))


def remove_entry(path: Path, format: SettingsFormat, keys: Sequence[str]) -> SettingsEdit:
    """The file without what is at `keys`."""
    before = read_settings_text(path)
    return SettingsEdit(path, before, _run_edit(path, lambda: REMOVE[format](before or "", keys)))


def contains_only_entry(path: Path, format: SettingsFormat, keys: Sequence[str]) -> bool:
    """Whether the file is exactly what `set_entry` makes of an empty one: then it was made for the entry at `keys`."""
    value = read_settings(path, format)
    for key in keys:
        value = value.get(key) if is_mapping(value) else None
    return value is not None and not path.is_symlink() and read_settings_text(path) == PUT[format]("", keys, value)


def remove_file_and_backup(path: Path) -> None:
    """Remove a file and its backup. Raises UsageError."""
    try:
        path.unlink()
        path.with_name(path.name + BACKUP).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {error.strerror}", fix="check the permissions") from None


def read_settings(path: Path, format: SettingsFormat) -> Any:
    """The content of the file; an empty object if there is no file. Raises UsageError."""
    return _run_edit(path, lambda: PARSE[format](read_settings_text(path) or ""))


def read_settings_text(path: Path) -> str | None:
    """The text of a file, None if there is none. Raises UsageError if it cannot be read."""
    try:
        return _content(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="check its permissions") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text and was left alone", fix="save it as UTF-8") from None


def _content(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None


def _run_edit(path: Path, edit: Callable[[], Any]) -> Any:
    try:
        return edit()
    except BrokenDocument as error:
        raise UsageError(
            f"this file is broken and was left alone: {error.problem}",
            where=f"{path}:{error.line}",
            fix="correct that line",
        ) from None
    except NotEditable as error:
        raise UsageError(
            f"{path} was left alone: {error}",
            fix="use --dry-run on an empty folder to see the entry, and add it by hand",
        ) from None


def _replace(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
    try:
        with open(file, "wb") as written:
            written.write(text.encode("utf-8"))
            written.flush()
            os.fsync(written.fileno())
        os.chmod(draft, mode)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


# -- The servers in the `.mcp.json` of a project, and how to reach each of them.


MCP_JSON_NAME: Final = ".mcp.json"

# The key of `.mcp.json` and most clients, and that of VS Code.
KEYS: Final = ("mcpServers", "servers")
REFERENCE: Final = re.compile(r"\$\{(?:env:)?([^}:]+)(?::-([^}]*))?\}")


class ConfiguredServer(NamedTuple):
    """A server as the file `path` has it, with its variables not filled in."""

    name: str
    path: str
    launch: LaunchCommand
    cwd: str = ""

    @property
    def folder(self) -> str:
        """The folder that it starts in and that its paths start from. Raises UsageError if it does not exist."""
        folder = os.path.join(os.path.dirname(self.path), self._fill(self.cwd))
        if not os.path.isdir(folder):
            raise UsageError(f"{self.name!r} in {self.path}: there is no folder {folder!r}", fix='correct its "cwd"')
        return folder

    def fill_variables(self) -> LaunchCommand:
        """How to reach it from here. Raises UsageError for a variable that is not set."""
        fill, how = self._fill, self.launch
        command = fill(how.command)
        if os.path.dirname(command):
            command = os.path.join(self.folder, command)
        return LaunchCommand(
            command,
            tuple(map(fill, how.args)),
            {name: fill(value) for name, value in how.env.items()},
            fill(how.url),
            {name: fill(value) for name, value in how.headers.items()},
        )

    def _fill(self, text: str) -> str:
        return REFERENCE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        variable: str = found[1]
        default: str | None = found[2]
        value = os.path.dirname(self.path) if variable == "workspaceFolder" else os.environ.get(variable, default)
        if value is None:
            raise UsageError(
                f"{self.name!r} in {self.path} needs the variable {variable}, which is not set",
                fix=f"export {variable}=…, or write ${{{variable}:-default}} in the file",
            )
        return value


def find_nearest_mcp_json() -> str | None:
    """The `.mcp.json` of the current folder, or of the nearest folder above that has one."""
    here = Path.cwd()
    return next(
        (str(folder / MCP_JSON_NAME) for folder in (here, *here.parents) if (folder / MCP_JSON_NAME).is_file()), None
    )


def find_mcp_json_server(target: str) -> ConfiguredServer | None:
    """The server that `target` names: NAME in the nearest `.mcp.json`, `path/.mcp.json:NAME` in that file.

    None if the nearest file has no such NAME. Raises UsageError if a named file has none, or the entry cannot be used.
    """
    folder, json, name = target.rpartition(".json:")
    path = os.path.abspath(folder + ".json") if json else find_nearest_mcp_json()
    if path is None:
        return None
    known = _entries(path)
    if name in known:
        return _parse_entry(name, path, known[name])
    if json:
        raise UsageError(
            f"{path} has no server {name!r}", fix=did_you_mean(name, known) if known else "it has no servers"
        )
    return None


def list_configured_servers() -> dict[str, str]:
    """The names in the nearest `.mcp.json`, each with its command or address. Raises UsageError for a broken file."""
    path = find_nearest_mcp_json()
    entries: Mapping[str, Any] = _entries(path) if path is not None else {}
    return {
        name: str(entry.get("url") or " ".join((str(entry.get("command")), *_args(entry))))
        for name, entry in entries.items()
        if is_mapping(entry)
    }


def _entries(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            whole = jsonc.parse(file.read())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="check the path before :NAME") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix="correct the file") from None
    for key in KEYS:
        if is_mapping(whole) and is_mapping(section := whole.get(key)):
            return section
    return {}


def _parse_entry(name: str, path: str, entry: Any) -> ConfiguredServer:
    """Raises UsageError for an entry that has neither a command nor an address."""
    place = f"{name!r} in {path}"
    if not is_mapping(entry):
        raise UsageError(f"{place} is not an object", fix='write {"command": …, "args": […]} or {"url": …}')
    command, url = entry.get("command"), entry.get("url")
    if not (command or url) or not all(isinstance(text, str) for text in (command or "", url or "")):
        raise UsageError(f"{place} has neither a command nor a url", fix='give it "command" and "args", or "url"')
    launch = LaunchCommand(
        command or "", _args(entry), _texts(entry.get("env")), url or "", _texts(entry.get("headers"))
    )
    return ConfiguredServer(name, path, launch, str(entry.get("cwd") or ""))


def _args(entry: Mapping[str, Any]) -> tuple[str, ...]:
    given = entry.get("args")
    return tuple(map(str, given)) if is_array(given) else ()


def _texts(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if is_mapping(given) else {}


# -- The command with which a client starts a server. Its paths are absolute: clients have another folder and PATH.


VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def make_command_launch(command: Sequence[str], env: Mapping[str, str]) -> LaunchCommand:
    """A command as it was given, with its program looked up on our PATH."""
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(f"there is no command {command[0]!r}", fix="install it, or write its full path")
    return LaunchCommand(os.path.abspath(found), tuple(command[1:]), env)


def make_target_launch(target: str, env: Mapping[str, str]) -> LaunchCommand:
    """A file, `file:object`, a module, or the name of an installed server."""
    path, attribute = split_target(target)
    if path.endswith(".py"):
        target = os.path.abspath(path) + (f":{attribute}" if attribute else "")
        return _run(target, env)
    script = Path(sys.executable).with_name(target + (".exe" if os.name == "nt" else ""))
    if not attribute and not is_importable_module(target) and script.is_file():
        return LaunchCommand(str(script), (), env)
    return _run(target, _findable(path, env))


def make_package_launch(package: str, env: Mapping[str, str]) -> LaunchCommand:
    """`-m package`."""
    return _run("-m", _findable(package, env), package)


def parse_environment(pairs: Sequence[str]) -> dict[str, str]:
    """`K=V` pairs."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"--env {pair.partition('=')[0]!r} is not a variable", fix="write --env NAME=value")
        found[name] = value
    return found


def _run(target: str, env: Mapping[str, str], *more: str) -> LaunchCommand:
    # The interpreter of this installation has defserve, whatever is on the PATH of the client.
    return LaunchCommand(sys.executable, ("-m", "defserve", "run", target, *more), env)


def _findable(module: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """A module of the current folder needs PYTHONPATH to be found from another folder."""
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


# -- The command that installs something into this Python. Environments made by uv have no pip.


SHELL_CHARACTERS: Final = frozenset("[<>!;")
"""A requirement may hold them, and they mean something to a shell."""


def format_install_command(*requirements: str) -> str:
    """A command that works here, to be shown in a `fix:`."""
    quoted = " ".join(f'"{each}"' if set(each) & SHELL_CHARACTERS else each for each in requirements)
    python = shlex.quote(sys.executable)
    if find_spec("pip") is not None:
        return f"{python} -m pip install {quoted}"
    if shutil.which("uv"):
        return f"uv pip install --python {python} {quoted}"
    return f"{python} -m ensurepip && {python} -m pip install {quoted}"
