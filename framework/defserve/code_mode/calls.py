"""One call of a tool by the code: its arguments, which tool is meant, what the code gets of its result or failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from defserve.client.replies import extract_result_value, make_tool_error, object_or_empty
from defserve.core.call import Call, InnerCall
from defserve.core.json_values import find_limit_violation, is_mapping, is_object
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import PeerError, ProtocolError
from defserve.limits import Limits
from defserve.protocols.mcp.app_policy import is_view_only
from defserve.protocols.mcp.errors import ERROR_META_KEY, build_tool_failure, unwrap_exception_group
from defserve.protocols.mcp.tools import Tool
from defserve.sandbox.callouts import ProgramCall, ProgramCallAnswer, ProgramErrorKind

CALL_TOOL_FUNCTION_NAME: Final = "call_tool"

# Calls another tool by name. What code calls is judged, counted and named in errors as what it is.
INDIRECT: Final = "mgp_tools_call"
_TAKES: Final = {"name", "arguments"}

# The type of an error → the exception that the code sees. Any other is a RuntimeError.
EXCEPTIONS: Final[Mapping[str, ProgramErrorKind]] = {
    "refused": "PermissionError",
    "permission_denied": "PermissionError",
    "access_denied": "PermissionError",
    "confirmation_required": "PermissionError",
    "validation_blocked": "PermissionError",
    "code_safety_violation": "PermissionError",
    "declined": "PermissionError",
    "credential_ended": "PermissionError",
    "timeout": "TimeoutError",
    "invalid_arguments": "ValueError",
    "unknown_tool": "NameError",
}


def resolve_tool_call(call: Call, tools: Registry[Tool], out: ProgramCall) -> tuple[Tool, Params]:
    """The tool and the arguments that the code asks for, which are JSON already. Raises BadToolCall."""
    if out.name != CALL_TOOL_FUNCTION_NAME:
        tool = _find_tool(call, tools, out.name)
        return tool, _name_arguments(tool, out)
    given = dict(zip(("name", "arguments"), out.args, strict=False)) | out.kwargs
    name, arguments = given.get("name"), given.get("arguments", {})
    if not (isinstance(name, str) and is_object(arguments) and len(out.args) <= 2 and given.keys() <= _TAKES):
        raise BadToolCall(
            "TypeError", 'call_tool takes a name and a dict of arguments: await call_tool("add", {"a": 1})'
        )
    return _find_tool(call, tools, name), arguments


def find_visible_tool(call: Call, tools: Registry[Tool], name: str) -> Tool | None:
    """The tool of this name if the caller may see it, and models may call it."""
    tool = tools.get(name)
    return tool if tool is not None and is_tool_visible(call, tool) else None


def is_tool_visible(call: Call, tool: Tool) -> bool:
    """Whether the caller may see a tool, and models may call it: some are for views alone."""
    return call.session.composition.visible(call, tool) and not is_view_only(tool)


async def run_tool_call(inner: InnerCall, tool: Tool) -> ProgramCallAnswer:
    """Make a call. What it raises, or answers, becomes the value or the exception that the code gets."""
    try:
        result = await inner.run()
    except ProtocolError as error:
        return ProgramCallAnswer(error="RuntimeError", message=error.message)
    except Exception as error:
        result = build_tool_failure(inner, unwrap_exception_group(error))
    if result.get("isError"):
        return ProgramCallAnswer(error=_classify_error(result), message=make_tool_error(result).message)
    if result.get("resultType", "complete") != "complete":
        return ProgramCallAnswer(
            error="RuntimeError", message=f"{tool.name} does not answer at once, so code cannot call it"
        )
    try:
        return ProgramCallAnswer(
            to_jsonable_python(extract_result_value(result, tool.returns.bare_scalar_schema or tool.returns.schema))
        )
    except PeerError as error:  # of a mounted server
        return ProgramCallAnswer(error="RuntimeError", message=error.message)
    except (PydanticSerializationError, ValueError) as error:
        return ProgramCallAnswer(error="RuntimeError", message=f"the result of {tool.name} has no JSON form: {error}")


def _classify_error(result: Params) -> ProgramErrorKind:
    meta = result.get("_meta")
    detail: Any = meta.get(ERROR_META_KEY) if is_mapping(meta) else None
    return EXCEPTIONS.get(str(detail.get("error_type")), "RuntimeError") if is_mapping(detail) else "RuntimeError"


def _find_tool(call: Call, tools: Registry[Tool], name: str) -> Tool:
    if name == INDIRECT:
        raise BadToolCall("RuntimeError", f"{name} is for clients: code calls the tool itself")
    if (tool := find_visible_tool(call, tools, name)) is None:
        raise BadToolCall("NameError", f"no tool is called {name!r}; describe_tools lists those there are")
    return tool


def _name_arguments(tool: Tool, out: ProgramCall) -> Params:
    """The arguments by name. Those without one are in the order of the tool's schema."""
    if not out.args:
        return out.kwargs
    names = list(object_or_empty(tool.function.arguments.schema.get("properties")))
    if len(out.args) > len(names):
        raise BadToolCall("TypeError", f"{tool.name} takes {len(names)} arguments, and {len(out.args)} were given")
    given = dict(zip(names, out.args, strict=False))
    if twice := given.keys() & out.kwargs.keys():
        raise BadToolCall("TypeError", f"{tool.name} got two values for {', '.join(sorted(twice))}")
    return given | out.kwargs


# -- The arguments of a call by the code, as if they had come in a message. They may be large: this runs in a thread.


class BadToolCall(Exception):
    """A call that cannot be made. The code sees it as an exception of this kind."""

    def __init__(self, kind: ProgramErrorKind, message: str) -> None:
        super().__init__(message)
        self.answer = ProgramCallAnswer(error=kind, message=message)


def check_call_arguments(out: ProgramCall, limits: Limits) -> ProgramCall:
    """The call, if a message could hold its arguments. They are JSON already. Raises BadToolCall."""
    if out.problem is not None:
        raise BadToolCall(*out.problem)
    given = {"args": list(out.args), "kwargs": out.kwargs}
    if (problem := find_limit_violation(given, limits.depth, limits.keys)) is not None:
        raise BadToolCall("ValueError", f"the arguments of {out.name}: {problem}")
    return out
