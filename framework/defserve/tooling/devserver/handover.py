"""What the processes of the development server hand on: the plan of a child, and how clients set up their sessions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from defserve.core.messages import is_request_id
from defserve.protocols.mcp.subscriptions import LIST_CHANGED_FILTERS, SUBSCRIPTION_ID_META_KEY

READY_LINE = b"ready\n"
"""What a child on a socket writes to its standard output when it serves."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """`options` are those of `Server.run`, `sockets` the inherited file descriptors.

    The child writes the names of its source files to the file `report`, and how clients set up their sessions into the
    folder `sessions`. The file `local_key` holds the local token: on the command line other users would see it.
    """

    target: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    report: str = ""
    sockets: tuple[int, ...] = ()
    sessions: str = ""
    local_key: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServePlan:
        given = json.loads(text)
        given["sockets"] = tuple(given["sockets"])
        return cls(**given)


# -- How a client opened its session and what it set up, to be repeated to the next child.


Json = dict[str, Any]

LISTEN_METHOD = "subscriptions/listen"

# Requests that set something up → the parameter that tells them apart; and requests that undo one.
SETTING: dict[Any, str | None] = {"logging/setLevel": None, "resources/subscribe": "uri"}
UNSETTING = {"resources/unsubscribe": ("resources/subscribe", "uri")}


class ClientSetup:
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


def is_acknowledgement(message: Json, of: set[Any]) -> bool:
    """Whether it acknowledges a listen request that was acknowledged before."""
    if message.get("method") != "notifications/subscriptions/acknowledged":
        return False
    id = get_object_member(get_object_member(message, "params"), "_meta").get(SUBSCRIPTION_ID_META_KEY)
    return is_request_id(id) and id in of
