"""Reads mgp.toml and the files that it includes. Every mistake is named with its line before anything starts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError
from defserve.kernel.config import settings
from defserve.kernel.config.entries import (
    SQLITE,
    GroupSettings,
    HealthRules,
    KernelConfig,
    KernelSettings,
    MgpEntry,
    OperatorToolMarks,
    RegisterRules,
    ServerEntry,
    ServerLaunch,
    ToolFilter,
)
from defserve.kernel.config.settings import (
    FILE_SETTINGS,
    INVALID_VALUE,
    SERVER_SETTINGS,
    SETTINGS_WITHOUT_EFFECT,
    ConfigMistake,
    ReportMistake,
    SettingPath,
)
from defserve.kernel.config.settings import SettingPath as Place
from defserve.proxying.mounted import RestartPolicy
from defserve.search.entries import ToolBudget

INCLUDED: Final = {"servers", "paths"}


class ConfigMistakes(UsageError):
    """A file, or one that it includes, has mistakes. `mistakes` has each of them."""

    def __init__(self, path: Path, mistakes: Sequence[UsageError]) -> None:
        self.mistakes = tuple(mistakes)
        if len(mistakes) == 1:
            super().__init__(mistakes[0].problem, where=mistakes[0].where, fix=mistakes[0].fix)
            return
        listed = "\n".join(f"  {each!s}".replace("\n", "\n  ") for each in mistakes)
        super().__init__(f"{path} has {len(mistakes)} mistakes:\n{listed}")


def load_kernel_config(path: str | Path) -> KernelConfig:
    """Read a file. Relative paths in it start from its folder.

    Raises ConfigMistakes for its mistakes, and UsageError for a file that cannot be read or is not TOML.
    """
    file = _File(Path(path).absolute())
    top = FILE_SETTINGS.parse_value(
        {name: value for name, value in file.table.items() if name != "servers"}, (), file.report
    )
    files = [file]
    for name in top.get("include", ()):
        files.append(included := _File(file.path.parent / name))
        for other in included.table.keys() - INCLUDED:
            included.report(
                ConfigMistake((other,), "does not belong into an included file", f"move it to {file.path.name}")
            )
    servers = _unique([(each, entry) for each in files for entry in each.servers()])
    settings = kernel_settings(top.get("kernel", {}), file.path.parent, file.report)
    if mistakes := [mistake for each in files for mistake in each.mistakes]:
        raise ConfigMistakes(file.path, mistakes)
    return KernelConfig(
        file.path,
        settings,
        tuple(servers),
        tuple(each.path for each in files),
        tuple(note for each in files for note in each.notes),
    )


class _File:
    """One file: its table, the mistakes found in it, and the lines that they are on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[UsageError] = []
        self.notes: list[str] = []
        try:
            text = path.read_bytes().decode("utf-8")
            self.table: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}", fix="correct that line") from None
        except FileNotFoundError:
            raise UsageError(f"{path} is not there", fix="put it back, or correct its name") from None
        except RecursionError:
            raise UsageError(
                f"{path} is not TOML that can be read: it is nested too deeply", fix="make it flatter"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}", fix="give a TOML file in UTF-8") from None
        self._lines = lines_of(text)
        if "paths" in self.table:
            self.notes.append(f"{self._where(('paths',))}: paths has no effect here")

    def report(self, mistake: ConfigMistake) -> None:
        text = f"{self._subject(mistake.path)} {mistake.problem}"
        self.mistakes.append(UsageError(text, where=self._where(mistake.path), fix=mistake.fix))

    def servers(self) -> list[ServerEntry]:
        """The servers without mistakes."""
        given = self.table.get("servers", [])
        if not is_array(given) or not all(map(is_object, given)):
            self.report(ConfigMistake(("servers",), "must be a list of tables", "write [[servers]] above each server"))
            return []
        found = (self._server(index, table) for index, table in enumerate(given))
        return [entry for entry in found if entry is not None]

    def _server(self, index: int, table: Mapping[str, Any]) -> ServerEntry | None:
        path: Place = ("servers", index)
        before = len(self.mistakes)
        read = SERVER_SETTINGS.parse_value(table, path, self.report)
        if read is INVALID_VALUE or len(self.mistakes) > before:
            return None
        for name in SETTINGS_WITHOUT_EFFECT:
            if name in read:
                where = (*path, name)
                self.notes.append(f"{self._where(where)}: {self._subject(where)} has no effect here")
        return server_entry(read, path, self.path.parent, self._where(path), self.report)

    def _where(self, path: Place) -> str:
        return f"{self.path}:{line_at(self._lines, path)}"

    def _subject(self, path: Place) -> str:
        """What a mistake is about: `server 'office.mail': mgp.trust_level`."""
        if len(path) < 2 or path[0] != "servers" or not isinstance(path[1], int):
            return ".".join(map(str, path)) or "the file"
        id = self.table["servers"][path[1]].get("id")
        server = f"server {id[:60]!r}" if isinstance(id, str) and id else f"server {path[1] + 1}"
        return f"{server}: {'.'.join(map(str, path[2:]))}" if len(path) > 2 else server


