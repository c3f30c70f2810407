"""What can be added to a server: the code of each kind of part, and the test that comes with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Template
from typing import Final, NamedTuple

from defserve.errors import UsageError

TEXT: Final = re.compile(r"[^\"\\\x00-\x1f]{1,100}")
FEATURE_SET: Final = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
SIMPLE_VARIABLE: Final = re.compile(r"\{([a-z_]\w*)\}")

TOOL: Final = '''\
@$server.tool
def $name(text: str) -> str:
    """$description

    Args:
        text: What it is given.
    """
    # TODO: do it. Until then it gives back what it was given, and its test says so.
    return text
'''
TOOL_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    assert client.call("$name", text="hello") == "hello"
"""
RESOURCE: Final = '''\
@$server.resource("$uri")
def $name($parameters) -> str:
    """$description"""
    return "$name"
'''
RESOURCE_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    assert client.read_text("$example") == "$name"
"""
PROMPT: Final = '''\
@$server.prompt
def $name(topic: str) -> str:
    """$description"""
    return f"Tell me about {topic}."
'''
PROMPT_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    (message,) = client.prompt("$name", topic="tea")["messages"]
    assert "tea" in message["content"]["text"]
"""
FEATURE_SET_CODE: Final = '''\
$variable = $server.feature_set("$name", "$description")


@$variable.tool
def ${variable}_status() -> str:
    """Say whether $name works."""
    return "ready"
'''
FEATURE_SET_TEST: Final = """\
def test_${variable}_status(client: SyncClient) -> None:
    assert client.call("${variable}_status") == "ready"
"""


class PartRequest(NamedTuple):
    """What an author wants to add; `server` is the variable, `distribution` gives URIs their scheme."""

    kind: str
    name: str
    server: str
    distribution: str = ""
    description: str = ""
    uri: str = ""


class ServerPart(NamedTuple):
    """A part to add: its code and test, the names it defines, and what it is registered as."""

    code: str
    test: str
    test_name: str
    defines: tuple[str, ...]
    registers: tuple[str, ...]


def part_of(wish: PartRequest) -> ServerPart:
    """The part that is wished for. Raises UsageError for a name, URI or description that will not do."""
    if wish.description and not TEXT.fullmatch(wish.description):
        raise UsageError(
            "the description will not do", fix="use at most 100 characters, no double quotes or backslashes"
        )
    return KINDS[wish.kind](wish)


def _tool(wish: PartRequest) -> ServerPart:
    values = {"server": wish.server, "name": _identifier(wish), "description": wish.description or _sentence(wish.name)}
    return _part(TOOL, TOOL_TEST, values, f"test_{wish.name}", (wish.name,), (wish.name,))


def _resource(wish: PartRequest) -> ServerPart:
    name = _identifier(wish)
    uri = wish.uri or f"{wish.distribution or 'app'}://{name.replace('_', '-')}"
    variables = SIMPLE_VARIABLE.findall(uri)
    if not re.fullmatch(r"[A-Za-z][\w+.-]*:[^\s\"\\{}]*", SIMPLE_VARIABLE.sub("1", uri)):
        raise UsageError(f"{uri!r} is no URI for a resource", fix='give one like "notes://all" or "notes://{id}"')
    values = {
        "server": wish.server,
        "name": name,
        "uri": uri,
        "parameters": ", ".join(f"{variable}: str" for variable in variables),
        "example": SIMPLE_VARIABLE.sub("1", uri),
        "description": wish.description or _sentence(name),
    }
    return _part(RESOURCE, RESOURCE_TEST, values, f"test_{name}", (name,), (uri,))


def _prompt(wish: PartRequest) -> ServerPart:
    values = {"server": wish.server, "name": _identifier(wish), "description": wish.description or _sentence(wish.name)}
    return _part(PROMPT, PROMPT_TEST, values, f"test_{wish.name}", (wish.name,), (wish.name,))


def _feature_set(wish: PartRequest) -> ServerPart:
    if not FEATURE_SET.fullmatch(wish.name) or wish.name[0].isdigit():
        raise UsageError(
            f"{wish.name!r} is no name for a feature set", fix='use words with dots between them: "memory.retrieval"'
        )
    variable = _identifier(wish._replace(name=wish.name.replace(".", "_")))
    values = {
        "server": wish.server,
        "name": wish.name,
        "variable": variable,
        "description": wish.description or _sentence(wish.name).removesuffix("."),
    }
    status = f"{variable}_status"
    return _part(FEATURE_SET_CODE, FEATURE_SET_TEST, values, f"test_{status}", (variable, status), (wish.name, status))


KINDS: Final[Mapping[str, Callable[[PartRequest], ServerPart]]] = {
    "tool": _tool,
    "resource": _resource,
    "prompt": _prompt,
    "feature-set": _feature_set,
}


def _part(
    code: str,
    test: str,
    values: Mapping[str, str],
    test_name: str,
    defines: tuple[str, ...],
    registers: tuple[str, ...],
) -> ServerPart:
    return ServerPart(
        Template(code).substitute(values), Template(test).substitute(values), test_name, defines, registers
    )


def _identifier(wish: PartRequest) -> str:
    """The name, as a function can have it."""
    import builtins
    import keyword

    better = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", wish.name)).strip("_").lower()
    if not re.fullmatch(r"[a-z]\w{0,59}", wish.name, re.ASCII) or keyword.iskeyword(wish.name):
        better = (
            better if re.fullmatch(r"[a-z]\w{0,59}", better) and not keyword.iskeyword(better) else "my_" + wish.kind
        )
        raise UsageError(
            f"{wish.name!r} cannot be the name of a function",
            fix=f"defserve add {wish.kind} {better.replace('-', '_')}",
        )
    if hasattr(builtins, wish.name):
        raise UsageError(
            f"{wish.name!r} is a builtin of Python, which the rest of the module may use",
            fix=f"say more: defserve add {wish.kind} {wish.name}_items",
        )
    return wish.name


def _sentence(name: str) -> str:
    """`get_weather` → `Get weather.`"""
    words = re.sub(r"[_.]+", " ", name).strip()
    return f"{words[:1].upper()}{words[1:]}."
