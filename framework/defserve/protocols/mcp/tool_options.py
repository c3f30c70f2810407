"""What a tool's author may ask for beyond a plain call, checked when the tool is declared.

Running as a task (tasks extension, SEP-2663), arguments that clients repeat as HTTP headers (2026-07-28), and a text of
one's own beside structured content. Loaded only if a tool uses one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.binding.results import WRAPPED_RESULT_KEY, ResultMismatch
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.errors import UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools import Tool


TASK_FACET_NAME: Final = "tasks"
"""The facet of a tool that may run as a task."""

DEFAULT_TTL_SECONDS: Final = 3600.0
DEFAULT_POLL_SECONDS: Final = 1.0
MAX_POLL_SECONDS: Final = 3600.0
MAX_RETRIES: Final = 100


class TaskOptions(NamedTuple):
    """`ttl`: for how many seconds a task is kept, from its creation. `poll`: how often its client should ask for it.

    `is_required`: the tool does not answer at once; clients that take no tasks are refused. `retry`: how often a task
    is run again if the process that runs it dies; 0 means that it has failed then. `begins_later`: the function itself
    says when the task begins, with `ctx.task.begin()`. What it asks before that is asked in the reply to the call.
    """

    is_required: bool
    ttl: float
    poll: float
    retry: int
    begins_later: bool

    @classmethod
    def from_tool(cls, tool: Tool, limits: Limits) -> TaskOptions:
        """Raises UsageError for options that do not fit together, or are beyond what the server allows."""
        options = tool.options
        ttl = DEFAULT_TTL_SECONDS if options.ttl is None else options.ttl
        poll = DEFAULT_POLL_SECONDS if options.poll is None else options.poll
        retry: Any = options.retry
        if options.task is None:
            raise UsageError(
                f"tool {tool.name!r} is no task, and ttl, poll, retry and begin are for tasks",
                where=tool.where,
                fix='add task="optional" or task="required"',
            )
        problems = {
            f"task={options.task!r}": (
                options.task not in ("optional", "required"),
                'say task="optional" or task="required"',
            ),
            f"ttl={ttl!r}": (
                not _is_between(ttl, 0.001, limits.task_ttl),
                f"give seconds, at most {limits.task_ttl:g} (Limits.task_ttl)",
            ),
            f"poll={poll!r}": (
                not _is_between(poll, 0.001, MAX_POLL_SECONDS),
                f"give seconds, at most {MAX_POLL_SECONDS:g}",
            ),
            f"retry={retry!r}": (
                type(retry) is not int or not 0 <= retry <= MAX_RETRIES,
                f"say how often it may run again, at most {MAX_RETRIES} times",
            ),
            f"begin={options.begin!r}": (options.begin not in ("now", "later"), 'say begin="now" or begin="later"'),
        }
        for said, (is_wrong, fix) in problems.items():
            if is_wrong:
                raise UsageError(f"tool {tool.name!r} cannot run as a task with {said}", where=tool.where, fix=fix)
        return cls(options.task == "required", float(ttl), float(poll), retry, options.begin == "later")


def _is_between(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


# -- Arguments that clients repeat as HTTP headers (2026-07-28: `x-mcp-header` in an input schema).


ANNOTATION = "x-mcp-header"
PARAM_HEADER_PREFIX = "Mcp-Param-"
TYPES = ("string", "integer", "boolean")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# Keywords that hold schemas. What is not here (`default`, `examples`, `enum`, …) is data, and may look like anything.
_ONE = frozenset(
    (
        "items contains additionalItems unevaluatedItems additionalProperties unevaluatedProperties propertyNames "
        "not if then else contentSchema"
    ).split()
)
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_BY_NAME = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))

Path = tuple[str, ...]


def find_param_headers(schema: dict[str, Any]) -> dict[Path, str]:
    """The path of each annotated argument → the full name of its header, such as `Mcp-Param-Region`.

    Raises ValueError for an annotation that would make a client drop the whole tool.
    """
    found: dict[Path, str] = {}
    owners: dict[str, Path] = {}
    for path, position in _positions(schema):
        if ANNOTATION not in position:
            continue
        if not path:
            raise ValueError(
                f"{ANNOTATION} {position[ANNOTATION]!r} is where clients do not look: "
                "put it on a property that is reached from the root through `properties` alone"
            )
        token = _token(".".join(path), position)
        if (owner := owners.setdefault(token.lower(), path)) != path:
            raise ValueError(
                f"{ANNOTATION} {token!r} is on both {'.'.join(owner)} and {'.'.join(path)}; "
                "letter case makes no difference"
            )
        found[path] = PARAM_HEADER_PREFIX + token
    return found


FILE_ANNOTATION = "x-mcp-file"
FILE_PARAMS_META_KEY = "openai/fileParams"


def find_file_params(schema: dict[str, Any]) -> list[str]:
    """The arguments that take a file, or a list of files. ChatGPT sends files only for those it is told of."""
    properties: Any = schema.get("properties")
    return [name for name, one in properties.items() if _takes_file(one)] if is_object(properties) else []


def _takes_file(schema: Any) -> bool:
    if not is_object(schema):
        return False
    choices: Any = schema.get("anyOf")
    inner = [schema.get("items"), *(choices if is_array(choices) else ())]
    return FILE_ANNOTATION in schema or any(map(_takes_file, inner))


def _token(where: str, position: dict[str, Any]) -> str:
    token, kind = position[ANNOTATION], position.get("type")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"{where}: {ANNOTATION} {token!r} is not a header name (a non-empty RFC 9110 token)")
    if kind not in TYPES:
        raise ValueError(f"{where}: {ANNOTATION} is for a string, integer or boolean, and its type is {kind!r}")
    return token


def _positions(root: dict[str, Any]) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Every schema inside `root`, with its path through `properties`, or None where another keyword was crossed."""
    waiting: list[tuple[Path | None, Any]] = [((), root)]
    for path, position in waiting:
        if not is_object(position):
            continue
        yield path, position
        for keyword, value in position.items():
            if keyword == "properties" and is_object(value):
                waiting += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif keyword in _SEVERAL and is_array(value):
                waiting += [(None, inner) for inner in value]
            elif keyword in _BY_NAME and is_object(value):
                waiting += [(None, inner) for inner in value.values()]
            elif keyword in _ONE:
                waiting.append((None, value))