def _unique(found: Sequence[tuple[_File, ServerEntry]]) -> list[ServerEntry]:
    """The entries; a second one with an id is reported in its file."""
    seen: dict[str, ServerEntry] = {}
    for file, entry in found:
        if entry.id in seen:
            file.mistakes.append(
                UsageError(
                    f"the id {entry.id!r} is taken by {seen[entry.id].where}",
                    where=entry.where,
                    fix="give each server an id of its own",
                )
            )
        seen.setdefault(entry.id, entry)
    return list(seen.values())


# -- Checked tables of mgp.toml made into entries, with the rules that hold between settings.


# setting of the file → (field of RestartPolicy, how many of its units make a second)
RESTART: Final = {
    "max_restarts": ("max_restarts", 1),
    "restart_window_secs": ("window", 1),
    "backoff_base_ms": ("base", 1000),
    "backoff_max_ms": ("cap", 1000),
}
ONLY_COMMAND: Final = ("args", "cwd", "env", "overlap", "spares")
ONLY_URL: Final = ("auth_token", "headers")
LAUNCH: Final = (
    *("command", "args", "env", "url", "auth_token", "headers", "per", "timeout", "in_flight", "version", "spares"),
)
PLAIN: Final = (
    "display_name", "prefix", "enabled", "start", "idle_stop", "overlap", "pinned", "default_policy",
)  # fmt: skip


def server_entry(
    read: Mapping[str, Any], path: settings.SettingPath, folder: Path, where: str, report: ReportMistake
) -> ServerEntry | None:
    """The entry of a server, or None after reporting what does not fit together."""
    if (problem := _launch_problem(read)) is not None:
        report(ConfigMistake(path, *problem))
        return None
    mgp = read.get("mgp")
    try:
        restart = _restart(read, mgp or {})
    except UsageError as error:
        report(ConfigMistake(path, f"has a restart policy that cannot work: {error.problem}", error.fix))
        return None
    given = {name: read[name] for name in LAUNCH if name in read}
    if "command" in read:
        given |= {"command": resolve_program_path(read["command"], folder), "cwd": str(folder / read.get("cwd", ""))}
    return ServerEntry(
        read["id"],
        ServerLaunch(**given),
        restart,
        tools=ToolFilter(**read.get("tools", {})),
        health=HealthRules(**read.get("health", {})),
        mgp=_mgp(read, mgp),
        where=where,
        **{name: read[name] for name in PLAIN if name in read},
    )


def kernel_settings(read: Mapping[str, Any], folder: Path, report: ReportMistake) -> KernelSettings:
    """`[kernel]`. The paths in it start from `folder`. What does not fit together is reported and left out."""
    given = dict(read)
    register = RegisterRules(**given.pop("register", {}))
    group = _group(given.pop("group", None), folder, report)
    try:
        budget = ToolBudget(**given.pop("budget", {}))
    except UsageError as error:
        report(ConfigMistake(("kernel", "budget"), f"cannot work: {error.problem}", error.fix))
        budget = ToolBudget()
    for name in ("audit", "keys"):
        if name in given:
            given[name] = _place(given[name], folder)
    if given.get("events", "").startswith(SQLITE):
        given["events"] = _place(given["events"], folder)
    pinned = given.pop("tools", {}).get("pinned", ())
    return KernelSettings(**given, budget=budget, register=register, pinned=pinned, group=group)


def _group(read: Mapping[str, Any] | None, folder: Path, report: ReportMistake) -> GroupSettings | None:
    if read is None or "store" not in read:
        return None
    from defserve.stores.identity import SHARED_STORE_SCHEMES

    store = _place(read["store"], folder) if read["store"].startswith(SQLITE) else read["store"]
    if not store.startswith(("${", *SHARED_STORE_SCHEMES)):
        report(
            ConfigMistake(
                ("kernel", "group", "store"),
                "is not a store that several kernels can use",
                "write the address of one: redis://…, postgres://…, or sqlite:///… on one machine",
            )
        )
        return None
    return GroupSettings(**{**read, "store": store})


def _place(text: str, folder: Path) -> str:
    """A file, or the address of a store. A path in either starts from `folder`."""
    if text.startswith(SQLITE):
        return f"{SQLITE}{folder / text.removeprefix(SQLITE)}"
    return text if "://" in text else str(folder / text)


