"""`client.render` without `await`: a view, and the verbs of the host that shows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from defserve.host.apps.view import RenderedApp

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

Json: TypeAlias = dict[str, Any]
Do: TypeAlias = Callable[[Callable[[Any], Awaitable[Any]]], Any]


class SyncApp:
    """The verbs of `RenderedApp`. Made by `SyncClient.render`."""

    def __init__(self, app: RenderedApp, do: Do) -> None:
        self.app, self._do = app, do

    @property
    def uri(self) -> str:
        return self.app.uri

    @property
    def html(self) -> str:
        """The document that a host shows."""
        return self.app.html

    @property
    def policy(self) -> str:
        """The `Content-Security-Policy` under which it is shown."""
        return self.app.policy

    @property
    def permissions(self) -> list[str]:
        """The features that it wishes for, as an `allow` attribute names them."""
        return self.app.permissions

    @property
    def border(self) -> bool | None:
        return self.app.border

    @property
    def text(self) -> str:
        """What the model, and a host without views, read of the result."""
        return self.app.text

    @property
    def result(self) -> Json:
        """The result of the tool, unchanged."""
        return self.app.result

    @property
    def received(self) -> list[tuple[str, Json]]:
        """Method and params of what the view sent last."""
        return list(self.app.received)

    @property
    def value(self) -> Any:
        """The value that the tool returned. Raises ToolError if it failed."""
        return self._do(lambda _: self.app.value())

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool as the view does. Raises UsageError for one that is not visible to views."""
        return self._do(lambda _: self.app.call(tool, **arguments))

    def answer(self, message: Any) -> list[Json]:
        """The messages to post to the view after one that it has sent."""
        return self._do(lambda _: self.app.answer(message))
