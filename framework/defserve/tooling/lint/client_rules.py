"""What each client refuses or leaves out of a list of tools: `defserve check --for`.

One row a client: the limits of its names and lists, and the checks that its schemas have to pass. What makes it refuse
a tool, a list or a prompt is an error; what its model is not told is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from defserve.binding.json_schemas import list_subschemas, walk_schema
from defserve.core.json_values import as_list, is_array, is_mapping, is_object
from defserve.tooling.lint.definitions import ItemDefinition, LintFinding, ServerDefinitions, make_finding

Level = Literal["error", "warning"]
Schema = dict[str, Any]

_NAME_64: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNIONS: Final = frozenset(("anyOf", "oneOf", "allOf"))


class Client(NamedTuple):
    """One client. `name` is what the name of a tool has to be; `full_name` is what it makes of it, and its length.

    `root` are keywords that must not stand at the top of an input schema. `checks` are names in `SCHEMA_CHECKS`.
    `instructions`: how many characters of the server's instructions it surely reads.
    """

    title: str
    name: re.Pattern[str]
    checks: tuple[str, ...]
    root: frozenset[str] = frozenset()
    full_name: tuple[str, int] | None = None
    max_tools: tuple[int, Level] | None = None
    instructions: int | None = None


LINTED_CLIENTS: Final[Mapping[str, Client]] = {
    "chatgpt": Client(
        "ChatGPT",
        _NAME_64,
        ("missing-reference", "items", "properties", "too-large"),
        _UNIONS | {"enum", "not"},
        instructions=512,
    ),
    "claude": Client(
        "Claude",
        re.compile(r"[a-zA-Z0-9_-]{1,128}"),
        ("missing-reference", "output-type"),
        _UNIONS,
        full_name=("mcp__{server}__{tool}", 128),
    ),
    "gemini": Client(
        "Gemini",
        re.compile(r"[a-zA-Z_][a-zA-Z0-9_:.-]{0,63}"),
        ("missing-reference", "reference", "array-enum", "output-type", "closed-object"),
    ),
    "copilot": Client(
        "Copilot",
        _NAME_64,
        ("missing-reference", "items", "properties", "array-enum", "dynamic-reference", "output-type"),
        _UNIONS | {"enum", "not"},
        max_tools=(128, "error"),
    ),
    "cursor": Client(
        "Cursor",
        re.compile(r"[a-zA-Z0-9_.-]{1,128}"),
        ("missing-reference", "output-type"),
        full_name=("{server}{tool}", 59),
        max_tools=(80, "warning"),
    ),
    "codex": Client(
        "Codex",
        _NAME_64,
        ("missing-reference", "items", "properties", "recursion", "one-of", "untyped", "untold"),
        _UNIONS | {"enum", "not"},
    ),
}


class ClientFinding(NamedTuple):
    """A problem that one client has with a server."""

    rule: str
    level: Level
    finding: LintFinding


def find_client_problems(found: ServerDefinitions, name: str) -> Iterator[ClientFinding]:
    """What a client of the table would refuse, and what it would not tell its model."""
    client, server = LINTED_CLIENTS[name], str(found.info.get("name") or "")
    listed = [tool for tool in found.tools if tool.tokens]
    told = set[str]()
    for tool in found.tools:
        yield from _check_name(client, tool, server)
        for problem in _check_schemas(client, tool):
            is_general = problem.rule in SCHEMA_CHECKS and SCHEMA_CHECKS[problem.rule].is_general
            if not is_general or problem.rule not in told:
                yield problem
            told.add(problem.rule)
    if client.max_tools is not None and len(listed) > client.max_tools[0] and not found.is_searched:
        most, level = client.max_tools
        problem = f"has {len(listed)} tools, and {client.title} uses at most {most}"
        fix = 'have them searched: Server(search="auto"); or split the server'
        yield ClientFinding("too-many-tools", level, LintFinding("the list of tools", listed[most].where, problem, fix))
    if client.instructions is not None and len(found.instructions) > client.instructions:
        problem = f"have {len(found.instructions)} characters, and {client.title} may read only {client.instructions}"
        where = next((tool.where for tool in found.tools), "")
        finding = LintFinding("the instructions", where, problem, "say first what matters most, or shorten them")
        yield ClientFinding("long-instructions", "warning", finding)


def _check_name(client: Client, tool: ItemDefinition, server: str) -> Iterator[ClientFinding]:
    rename = f'give it another: @server.tool(name="{re.sub(r"[^a-zA-Z0-9_-]", "_", tool.name)[:40]}")'
    if client.name.fullmatch(tool.name) is None:
        problem = f"{client.title} refuses its name: it has to be {client.name.pattern}"
        yield ClientFinding("client-name", "error", make_finding(tool, problem, rename))
    if client.full_name is not None:
        form, most = client.full_name
        full = form.format(server=server, tool=tool.name)
        if len(full) > most:
            problem = f"{client.title} leaves it out: {full!r} is longer than {most} characters"
            yield ClientFinding("client-name", "error", make_finding(tool, problem, f"shorten a name; {rename}"))


def _check_schemas(client: Client, tool: ItemDefinition) -> Iterator[ClientFinding]:
    schema = dict(tool.schema)
    for keyword in sorted(client.root & schema.keys()):
        problem = f"{client.title} refuses {keyword} at the top of an input schema"
        fix = "make the choice an argument of its own, or split the tool"
        yield ClientFinding("root-combiner", "error", make_finding(tool, problem, fix))
    for name in client.checks:
        check = SCHEMA_CHECKS[name]
        member = "outputSchema" if name == "output-type" else "inputSchema"
        if not is_mapping(checked := tool.wire.get(member)):
            continue
        places = list(dict.fromkeys(check.look(dict(checked))))
        if places:
            shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
            finding = make_finding(tool, check.problem.format(client=client.title, places=shown), check.fix)
            yield ClientFinding(name, check.level, finding)


# -- The checks of schemas. Each yields the places, or the words, that it is about.


class SchemaCheck(NamedTuple):
    """`problem` has room for the client and for the places that `look` finds.

    `is_general`: most tools have it, so that it is reported once.
    """

    level: Level
    about: str
    problem: str
    fix: str
    look: Callable[[Schema], Iterable[str]]
    is_general: bool = False


def _walk_places(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every schema inside, with the name of the property that it belongs to."""
    pending: list[tuple[str, Schema]] = [("its top", schema)]
    while pending:
        name, here = pending.pop()
        yield name, here
        properties: Any = here.get("properties")
        named: dict[str, Any] = properties if is_object(properties) else {}
        pending += [(repr(key), inner) for key, inner in named.items() if is_object(inner)]
        rest = {key: value for key, value in here.items() if key != "properties"}
        pending += [(name, inner) for inner in list_subschemas(rest)]


