"""MGP §4.4: when a host asks before it calls a tool, by the tool's risk.

| risk | asked |
|---|---|
| safe, moderate | if the tool says `confirmation_required`; moderate also with `confirm_moderate` |
| dangerous | always, unless the tool wants no confirmation and needs permissions, which were approved |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from defserve.host.answers import Answers, settled
from defserve.host.mgp.security.tool_security import ListedSecurity
from defserve.host.person import agrees
from defserve.protocols.mgp.confirmation import NotConfirmed
from defserve.redaction import printable, redact

Confirm: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], bool | Awaitable[bool]]
"""Tool, arguments and `security` block to yes or no."""


class CallConfirmation:
    """Asks `confirm`, or else the person behind `answers`. If there is neither, a call that needs it is refused."""

    def __init__(self, confirm: Confirm | None, answers: Answers, *, moderate: bool) -> None:
        self._confirm, self._answers, self._moderate = confirm, answers, moderate

    async def check(self, tool: ListedSecurity, arguments: Mapping[str, Any]) -> None:
        """Returns if the call may be sent. Permissions were checked before. Raises NotConfirmed."""
        if not self._is_needed(tool):
            return
        agreed = await self._ask(tool, deepcopy(dict(arguments)))
        if agreed is None:
            raise NotConfirmed(
                f"{tool.name} is {tool.risk} and must be confirmed, but nobody can be asked",
                data={"fix": "give Mgp(confirm=…), or answers that can be asked"},
            )
        if not agreed:
            raise NotConfirmed(f"{tool.name} was not confirmed")

    def _is_needed(self, tool: ListedSecurity) -> bool:
        if tool.risk == "dangerous":
            return tool.confirmation_required is not False or not tool.permissions
        return tool.confirmation_required is True or (tool.risk == "moderate" and self._moderate)

    async def _ask(self, tool: ListedSecurity, arguments: dict[str, Any]) -> bool | None:
        if self._confirm is not None:
            return await settled(self._confirm(tool.name, arguments, deepcopy(tool.security))) is True
        shown = [f"  {name}: {value}" for name, value in redact(arguments).items()]
        question = "\n".join([f"Run {printable(tool.name)} ({tool.risk})?", *shown])
        return await agrees(self._answers, question, "confirmed")