# -- The text beside structured content. Some clients give their model only the one, some only the other.


def make_text_writer(tool: Tool) -> Callable[[Any, Any], list[Params]]:
    """Writes the content blocks that stand for the copy, from the returned value and its structured content.

    Raises UsageError for a text that this tool cannot have.
    """
    text: Any = tool.options.text

    def wrong(problem: str, fix: str) -> UsageError:
        return UsageError(f"tool {tool.name!r}: {problem}", where=tool.where, fix=fix)

    if text is not False and not isinstance(text, str) and not callable(text):
        raise wrong(f"text={text!r} is not possible", 'give a template ("{total} found"), a function, or False')
    if tool.returns.schema is None or tool.function.streams:
        raise wrong(
            "text= is for structured content, and it has none of a declared type",
            "annotate what it returns: a model, a dataclass, a TypedDict or a list; a generator has no such text",
        )
    if text is False:
        return lambda value, structured: []
    if callable(text):
        return lambda value, structured: [{"type": "text", "text": _require_text(text(value), tool.name)}]
    members: Params = (tool.returns.publish_schema() or {}).get("properties", {})
    for name in _find_template_names(text, wrong):
        if members and name not in members:  # a dict may have any
            raise wrong(
                f"its text has {{{name}}}, which its output schema does not have", f"use some of {', '.join(members)}"
            )

    def fill_template(value: Any, structured: Any) -> list[Params]:
        given = {WRAPPED_RESULT_KEY: structured} if tool.returns.wraps else structured
        try:
            return [{"type": "text", "text": text.format_map(given)}]
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ResultMismatch(f"the text of {tool.name} cannot be made from the result: {error!r}") from None

    return fill_template


def _find_template_names(text: str, wrong: Callable[[str, str], UsageError]) -> list[str]:
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise wrong(f"text={text!r} is no template: {error}", "write {name} for a member, and {{ for a brace") from None
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in fields]


def _require_text(text: Any, name: str) -> str:
    if isinstance(text, str):
        return text
    raise ResultMismatch(f"the function in text= of {name} gave {type(text).__name__}, and not a str")
