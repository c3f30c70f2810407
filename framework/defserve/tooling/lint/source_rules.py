"""Rules about schemas, the author's source, views and skills."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from defserve.base.hidden_characters import iter_hidden_character_notes as hidden_in
from defserve.binding.json_schemas import walk_schema
from defserve.context import Context
from defserve.core.json_values import as_list, is_mapping
from defserve.tooling.lint.definitions import (
    FunctionNode,
    ItemDefinition,
    LintFinding,
    ServedSkill,
    ServerDefinitions,
    make_finding,
    parse_function_source,
)
from defserve.tooling.packaging.privacy import classify_private_path, find_secret_kind

MAX_SCHEMA_DEPTH: Final = 2
MAX_PARAMETERS: Final = 8
MAX_TOOL_LIST_TOKENS: Final = 10_000
DEEPEST: Final = 20


def find_invalid_schemas(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if (problem := _problem(tool.schema)) is not None:
            yield make_finding(
                tool, f"has an inputSchema that {problem}", "write a JSON Schema (2020-12) of type object"
            )


def _problem(schema: Mapping[str, Any]) -> str | None:
    if schema.get("type") != "object":
        return "is not of type object"
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        # Without formats: patterns are ECMAScript's, and Python's `re` would judge them.
        Draft202012Validator.check_schema(dict(schema), format_checker=None)  # pyright: ignore
    except SchemaError as error:
        return f"is not valid: {error.message}"
    missing = next((ref for ref in _references(schema, DEEPEST) if _target(schema, ref) is None), None)
    return f"refers to {missing}, which it does not contain" if missing else None


def _references(schema: Any, depth: int) -> Iterator[str]:
    if is_mapping(schema) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    inside: list[Any] = list(schema.values()) if is_mapping(schema) else list(schema)
    for below in inside:
        if depth and isinstance(below, dict | list):
            yield from _references(below, depth - 1)


def _target(root: Mapping[str, Any], reference: str) -> Any:
    """What a reference points to in the same schema, or None."""
    found: Any = root
    if not reference.startswith("#"):
        return None
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if is_mapping(found) else None
    return found


def find_schema_references(found: ServerDefinitions) -> Iterator[LintFinding]:
    from defserve.binding.json_schemas import MAX_PORTABLE_BYTES

    for tool in found.tools:
        for member in ("inputSchema", "outputSchema"):
            if is_mapping(schema := tool.wire.get(member)) and next(_references(schema, DEEPEST), None) is not None:
                yield make_finding(
                    tool,
                    f"has references in its {member}, which some clients cannot follow",
                    f"make its models smaller: past {MAX_PORTABLE_BYTES // 1024} KiB they are not written out;"
                    " in a schema of your own, write them where they are used",
                )


def find_unenforced_patterns(found: ServerDefinitions) -> Iterator[LintFinding]:
    """An author's own pattern of this kind was refused when it was declared: these are imported."""
    from defserve.binding.json_schemas import walk_schema
    from defserve.binding.patterns import find_pattern_problem

    for tool in found.tools:
        for pattern in sorted({text for node in walk_schema(dict(tool.schema)) for text in _patterns(node)}):
            if (problem := find_pattern_problem(pattern)) is not None:
                yield make_finding(
                    tool,
                    f"has the pattern {pattern[:80]!r}, which {problem.reason}: it is published, but not enforced here",
                    "leave it if the server behind the tool checks it; else rewrite it without look-around",
                )


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if is_mapping(patterns := schema.get("patternProperties")):
        yield from map(str, patterns)