def _is_of_type(schema: Schema, kind: str) -> bool:
    return kind in as_list(schema.get("type"))


def _find_missing_items(schema: Schema) -> Iterator[str]:
    return (place for place, here in _walk_places(schema) if _is_of_type(here, "array") and "items" not in here)


def _find_missing_properties(schema: Schema) -> Iterator[str]:
    return (place for place, here in _walk_places(schema) if _is_of_type(here, "object") and "properties" not in here)


def _find_array_enums(schema: Schema) -> Iterator[str]:
    return (place for place, here in _walk_places(schema) if _is_of_type(here, "array") and "enum" in here)


def _find_references(schema: Schema) -> Iterator[str]:
    return (str(here["$ref"]) for here in walk_schema(schema) if "$ref" in here)


def _find_missing_references(schema: Schema) -> Iterator[str]:
    for reference in _find_references(schema):
        found: Any = schema if reference.startswith("#") else None
        for step in reference.removeprefix("#").split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if is_mapping(found) else None
        if found is None:
            yield reference


def _find_recursion(schema: Schema) -> Iterator[str]:
    """The definitions that lead back to themselves."""
    defs: Any = schema.get("$defs")
    named: dict[str, Any] = defs if is_object(defs) else {}
    leads = {
        name: {reference.rpartition("/")[2] for reference in _find_references(dict(inner))}
        for name, inner in named.items()
        if is_mapping(inner)
    }
    for name in leads:
        reached, pending = set[str](), list(leads[name])
        while pending:
            step = pending.pop()
            if step not in reached:
                reached.add(step)
                pending += leads.get(step, ())
        if name in reached:
            yield name


def _find_keyword(*keywords: str) -> Callable[[Schema], Iterator[str]]:
    return lambda schema: (place for place, here in _walk_places(schema) if any(word in here for word in keywords))


