"""A view that is shown at the page: its messages answered, and what has an effect put to the person first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

from defserve.host.apps.view import RenderedApp
from defserve.host.client import Client
from defserve.host.conversation import Progress
from defserve.host.fields import Json, object_of, text_of
from defserve.inspector.protocol import BadMessage
from defserve.inspector.questions import Questions
from defserve.wire.messages import INTERNAL_ERROR

LONGEST_CALL: Final = 24 * 3600.0
LONGEST_MESSAGE: Final = 1024 * 1024
LONGEST_URL: Final = 8_192
MOST_PENDING: Final = 16
MOST_APPS: Final = 16
MODES: Final = ("inline", "fullscreen")
CONTEXT: Final = ("theme", "styles", "displayMode", "containerDimensions", "locale", "timeZone", "platform")
"""What a page says about itself to a view."""


class PatientClient:
    """A client as the host of a view needs it, whose calls may take as long as they take."""

    def __init__(self, client: Client, on_progress: Progress | None = None) -> None:
        self._client, self._on_progress = client, on_progress
        self.listed, self.value, self.read = client.listed, client.value, client.read

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        return await self._client.request(method, params)

    async def call_raw(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Json:
        return await self._client.call_raw(tool, arguments, on_progress=self._on_progress, timeout=LONGEST_CALL)


class ShownApp:
    """One view. `answer` takes its messages.

    A call of a tool, a link, and a resource of another server than its own are put to the person, as a question of the
    kind `view`. `{"yes": true, "always": true}`
    allows further calls of the same tool, as long as this view is shown. Messages to a model go no further than the
    page, where the person reads them.
    """

    def __init__(self, era: str, app: RenderedApp, questions: Questions) -> None:
        self.era, self.app, self._questions = era, app, questions
        self._always: set[str] = set()
        self._pending = 0
        self.has_begun = False
        app.modes, app.permit = MODES, self._permit
        app.received = deque(maxlen=0)  # the page keeps them, up to a number of bytes

    async def answer(self, message: Any) -> list[Json]:
        """The messages to post to the view after one of its own. Raises BadMessage for one that is too long."""
        if len(to_json(message, inf_nan_mode="null")) > LONGEST_MESSAGE:
            raise BadMessage(f"the view sent a message of more than {LONGEST_MESSAGE:,} bytes")
        asked = object_of(message)
        if self._pending >= MOST_PENDING and "id" in asked:
            error = {"code": INTERNAL_ERROR, "message": f"{MOST_PENDING} requests of this view wait already"}
            return [{"jsonrpc": "2.0", "id": asked["id"], "error": error}]
        self._pending += 1
        try:
            answers = await self.app.answer(message)
        finally:
            self._pending -= 1
        if asked.get("method") == "ui/notifications/initialized":
            self.has_begun = True
        return answers

    def change(self, context: Json) -> list[Json]:
        """Tell the view what is different at the page. Before it has begun it is told with the rest."""
        changes = {name: context[name] for name in CONTEXT if name in context}
        self.app.context.update(changes)
        if not changes or not self.has_begun:
            return []
        return [{"jsonrpc": "2.0", "method": "ui/notifications/host-context-changed", "params": changes}]

    async def _permit(self, method: str, params: Json) -> bool:
        about: Json = {"tool": self.app.tool.get("name"), "uri": self.app.uri, "method": method}
        if method == "ui/open-link":
            url = text_of(params.get("url")) or ""
            if not is_web(url):
                return False
            return (await self._questions.ask("view", self.era, **about, url=url)).get("yes") is True
        if method == "resources/read":
            uri = text_of(params.get("uri")) or ""
            return (await self._questions.ask("view", self.era, **about, reads=uri)).get("yes") is True
        if method != "tools/call" or (name := str(params.get("name"))) in self._always:
            return True
        wants = {"calls": name, "arguments": object_of(params.get("arguments"))}
        answer = await self._questions.ask("view", self.era, **about, **wants)
        if answer.get("yes") is True and answer.get("always") is True:
            self._always.add(name)
        return answer.get("yes") is True


def is_web(url: str) -> bool:
    """Whether a browser may be sent to it."""
    try:
        return len(url) <= LONGEST_URL and urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


class ShownApps:
    """The views that pages show, by number. The oldest is given up for a new one."""

    def __init__(self) -> None:
        self._apps: dict[int, ShownApp] = {}
        self._last = 0

    def add(self, app: ShownApp) -> int:
        self._last += 1
        self._apps[self._last] = app
        while len(self._apps) > MOST_APPS:
            del self._apps[next(iter(self._apps))]
        return self._last

    def __getitem__(self, number: int) -> ShownApp:
        if (app := self._apps.get(number)) is None:
            raise BadMessage("this view is no longer shown", fix="show it again")
        return app

    def remove(self, number: int) -> None:
        self._apps.pop(number, None)
