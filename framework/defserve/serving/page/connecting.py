"""How each known client is told of a server at an address: a command, an entry for its settings, or a sentence."""

from __future__ import annotations

import json
import shlex
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.host.clients.server_names import server_name_of
from defserve.host.clients.table import CLIENTS, ClientApp, Launch

FIRST: Final = "claude-code"


class ClientSteps(NamedTuple):
    """What to do in one client. `text` is to be copied; without it, `place` says all there is to say."""

    title: str
    place: str
    text: str


def client_steps(server: str, address: str) -> list[ClientSteps]:
    """For every client of the install table, and for the command line."""
    name = server_name_of(server)
    known = sorted(CLIENTS, key=lambda one: one != FIRST)
    return [
        *(_steps(CLIENTS[one], name, address) for one in known),
        ClientSteps("Command line", "defserve", f"defserve list {shlex.quote(address)}"),
    ]


def _steps(client: ClientApp, name: str, address: str) -> ClientSteps:
    if client.adds:
        return ClientSteps(client.title, "one command", client.adds.format(name=name, url=shlex.quote(address)))
    try:
        entry = client.entry(Launch(url=address))
    except UsageError as error:
        return ClientSteps(client.title, f"{error.problem}; {error.fix}.", "")
    return ClientSteps(client.title, _place(client), _written(client, name, entry))


def _place(client: ClientApp) -> str:
    """Its settings file, as seen from a project; of a user's own file only the name, because this page may travel."""
    if "project" in client.paths:
        place = PurePath(client.paths["project"]()).as_posix()
        return place if place != client.title else "of a project"
    return client.paths["user"]().name


def _written(client: ClientApp, name: str, entry: dict[str, Any]) -> str:
    if client.format == "toml":
        # The names and values here are such that JSON's strings are also TOML's.
        return "\n".join([f"[{client.key}.{name}]", *(f"{key} = {json.dumps(entry[key])}" for key in entry)])
    return json.dumps({client.key: {name: entry}})
