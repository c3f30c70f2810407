"""MGP §4.4: when a host asks before it calls a tool, by the tool's risk.

| risk | asked |
|---|---|
| safe, moderate | if the tool says `confirmation_required`; moderate also with `confirm_moderate` |
| dangerous, or not listed | always, unless the tool wants no confirmation and needs permissions, which were approved |
| dangerous, called because another tool failed | always |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from defserve.host.answers import Answers, settled
from defserve.host.mgp.security.tool_security import ListedSecurity
from defserve.host.person import agrees
from defserve.protocols.mgp.confirmation import NotConfirmed, question

Confirm: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], bool | Awaitable[bool]]
"""Tool, arguments and `security` block to yes or no."""


class CallConfirmation:
    """Asks `confirm`, or else the person behind `answers`. If there is neither, a call that needs it is refused."""

    def __init__(self, confirm: Confirm | None, answers: Answers, *, moderate: bool) -> None:
        self._confirm, self._answers, self._moderate = confirm, answers, moderate

    async def check(self, tool: ListedSecurity, arguments: Mapping[str, Any], instead_of: str | None = None) -> bool:
        """Returns if the call may be sent: whether a person has confirmed it. Permissions were checked before.

        `instead_of` is the tool whose failure names this one. Raises NotConfirmed.
        """
        if not (self._is_needed(tool) or (instead_of is not None and tool.risk == "dangerous")):
            return False
        agreed = await self._ask(tool, deepcopy(dict(arguments)), instead_of)
        if agreed is None:
            raise NotConfirmed(
                f"{tool.name} is {tool.risk} and must be confirmed, but nobody can be asked",
                data={"fix": "give Mgp(confirm=…), or answers that can be asked"},
            )
        if not agreed:
            raise NotConfirmed(f"{tool.name} was not confirmed")
        return True

    def _is_needed(self, tool: ListedSecurity) -> bool:
        if tool.risk == "dangerous":
            return tool.confirmation_required is not False or not tool.permissions
        return tool.confirmation_required is True or (tool.risk == "moderate" and self._moderate)

    async def _ask(self, tool: ListedSecurity, arguments: dict[str, Any], instead_of: str | None) -> bool | None:
        if self._confirm is not None:
            return await settled(self._confirm(tool.name, arguments, deepcopy(tool.security))) is True
        asked = question(tool.name, arguments, tool.schema, risk=tool.risk, instead_of=instead_of)
        return await agrees(self._answers, asked, "confirmed")
