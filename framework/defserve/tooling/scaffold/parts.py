"""The parts that can be added to a server: the code of each kind, and its test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
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
        text: The text to work on.
    """
    # TODO: write what it does. For now it returns its argument, and its test expects that.
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
    """What an author wants to add. `server` is the variable, `distribution` the scheme of URIs."""

    kind: str
    name: str
    server: str
    distribution: str = ""
    description: str = ""
    uri: str = ""


class ServerPart(NamedTuple):
    """A part to add: its code and test, the names that it defines, and those that it is served as."""

    code: str
    test: str
    test_name: str
    defines: tuple[str, ...]
    registers: tuple[str, ...]


def part_of(request: PartRequest) -> ServerPart:
    """The part to add. Raises UsageError for a name, URI or description that is not valid."""
    if request.description and not TEXT.fullmatch(request.description):
        raise UsageError(
            "the description is not valid", fix="use at most 100 characters, without double quotes and backslashes"
        )
    return KINDS[request.kind](request)


def _function(code: str, test: str, request: PartRequest) -> ServerPart:
    """A tool or a prompt: a function that needs only a name."""
    name = _identifier(request)
    values = {"server": request.server, "name": name, "description": request.description or _sentence(name)}
    return _part(code, test, values, f"test_{name}", (name,), (name,))


def _resource(request: PartRequest) -> ServerPart:
    name = _identifier(request)
    uri = request.uri or f"{request.distribution or 'app'}://{name.replace('_', '-')}"
    variables = SIMPLE_VARIABLE.findall(uri)
    if not re.fullmatch(r"[A-Za-z][\w+.-]*:[^\s\"\\{}]*", SIMPLE_VARIABLE.sub("1", uri)):
        raise UsageError(f"{uri!r} is not a URI for a resource", fix='use one like "notes://all" or "notes://{id}"')
    values = {
        "server": request.server,
        "name": name,
        "uri": uri,
        "parameters": ", ".join(f"{variable}: str" for variable in variables),
        "example": SIMPLE_VARIABLE.sub("1", uri),
        "description": request.description or _sentence(name),
    }
    return _part(RESOURCE, RESOURCE_TEST, values, f"test_{name}", (name,), (uri,))


def _feature_set(request: PartRequest) -> ServerPart:
    if not FEATURE_SET.fullmatch(request.name) or request.name[0].isdigit():
        raise UsageError(
            f"{request.name!r} is not a name for a feature set",
            fix='use words with dots between them: "memory.retrieval"',
        )
    variable = _identifier(request._replace(name=request.name.replace(".", "_")))
    values = {
        "server": request.server,
        "name": request.name,
        "variable": variable,
        "description": request.description or _sentence(request.name).removesuffix("."),
    }
    status = f"{variable}_status"
    return _part(
        FEATURE_SET_CODE, FEATURE_SET_TEST, values, f"test_{status}", (variable, status), (request.name, status)
    )


KINDS: Final[Mapping[str, Callable[[PartRequest], ServerPart]]] = {
    "tool": partial(_function, TOOL, TOOL_TEST),
    "resource": _resource,
    "prompt": partial(_function, PROMPT, PROMPT_TEST),
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


def _identifier(request: PartRequest) -> str:
    """The name, checked to be one for a function."""
    import builtins
    import keyword

    better = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", request.name)).strip("_").lower()
    if not re.fullmatch(r"[a-z]\w{0,59}", request.name, re.ASCII) or keyword.iskeyword(request.name):
        better = (
            better if re.fullmatch(r"[a-z]\w{0,59}", better) and not keyword.iskeyword(better) else "my_" + request.kind
        )
        raise UsageError(
            f"{request.name!r} cannot be the name of a function",
            fix=f"defserve add {request.kind} {better.replace('-', '_')}",
        )
    if hasattr(builtins, request.name):
        raise UsageError(
            f"{request.name!r} is a builtin of Python that the module may use",
            fix=f"use a longer name: defserve add {request.kind} {request.name}_items",
        )
    return request.name


def _sentence(name: str) -> str:
    """`get_weather` → `Get weather.`"""
    words = re.sub(r"[_.]+", " ", name).strip()
    return f"{words[:1].upper()}{words[1:]}."
