"""What the processes of the development server hand on: the plan of a child, and how clients set up their sessions."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from defserve.core.messages import is_request_id
from defserve.protocols.mcp.subscriptions import LIST_CHANGED_FILTERS, SUBSCRIPTION_ID_META_KEY

READY_LINE = b"ready\n"
"""What a child on a socket writes to its standard output when it serves."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """`options` are those of `Server.run`, `sockets` the inherited file descriptors.

    The child writes a `DevChildReport` to the file `report`, how clients set up their sessions into the folder
    `sessions`, and the tool that was called last, with its arguments, to the file `last_call`. The file
    `local_key` holds the local token: on the command line other users would see it. If it `is_quiet`, problems are
    in the report only.
    """

    target: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    report: str = ""
    sockets: tuple[int, ...] = ()
    sessions: str = ""
    local_key: str = ""
    last_call: str = ""
    is_quiet: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServePlan:
        given = json.loads(text)
        given["sockets"] = tuple(given["sockets"])
        return cls(**given)


# -- What a child tells its parent before it serves, or instead.


class ServerSummary(NamedTuple):
    """What is served. `items` are its tools, resources and prompts, each with a digest of what it says and does."""

    name: str
    version: str
    tools: int
    tokens: int
    items: dict[str, str]


class StartProblem(NamedTuple):
    """Why a server does not start. `lines` are the author's lines that led there, each with its place."""

    where: str
    text: str
    lines: list[str]


class DevChildReport(NamedTuple):
    """The source `files` of a child, `folders` that it serves as they are, and what it serves or why it does not."""

    files: list[str] = []
    folders: list[str] = []
    served: ServerSummary | None = None
    problem: StartProblem | None = None

    def write_file(self, path: str) -> None:
        """Renamed when it is complete."""
        Path(path + ".new").write_text(json.dumps(self), encoding="utf-8")
        os.replace(path + ".new", path)

    @classmethod
    def read_file(cls, path: Path) -> DevChildReport:
        """An empty one, if the child has not written any."""
        try:
            files, folders, served, problem = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        return cls(files, folders, served and ServerSummary(*served), problem and StartProblem(*problem))


# -- How a client opened its session and what it set up, to be repeated to the next child.


Json = dict[str, Any]

LISTEN_METHOD = "subscriptions/listen"

# Requests that set something up → the parameter that tells them apart; and requests that undo one.
SETTING: dict[Any, str | None] = {"logging/setLevel": None, "resources/subscribe": "uri"}
UNSETTING = {"resources/unsubscribe": ("resources/subscribe", "uri")}


class ReplayableClientSetup:
    """Remembers the handshake and the settings of a session. Stateless requests need none of this."""

    def __init__(self) -> None:
        self.initialize: Json | None = None
        self.initialized: Json | None = None
        self._settings: dict[tuple[Any, str], Json] = {}

    def record_message(self, message: Json) -> None:
        """Take note of a message from the client."""
        method, params = message.get("method"), get_object_member(message, "params")
        if method == "initialize":
            self.__init__()
            self.initialize = message
        elif method == "notifications/initialized":
            self.initialized = message
        elif method in SETTING:
            key = SETTING[method]
            self._settings[method, str(params.get(key)) if key else ""] = message
        elif method in UNSETTING:
            setting, key = UNSETTING[method]
            self._settings.pop((setting, str(params.get(key))), None)

    @property
    def settings(self) -> list[Json]:
        """Requests to repeat when the session is open."""
        return list(self._settings.values())


def get_object_member(message: Json, name: str) -> Json:
    """An object in an object; empty if there is none."""
    found = message.get(name)
    return cast("Json", found) if isinstance(found, dict) else {}


def make_change_notifications(capabilities: Json) -> list[Json]:
    """The notifications for a session when all lists may have changed."""
    kinds = [kind for kind in LIST_CHANGED_FILTERS if get_object_member(capabilities, kind).get("listChanged")]
    return [{"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"} for kind in kinds]


def make_subscribed_notifications(listen: Json) -> list[Json]:
    """The notifications for an open `subscriptions/listen` request: only those that it asked for."""
    wanted = get_object_member(get_object_member(listen, "params"), "notifications")
    about = {"_meta": {SUBSCRIPTION_ID_META_KEY: listen["id"]}}
    return [
        {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed", "params": about}
        for kind, wish in LIST_CHANGED_FILTERS.items()
        if wanted.get(wish) is True
    ]


def is_repeated_acknowledgement(message: Json, of: set[Any]) -> bool:
    """Whether it acknowledges a listen request that was acknowledged before."""
    if message.get("method") != "notifications/subscriptions/acknowledged":
        return False
    id = get_object_member(get_object_member(message, "params"), "_meta").get(SUBSCRIPTION_ID_META_KEY)
    return is_request_id(id) and id in of
