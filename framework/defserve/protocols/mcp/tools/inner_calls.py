"""A tool called from within another call: the one road for code mode, meta-tools and whoever else calls by name.

The call passes visibility, wrappers, stages, limits and audit like a `tools/call` of the same peer. It is known by the
trace id of the outer call, under its own tool's name.
"""

from __future__ import annotations

from typing import Any

from defserve.core.call import Call, InnerCall
from defserve.protocols.mcp.params import meta
from defserve.protocols.mcp.trace import Trace, trace_id
from defserve.wire.messages import Params

METHOD = "tools/call"
# Of the outer call alone: values of several calls would not grow.
_OWN_META = "progressToken"


def inner_call(outer: Call, name: str, arguments: Params) -> InnerCall:
    """A call of a tool by name, to be `run`. What the client sent along with the outer call counts for it too."""
    inner = InnerCall(outer, METHOD, {"name": name, "arguments": arguments, "_meta": passed_on(outer)})
    inner.local(Trace).id = trace_id(outer)
    return inner


async def call_tool(outer: Call, name: str, arguments: Params) -> Params:
    """The `CallToolResult` of a tool, called for the peer of `outer`; `isError` marks one that failed.

    Raises what a `tools/call` would answer with an error: UnknownTool, and refusals where MGP was negotiated.
    In the stateless era a question ends the outer call too, and the answers reach the tool when it is repeated.
    """
    return await inner_call(outer, name, arguments).run()


def passed_on(outer: Call) -> dict[str, Any]:
    """The `_meta` of a call that inner calls share: the client's offer, grants, log level and trace."""
    return {key: value for key, value in meta(outer.params).items() if key != _OWN_META}