def _find_untyped(schema: Schema) -> Iterator[str]:
    typed = {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const", "properties", "items"}
    return (place for place, here in _walk_places(schema) if typed.isdisjoint(here) and here is not schema)


_UNTOLD: Final = (
    *("default", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems"),
)


def _find_untold(schema: Schema) -> Iterator[str]:
    return (word for word in _UNTOLD if any(word in here for here in walk_schema(schema)))


def _find_sizes(schema: Schema) -> Iterator[str]:
    """What is beyond the limits of OpenAI's strict mode."""
    nodes = list(walk_schema(schema))
    counts = {
        "properties": (sum(len(here.get("properties") or ()) for here in nodes), 5000),
        "choices": (sum(len(here["enum"]) for here in nodes if is_array(here.get("enum"))), 1000),
        "characters": (len(json.dumps(schema)), 120_000),
    }
    return (f"{count} {what}, at most {most}" for what, (count, most) in counts.items() if count > most)


def _find_output_type(schema: Schema) -> Iterator[str]:
    if schema.get("type") != "object":
        yield str(schema.get("type"))


SCHEMA_CHECKS: Final[Mapping[str, SchemaCheck]] = {
    "missing-reference": SchemaCheck(
        "error",
        "a reference to a definition that is not in the schema",
        "{client} refuses the tool: its schema refers to {places}, which it does not contain",
        "put the definition into $defs",
        _find_missing_references,
    ),
    "reference": SchemaCheck(
        "error",
        "a reference, for clients that do not resolve them",
        "{client} does not resolve references: {places}",
        "write the definition where it is used; schemas that defserve makes have none unless they are too large",
        _find_references,
    ),
    "recursion": SchemaCheck(
        "warning",
        "a definition that leads back to itself",
        "{client} cuts off what is recursive: {places}",
        "let defserve make the schema: it unrolls the model",
        _find_recursion,
    ),
    "dynamic-reference": SchemaCheck(
        "error",
        "`$dynamicRef`",
        "{client} refuses $dynamicRef, at {places}",
        "write the definition where it is used",
        _find_keyword("$dynamicRef"),
    ),
    "items": SchemaCheck(
        "error",
        "an array that does not say what is in it",
        "{client} refuses an array without items: {places}",
        'say what is in it: list[str]; in a schema of your own, "items": {}',
        _find_missing_items,
    ),
    "properties": SchemaCheck(
        "error",
        "an object without `properties`",
        "{client} refuses an object without properties: {places}",
        'in a schema of your own, write "properties": {}',
        _find_missing_properties,
    ),
    "array-enum": SchemaCheck(
        "error",
        "`enum` on an array",
        "{client} refuses every prompt because of an enum on an array: {places}",
        "put the enum on its items",
        _find_array_enums,
    ),
    "closed-object": SchemaCheck(
        "warning",
        "`additionalProperties`, which older versions of the API do not know",
        "older versions of {client}'s API do not know additionalProperties",
        'Server(dialect="gemini") leaves it out',
        _find_keyword("additionalProperties"),
        is_general=True,
    ),
    "one-of": SchemaCheck(
        "warning",
        "`oneOf`, for clients that know only `anyOf`",
        "{client} does not tell its model of oneOf, at {places}",
        "write anyOf",
        _find_keyword("oneOf"),
    ),
    "untyped": SchemaCheck(
        "warning",
        "an argument without a type",
        "{client} takes what has no type for a string: {places}",
        "annotate it: Any has no type",
        _find_untyped,
    ),
    "untold": SchemaCheck(
        "warning",
        "constraints that the model is not told",
        "{client} does not tell its model {places}",
        "say it in the description of the argument, if the model has to know",
        _find_untold,
    ),
    "too-large": SchemaCheck(
        "warning",
        "a schema beyond the limits of strict mode",
        "{client} cannot use strict mode with {places}",
        "make the models smaller, or split the tool",
        _find_sizes,
    ),
    "output-type": SchemaCheck(
        "error",
        "an output schema that is not an object",
        "{client} loses the whole list: the type of its outputSchema is {places}, and not object",
        'leave structured="bare" out: the result is wrapped in an object then',
        _find_output_type,
    ),
}

CLIENT_RULES: Final[Mapping[str, tuple[Level, str]]] = {
    "client-name": ("error", "a name that a client refuses, alone or with that of the server"),
    "root-combiner": ("error", "anyOf, oneOf, allOf, enum or not at the top of an input schema"),
    "too-many-tools": ("warning", "more tools than a client uses"),
    "long-instructions": ("warning", "instructions of which a client may read only the beginning"),
    **{name: (check.level, check.about) for name, check in SCHEMA_CHECKS.items()},
}
"""Every rule of this module → its level, and what it finds."""