def find_deep_schemas(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        measure = DepthMeasure(tool.schema)
        depth = max((measure.depth(parameter.schema, DEEPEST) for parameter in tool.parameters), default=0)
        if depth > MAX_SCHEMA_DEPTH:
            levels = f"{depth} levels deep" if depth < DEEPEST else "without end"
            yield make_finding(
                tool,
                f"has arguments nested {levels}",
                "models are best with flat arguments: make arguments of the members, or split the tool",
            )


class DepthMeasure:
    """How deep objects and lists are nested. The target of a reference is measured once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def depth(self, schema: Any, left: int) -> int:
        if not is_mapping(schema) or left == 0:
            return 0
        if "$ref" in schema:
            return self._measure_reference(str(schema["$ref"]), left)
        below: list[Any] = [*(schema.get("properties") or {}).values()]
        below += [schema[member] for member in ("items", "additionalProperties") if member in schema]
        below += as_list(schema.get("prefixItems") or [])
        inside = max((self.depth(each, left - 1) for each in below), default=0)
        branches = [b for member in ("anyOf", "oneOf", "allOf") for b in as_list(schema.get(member) or [])]
        beside = max((self.depth(branch, left - 1) for branch in branches), default=0)
        is_container = (
            not {"object", "array"}.isdisjoint(map(str, as_list(schema.get("type")))) or "properties" in schema
        )
        return min(max(inside + is_container, beside), DEEPEST)

    def _measure_reference(self, reference: str, left: int) -> int:
        if reference not in self._known:
            self._known[reference] = DEEPEST  # if the measure comes back here, the schema is recursive
            self._known[reference] = self.depth(_target(self._root, reference), left - 1)
        return self._known[reference]


def find_too_many_parameters(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if len(tool.parameters) > MAX_PARAMETERS:
            yield make_finding(
                tool,
                f"has {len(tool.parameters)} arguments",
                "use fewer: split the tool, or put what belongs together into one argument",
            )


def find_bytes_arguments(found: ServerDefinitions) -> Iterator[LintFinding]:
    """As with pydantic, `bytes` are the UTF-8 of a text: a file that is sent as base64 stays base64."""
    for tool in found.tools:
        for parameter in tool.parameters if tool.takes else ():
            nodes = walk_schema(dict(parameter.schema))
            if any(node.get("format") == "binary" and "contentEncoding" not in node for node in nodes):
                yield make_finding(
                    tool,
                    f"argument {parameter.name!r} is bytes: a text in UTF-8, so base64 is not decoded",
                    f"for a file write {parameter.name}: Upload; for base64, pydantic's Base64Bytes; for a text, str",
                )


def find_costly_tool_list(found: ServerDefinitions) -> Iterator[LintFinding]:
    cost = found.tokens
    if cost > MAX_TOOL_LIST_TOKENS and not found.is_searched:
        largest = sorted(found.tools, key=lambda tool: -tool.tokens)[:3]
        named = ", ".join(f"{tool.name} {tool.tokens:,}" for tool in largest)
        yield LintFinding(
            "the list of tools",
            largest[0].where,
            f"costs about {cost:,} tokens in every request (estimate: characters/4); the largest: {named}",
            'shorten descriptions and schemas, or have the tools searched: Server(search="auto")',
        )


# -- Text beside structured content. Some clients give their model only the structured content.


def find_texts_beside_data(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        output: Any = tool.wire.get("outputSchema")
        if not is_mapping(output):
            continue
        properties: Any = output.get("properties") or {}
        for name in _list_read_members(tool.text, tool.returns):
            if name not in properties:
                yield make_finding(
                    tool,
                    f"its text tells {name!r}, which its structured content lacks: some clients show models only that",
                    f"add {name!r} to what it returns, or leave it out of the text",
                )
        written, first = parse_function_source(tool.function)
        if written is None:
            continue
        emitting = {f"{ctx}.emit" for ctx in _contexts(written)}
        for node in _own(written):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in emitting:
                where = f"{tool.where.rpartition(':')[0]}:{first + node.lineno - 1}" if tool.where else ""
                problem = "emits content beside structured content: some clients show models only the latter"
                yield make_finding(tool, problem, "return it as part of the result")._replace(where=where)


def _list_read_members(text: Any, returns: Any) -> list[str]:
    """The members of a returned class that the function in `text=` reads."""
    code = getattr(text, "__code__", None)
    if code is None or not isinstance(returns, type):
        return []
    members = {*getattr(returns, "__annotations__", {}), *(name for name in vars(returns) if not name.startswith("_"))}
    return [name for name in code.co_names if name in members]


# -- The rules about `await`: `ctx.ask(…)` alone does nothing, and `await ctx.log.info(…)` fails.


VERBS: Final = {name for name, verb in vars(Context).items() if inspect.iscoroutinefunction(inspect.unwrap(verb))}
"""The methods of a Context that must be awaited."""
TELLING: Final = ("progress", "emit")
"""The methods of a Context that give nothing to await, as do all of its `log`."""

# Where a value is used as it is. As an argument of a call it may still be awaited.
USES: Final = (
    ast.Expr,
    ast.Return,
    ast.If,
    ast.While,
    ast.IfExp,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.FormattedValue,
    ast.Attribute,
    ast.Subscript,
)


def find_forgotten_awaits(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        written, first = parse_function_source(item.function)
        for call in _forgotten_in(written, _contexts(written)) if written is not None else ():
            verb = ast.unparse(call.func)
            fix = f"write await {verb}(…)"
            if isinstance(written, ast.FunctionDef):
                fix = f"in a plain def, write {verb.partition('.')[0]}.wait({verb}(…)), or make it async def"
            where = f"{item.where.rpartition(':')[0]}:{first + call.lineno - 1}" if item.where else ""
            yield make_finding(item, f"{verb}(…) is not awaited, so it does nothing", fix)._replace(where=where)


def find_needless_awaits(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        written, first = parse_function_source(item.function)
        if written is None:
            continue
        contexts = _contexts(written)
        for node in _own(written):
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call) and _tells(node.value.func, contexts):
                verb = ast.unparse(node.value.func)
                where = f"{item.where.rpartition(':')[0]}:{first + node.lineno - 1}" if item.where else ""
                problem = f"{verb}(…) gives nothing to await, so this line fails"
                yield make_finding(item, problem, f"write {verb}(…) without await")._replace(where=where)


def _contexts(written: FunctionNode) -> set[str]:
    """The names of the parameters that are annotated as a Context."""
    arguments = (*written.args.args, *written.args.kwonlyargs)
    return {one.arg for one in arguments if one.annotation and "Context" in ast.unparse(one.annotation)}


def _forgotten_in(written: FunctionNode, contexts: set[str]) -> Iterator[ast.Call]:
    own = list(_own(written))
    handed_on = {name for node in own for name in _iter_passed_names(node)}
    for parent in own:
        # What is assigned to a name can still be awaited.
        kept = parent.targets if isinstance(parent, ast.Assign) else ()
        lost = bool(kept) and all(isinstance(name, ast.Name) and name.id not in handed_on for name in kept)
        if lost or isinstance(parent, USES):
            for child in ast.iter_child_nodes(parent):
                if isinstance(child, ast.Call) and _asks(child.func, contexts):
                    yield child


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, except those of inner functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FunctionNode | ast.Lambda):
            yield child
            yield from _own(child)


def _iter_passed_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Await):
        given: list[ast.expr] = [node.value]
    elif isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return
    for value in given:
        yield from (name.id for name in ast.walk(value) if isinstance(name, ast.Name))


def _asks(verb: ast.expr, contexts: set[str]) -> bool:
    return (
        isinstance(verb, ast.Attribute)
        and verb.attr in VERBS
        and isinstance(verb.value, ast.Name)
        and verb.value.id in contexts
    )


def _tells(verb: ast.expr, contexts: set[str]) -> bool:
    if not isinstance(verb, ast.Attribute):
        return False
    of = verb.value
    if isinstance(of, ast.Attribute) and of.attr == "log":
        of = of.value
    elif verb.attr not in TELLING:
        return False
    return isinstance(of, ast.Name) and of.id in contexts


# -- Rules about views: what their HTML reaches, and whether it is there. The HTML is found by reading the source.


# Not loaded by a browser: comments, the targets of links, and the names of namespaces.
_HARMLESS: Final = re.compile(r"<!--.*?-->|<a\s[^>]*>|https?://www\.w3\.org/\S*", re.IGNORECASE | re.DOTALL)
_REACHED: Final = re.compile(
    r"""(?P<scheme>https?|wss?)://(?P<host>[a-z0-9.-]+(?::\d+)?)|(?:src|href)\s*=\s*["']?//(?P<bare>[a-z0-9.-]+(?::\d+)?)""",
    re.IGNORECASE,
)
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024


