"""Calls of theirs as calls of ours: servers, decorators, `run`, contexts, content. Pure: nodes in, nodes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import libcst as cst

from defserve.tooling.migrate.tables import ITEM_OPTIONS, NOT_NEEDED, RENAMED_OPTIONS, SERVER_OPTIONS

Say = Callable[[str], None]
"""Reports something about the call that is being rewritten."""


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=equal)


def text(value: str) -> cst.SimpleString:
    return cst.SimpleString('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')


def option(args: Sequence[cst.Arg], name: str) -> cst.BaseExpression | None:
    return next((arg.value for arg in args if arg.keyword is not None and arg.keyword.value == name), None)


def server(call: cst.Call, name: str, say: Say) -> cst.Call:
    """`FastMCP("shop", …)` → `Server("shop", …)`."""
    kept: list[cst.Arg] = []
    positional = [arg for arg in call.args if arg.keyword is None and not arg.star]
    if not positional and option(call.args, "name") is None:
        kept.append(cst.Arg(text(name)))
    for place, arg in enumerate(call.args):
        given = arg.keyword.value if arg.keyword is not None else ("name", "instructions")[place] if place < 2 else None
        if given is None or arg.star:
            say("an option of the server is left as it is: check it")
            kept.append(arg)
        elif given == "name":
            kept.insert(0, cst.Arg(arg.value, whitespace_after_arg=arg.whitespace_after_arg))
        elif given in SERVER_OPTIONS:
            kept.append(arg if arg.keyword is not None else keyword(given, arg.value))
        elif given not in NOT_NEEDED:
            say(f"the option {given}= of the server is left out: {_HINTS.get(given, 'it has no counterpart')}")
    return call.with_changes(func=cst.Name("Server"), args=commas(kept, call))


_HINTS: Mapping[str, str] = {
    "auth": "write Server(auth=StaticTokens(…)), ApiKeys or JWT",
    "token_verifier": "write Server(auth=…) with a class that has `verify`",
    "auth_server_provider": "tokens are checked by Server(auth=…); signing in is elsewhere",
    "middleware": 'write @server.around("tools/call")',
    "tools": "call server.add_tool(function) for each",
    "transforms": "write server.mount(child, transform=Transform(…))",
    "include_tags": "write server.mount(child, transform=Transform(only=[…]))",
    "exclude_tags": "write server.mount(child, transform=Transform(hide=[…]))",
}


def commas(args: Sequence[cst.Arg], call: cst.Call) -> list[cst.Arg]:
    """Arguments with commas between them, laid out as those of the call were."""
    was = [arg.comma for arg in call.args if isinstance(arg.comma, cst.Comma)]
    between = was[0] if was else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    trailing = call.args[-1].comma if call.args else cst.MaybeSentinel.DEFAULT
    if not isinstance(trailing, cst.Comma):
        trailing = cst.MaybeSentinel.DEFAULT
    if isinstance(between.whitespace_after, cst.SimpleWhitespace) and not between.whitespace_after.value:
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = len(args) - 1
    return [arg.with_changes(comma=between if place < last else trailing) for place, arg in enumerate(args)]


def item(call: cst.Call, kind: str, say: Say) -> cst.Call:
    """The options of `@mcp.tool(…)`, `@mcp.resource(…)` and `@mcp.prompt(…)`."""
    kept: list[cst.Arg] = []
    for place, arg in enumerate(call.args):
        if arg.star:
            kept.append(arg)
            continue
        if arg.keyword is None:
            is_name = kind != "resource" and place == 0 and isinstance(arg.value, cst.SimpleString)
            kept.append(keyword("name", arg.value) if is_name else arg)
            continue
        name = RENAMED_OPTIONS.get(arg.keyword.value, arg.keyword.value)
        if name == "task" and kind == "tool":
            kept += _task(arg)
        elif name == "uri" and kind == "resource":
            kept.insert(0, cst.Arg(arg.value))
        elif name in ITEM_OPTIONS[kind]:
            kept.append(
                arg.with_changes(keyword=cst.Name(name), value=_listed(arg.value) if name == "tags" else arg.value)
            )
        elif name not in NOT_NEEDED:
            say(f"the option {name}= of a {kind} is left out: it has no counterpart")
    return call.with_changes(args=commas(kept, call))


def _task(arg: cst.Arg) -> list[cst.Arg]:
    if isinstance(arg.value, cst.Name) and arg.value.value in ("True", "False"):
        return [arg.with_changes(value=text("optional"))] if arg.value.value == "True" else []
    return [arg]


def _listed(value: cst.BaseExpression) -> cst.BaseExpression:
    """Tags are a list here: sets have no order."""
    return cst.List(value.elements) if isinstance(value, cst.Set) else value


def run(call: cst.Call, default: Mapping[str, cst.BaseExpression], say: Say) -> cst.Call:
    """`mcp.run(transport="http", port=8000)` → `mcp.run(on="http://127.0.0.1:8000/mcp")`."""
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    positional = [arg.value for arg in call.args if arg.keyword is None]
    transport = given.get("transport") or (positional[0] if positional else None)
    if transport is None:
        return call.with_changes(args=[])
    if not isinstance(transport, cst.SimpleString):
        say('the transport is not a plain text: write run() for stdio, run(on="http://127.0.0.1:8000/mcp") for HTTP')
        return call
    kind = transport.evaluated_value
    if kind == "stdio":
        return call.with_changes(args=[])
    where = {**default, **given}
    path = where.get("path") or where.get("streamable_http_path") or text("/sse" if kind == "sse" else "/mcp")
    address = _address(where.get("host") or text("127.0.0.1"), where.get("port") or cst.Integer("8000"), path)
    args = [keyword("on", address)]
    if kind == "sse":
        args.append(keyword("legacy_sse", cst.Name("True")))
    if unknown := sorted(given.keys() - {"transport", "host", "port", "path", "log_level"} - NOT_NEEDED):
        say(f"the option {unknown[0]}= of run is left out: it has no counterpart")
    if "log_level" in given:
        args.append(keyword("log_level", _lower(given["log_level"])))
    return call.with_changes(args=commas(args, cst.Call(cst.Name("run"))))


def _lower(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.SimpleString) and isinstance(level := value.evaluated_value, str):
        return text(level.lower())
    return value


def _address(host: cst.BaseExpression, port: cst.BaseExpression, path: cst.BaseExpression) -> cst.BaseExpression:
    parts: list[str | cst.BaseExpression] = ["http://", *_plain(host), ":", *_plain(port)]
    where = _plain(path)
    if isinstance(where[0], str):
        where = [f"/{where[0].strip('/')}"]
    parts += where
    if all(isinstance(part, str) for part in parts):
        return text("".join(part for part in parts if isinstance(part, str)))
    pieces: list[cst.BaseFormattedStringContent] = [
        cst.FormattedStringText(part) if isinstance(part, str) else cst.FormattedStringExpression(part)
        for part in parts
    ]
    return cst.FormattedString(pieces)


def _plain(value: cst.BaseExpression) -> list[str | cst.BaseExpression]:
    if isinstance(value, cst.SimpleString) and isinstance(known := value.evaluated_value, str):
        return [known]
    return [value.value] if isinstance(value, cst.Integer) else [value]


def mount(call: cst.Call, say: Say) -> cst.Call:
    """`mcp.mount(child, namespace="shop")`, `mcp.import_server(child, prefix="shop")`, and the order of FastMCP 1."""
    args = list(call.args)
    if len(args) == 2 and all(arg.keyword is None for arg in args):
        first, second = args[0].value, args[1].value
        child, prefix = (second, first) if isinstance(first, cst.SimpleString) else (first, second)
        args = [cst.Arg(child), keyword("prefix", prefix)]
    kept: list[cst.Arg] = []
    for arg in args:
        name = arg.keyword.value if arg.keyword is not None else None
        if name in ("namespace", "prefix"):
            kept.append(keyword("prefix", arg.value))
        elif name in (None, "server"):
            kept.append(cst.Arg(arg.value))
        elif name != "as_proxy":
            say(f"the option {name}= of mount is left out: it has no counterpart")
    return call.with_changes(func=_attribute(call, "mount"), args=commas(kept, call))


def _attribute(call: cst.Call, name: str) -> cst.BaseExpression:
    assert isinstance(call.func, cst.Attribute)
    return call.func.with_changes(attr=cst.Name(name))


def renamed_verb(call: cst.Call, name: str, args: Sequence[cst.Arg]) -> cst.Call:
    return call.with_changes(func=_attribute(call, name), args=args)


def hints(call: cst.Call) -> cst.BaseExpression:
    """`ToolAnnotations(readOnlyHint=True)` → `{"readOnlyHint": True}`."""
    pairs = [cst.DictElement(text(arg.keyword.value), arg.value) for arg in call.args if arg.keyword is not None]
    return cst.Dict(pairs)


def content(call: cst.Call) -> cst.Call:
    """`TextContent(type="text", text=x)` → `Text(x)`."""
    value = option(call.args, "text")
    kept = [cst.Arg(value)] if value is not None else list(call.args)
    return call.with_changes(func=cst.Name("Text"), args=kept)


def message(call: cst.Call, kind: str) -> tuple[cst.Call, str]:
    """`Message("…", role="assistant")` → `Assistant("…")`; and the name that it uses."""
    role = option(call.args, "role")
    said = role.evaluated_value if isinstance(role, cst.SimpleString) else "user" if role is None else None
    if kind != "Message":
        said = "assistant" if kind.startswith("Assistant") else "user"
    name = {"user": "User", "assistant": "Assistant"}.get(str(said))
    if name is None:
        return call, "Message"
    kept = [cst.Arg(arg.value) for arg in call.args if arg.keyword is None or arg.keyword.value in ("content", "text")]
    return call.with_changes(func=cst.Name(name), args=commas(kept, cst.Call(cst.Name(name)))), name


def progress(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """`report_progress(progress=1, total=3)` → `progress(1, 3)`."""
    names = ("progress", "total", "message")
    given = {arg.keyword.value if arg.keyword is not None else names[i]: arg.value for i, arg in enumerate(args)}
    kept: list[cst.Arg] = []
    for name in names:
        if name in given:
            kept.append(cst.Arg(given[name]) if len(kept) == names.index(name) else keyword(name, given[name]))
    return commas(kept, cst.Call(cst.Name("progress")))
