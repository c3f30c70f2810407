"""`tools/validate`: whether a tool would accept these arguments, without running it."""

from __future__ import annotations

from time import monotonic

from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import BadArguments, Rejected
from defserve.protocols.mcp.failures import UnknownTool
from defserve.protocols.mcp.items import find
from defserve.protocols.mcp.params import optional_fields, text
from defserve.protocols.mcp.tools.tools import Tool, refuse_slow_check
from defserve.wire.messages import Params


class Validation:
    """For callers who may call the tool. It hides and refuses the same tools as `tools/call`."""

    def __init__(self, tools: Registry[Tool]) -> None:
        self._tools = tools

    async def validate(self, call: Call, params: Params) -> Params:
        """`valid`, and if it is false the `problems` that a call would report, each a `field` and a `reason`."""
        name, arguments = text(params, "name"), optional_fields(params, "arguments")
        call.subject = tool = find(call, self._tools, name, UnknownTool)
        # Only callers who may use the tool learn what a guard finds in an argument.
        await call.terms.table.pipeline(tool).admit(call, tool)
        began = monotonic()
        try:
            tool.function.arguments.validate(arguments)
        except BadArguments as error:
            return {"valid": False, "problems": [{"field": p.field, "reason": p.reason} for p in error.problems]}
        except Rejected as error:
            return {"valid": False, "problems": [{"field": "", "reason": error.message}]}
        refuse_slow_check(call, began)
        return {"valid": True, "problems": []}