def find_unnamed_origins(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        if item.origins is None:
            continue
        for origin in dict.fromkeys(origin for html in _pages(item) for origin in _origins(html)):
            if not any(_names(named, origin) for named in item.origins):
                yield make_finding(
                    item,
                    f"its HTML has {origin}, which no csp names: hosts block it",
                    f'name it, @server.app(…, csp={{"connect": ["{origin}"]}}) or "resource", or put the file inline',
                )


def find_missing_view_files(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        for file in _files(item) if item.origins is not None else ():
            if not file.is_file():
                yield make_finding(
                    item, f"there is no file {str(file)!r}", "a relative path starts beside the file of the function"
                )


def _origins(html: str) -> Iterator[str]:
    for match in _REACHED.finditer(_HARMLESS.sub("", html)):
        scheme = match["scheme"] or "https"
        yield f"{scheme}://{match['host'] or match['bare']}".lower().rstrip(".")


def _names(named: str, origin: str) -> bool:
    named = named.lower()
    start, wildcard, domain = named.partition("*.")
    return origin.startswith(start) and origin.endswith(f".{domain}") if wildcard else named == origin


def _pages(item: ItemDefinition) -> Iterator[str]:
    """The HTML that a view can return, as far as it is known without running it."""
    for text in _texts(item.function):
        if "<" in text:
            yield text
    for file in _files(item):
        try:
            if file.stat().st_size <= MAX_PAGE_BYTES:
                yield file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue


def _files(item: ItemDefinition) -> Iterator[Path]:
    folder = Path(inspect.getsourcefile(item.function) or ".").parent if inspect.isfunction(item.function) else Path()
    for text in _texts(item.function):
        if text.lower().endswith((".html", ".htm")) and "<" not in text and os.linesep not in text:
            yield folder / text


def _texts(function: Any) -> Iterator[str]:
    """The texts in a function, and those of its module that it names."""
    written, _ = parse_function_source(function)
    body = written.body if written is not None else []
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and isinstance(text := function.__globals__.get(node.id), str):
            yield text


# -- Rules about skills: what is in their folders, and what their texts speak of.


RESERVED: Final = "io.modelcontextprotocol/"

# The Agent Skills specification: the most characters of a field.
MAX_FIELD_LENGTHS: Final = {"description": 1024, "compatibility": 500}

# Left out without a word: nobody expects them to be served.
EXPECTED: Final = ("it is hidden", "it is a cache")
LINK: Final = re.compile(r"\]\(\s*<?([^)\s>#?]+)")


def find_private_skill_files(found: ServerDefinitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, data in skill.files.items():
            if kind := classify_private_path(path):
                problem = f"{path!r} looks like {kind[0]}"
            elif secret := find_secret_kind(BytesIO(data)):
                problem = f"{path!r} contains {secret}"
            else:
                continue
            yield _about(skill, f"{problem}, and every client can read it", "move it out of the folder of the skill")


def find_hidden_skill_characters(found: ServerDefinitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, data in skill.files.items():
            text = data.decode("utf-8", "ignore").removeprefix("\ufeff") if path.endswith(".md") else ""
            if shown := [name for _, name in hidden_in(text) if not name.startswith("line break")]:
                yield _about(skill, f"{path!r} contains {shown[0]}", "delete it: people do not see it, but models do")


def find_malformed_skills(found: ServerDefinitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for name, most in MAX_FIELD_LENGTHS.items():
            if len(str(skill.frontmatter.get(name) or "")) > most:
                yield _about(skill, f"its {name} is longer than {most} characters", "clients may refuse it: shorten it")
        metadata = skill.frontmatter.get("metadata")
        for name in metadata if is_mapping(metadata) else ():
            if name.startswith(RESERVED):
                yield _about(skill, f"its metadata uses the reserved name {name!r}", "use a prefix of your own")


def find_missing_skill_files(found: ServerDefinitions) -> Iterator[LintFinding]:
    """Links in `SKILL.md` that lead to no file of the skill."""
    for skill in found.skills:
        for link in dict.fromkeys(LINK.findall(skill.skill_md)):
            path = unquote(link).removeprefix("./")
            if ":" in path or path.startswith("/") or path in skill.paths:
                continue
            if not any(known.startswith(f"{path.rstrip('/')}/") for known in skill.paths):
                yield _about(
                    skill, f"SKILL.md links to {link!r}, which it does not have", "write the file, or mend the link"
                )


def find_unserved_files(found: ServerDefinitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, reason in skill.left_out:
            if reason not in EXPECTED:
                yield _about(skill, f"{path!r} is not served: {reason}", "put the file itself there, or remove it")


def _about(skill: ServedSkill, problem: str, fix: str) -> LintFinding:
    return LintFinding(f"skill {skill.name!r}", skill.where, problem, fix)