def _launch_problem(read: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with how the server is reached, and how to correct it."""
    if "command" in read and "url" in read:
        return "has both a command and a url", "give one of the two"
    if "command" not in read and "url" not in read:
        return "has neither a command nor a url", 'add command = "…" or url = "https://…/mcp"'
    kind, others = ("url", ONLY_COMMAND) if "url" in read else ("command", ONLY_URL)
    needed = "command" if kind == "url" else "url"
    if (odd := next((name for name in others if name in read), None)) is not None:
        return (
            f"has {odd}, which belongs to a {needed}, and is reached by a {kind}",
            f"remove {odd}, or give a {needed}",
        )
    if "transport" in read and (read["transport"] == "stdio") != (kind == "command"):
        return f"has the transport {read['transport']} and a {kind}", f"remove transport: it follows from {kind}"
    return None


def resolve_program_path(command: str, folder: Path) -> str:
    """A command with a slash is a path, and starts from the folder of the file. Others are found on the PATH."""
    return str(folder / command) if "/" in command and not command.startswith("${") else command


def _restart(read: Mapping[str, Any], mgp: Mapping[str, Any]) -> RestartPolicy:
    """The policy from where it was given: `[servers.mgp]`, a table or a text at the server, `auto_restart`."""
    other = read.get("restart_policy")
    table: Mapping[str, Any] = other if is_object(other) else {} if other is None else {"strategy": other}
    said = [
        strategy
        for strategy in (
            mgp.get("restart_policy"),
            table.get("strategy"),
            {True: "on_failure", False: "never", None: None}[read.get("auto_restart")],
        )
        if strategy is not None
    ]
    if len(set(said)) > 1:
        raise UsageError(f"it is given as {' and as '.join(said)}", fix="say it once: restart_policy in [servers.mgp]")
    given = {**table, **mgp}
    values = {name: given[key] / unit for key, (name, unit) in RESTART.items() if key in given}
    if "max_restarts" in values:
        values["max_restarts"] = int(values["max_restarts"])
    elif "url" in read:
        # An address may come back at any time, and trying costs nothing.
        values["max_restarts"] = None
    if said:
        values["strategy"] = said[0]
    return RestartPolicy(**values)


def _mgp(read: Mapping[str, Any], mgp: Mapping[str, Any] | None) -> MgpEntry | None:
    required = read.get("required_permissions")
    if mgp is None:
        return None if required is None else MgpEntry(permissions_required=required)
    given = {name: mgp[name] for name in ("extensions", "trust_level", "on_change") if name in mgp}
    permissions = (*mgp.get("permissions_required", ()), *(required or ()))
    marks = {pattern: OperatorToolMarks(**marks) for pattern, marks in mgp.get("tools", {}).items()}
    return MgpEntry(permissions_required=tuple(dict.fromkeys(permissions)), tools=marks, **given)


# -- On which line of a TOML file a value stands. `tomllib` does not tell, and an operator wants to know.


_PART: Final = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')"
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADING: Final = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]")
_MEMBER: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_TEXT_OR_COMMENT: Final = re.compile(r"\"\"\"|'''|\"(?:[^\"\\]|\\.)*\"|'[^']*'|#.*")
_ENDS_OF_LONG_TEXTS: Final = {'"""': re.compile(r"(?:[^\\]|\\.)*?\"\"\""), "'''": re.compile(r".*?'''")}


def lines_of(text: str) -> dict[SettingPath, int]:
    """The first line of each heading and each member. Members of inline tables are not in it."""
    found: dict[SettingPath, int] = {}
    counts: dict[tuple[str, ...], int] = {}
    table: SettingPath = ()
    for number, line in _outside_long_texts(text):
        if heading := _HEADING.match(line):
            names = _names(heading[2])
            if heading[1] == "[[":
                counts[names] = counts.get(names, -1) + 1
            table = _make_heading_path(names, counts)
            found.setdefault(table, number)
        elif member := _MEMBER.match(line):
            found.setdefault((*table, *_names(member[1])), number)
    return found


def line_at(lines: Mapping[SettingPath, int], path: SettingPath) -> int:
    """The line of the nearest place around `path` that is known. 1 if there is none."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 1)


def _outside_long_texts(text: str) -> Iterator[tuple[int, str]]:
    inside = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not inside:
            yield number, line
        at = 0
        while found := _ENDS_OF_LONG_TEXTS[inside].match(line, at) if inside else _TEXT_OR_COMMENT.search(line, at):
            at = found.end()
            inside = found[0] if not inside and found[0] in _ENDS_OF_LONG_TEXTS else ""


def _names(key: str) -> tuple[str, ...]:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, key))


def _make_heading_path(names: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> SettingPath:
    """The path of a heading: behind the name of a list of tables stands the number of the latest one."""
    path: SettingPath = ()
    for length, name in enumerate(names, 1):
        number = counts.get(names[:length])
        path = (*path, name) if number is None else (*path, name, number)
    return path
