"""Calls of theirs as calls of ours: servers, decorators, `run`, content. Pure: nodes in, nodes out.

How it works: a rewritten call has the same places for arguments as the call before. An argument is changed in place,
left out, or added at an end; `replace_arguments` lays the rest out, and every comment stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import reduce

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.name_tables import (
    ADDRESS_GUARD_OPTIONS,
    DROPPED_OPTION_HINTS,
    DROPPED_OPTIONS,
    IMPLIED_TRANSPORTS,
    ITEM_OPTIONS,
    PROTECTING_ITEM_OPTIONS,
    PROTECTING_SERVER_OPTIONS,
    RENAMED_OPTIONS,
    SERVER_OPTIONS,
)
from defserve.tooling.migrate.program import find_nodes

AddNote = Callable[[str], None]
"""Reports something about the call that is being rewritten."""


def rewrite_server(call: cst.Call, name: str, add_note: AddNote) -> cst.Call:
    """`FastMCP("shop", …)` → `Server("shop", …)`."""
    has_name = find_keyword_value(call.args, "name") is not None or any(_is_positional(arg) for arg in call.args)
    kept: list[cst.Arg | None] = []
    for place, arg in enumerate(call.args):
        option = _get_name(arg, place, ("name", "instructions"))
        if option is None:
            add_note("an option of the server is left as it is: check it")
            kept.append(arg)
        elif option == "name":
            kept.append(_drop_name(arg) if place == 0 else arg)
        elif option in SERVER_OPTIONS:
            kept.append(arg if arg.keyword is not None else _name_argument(arg, option))
        elif option in PROTECTING_SERVER_OPTIONS:
            if is_none(arg.value):
                kept.append(None)
            else:
                add_note(_refuse_to_drop(f"{option}= of the server", PROTECTING_SERVER_OPTIONS[option]))
                kept.append(arg)
        else:
            if option not in DROPPED_OPTIONS:
                hint = DROPPED_OPTION_HINTS.get(option, "it has no counterpart")
                add_note(f"the option {option}= of the server is left out: {hint}")
            kept.append(None)
    first = None if has_name else cst.Arg(make_string(name))
    return replace_arguments(call.with_changes(func=cst.Name("Server")), kept, first=first)


def _refuse_to_drop(option: str, hint: str) -> str:
    return f"the option {option} may protect something, so it stays and the server does not start: {hint}"


def rewrite_item_decorator(call: cst.Call, kind: str, add_note: AddNote) -> cst.Call:
    """The options of `@mcp.tool(…)`, `@mcp.resource(…)` and `@mcp.prompt(…)`."""
    kept: list[cst.Arg | None] = []
    uri: cst.Arg | None = None
    for place, arg in enumerate(call.args):
        if arg.star or arg.keyword is None:
            is_name = not arg.star and kind != "resource" and place == 0 and isinstance(arg.value, cst.SimpleString)
            kept.append(_name_argument(arg, "name") if is_name else arg)
        elif arg.keyword.value == "uri" and kind == "resource":
            # It has no keyword here, so it must be the first.
            uri = cst.Arg(arg.value) if place else None
            kept.append(None if place else _drop_name(arg))
        else:
            name = RENAMED_OPTIONS.get(arg.keyword.value, arg.keyword.value)
            kept.append(_rewrite_item_option(arg, name, kind, add_note))
    return replace_arguments(call, kept, first=uri)


def _rewrite_item_option(arg: cst.Arg, name: str, kind: str, add_note: AddNote) -> cst.Arg | None:
    if name == "task" and kind == "tool" and (is_flag(arg.value, "True") or is_flag(arg.value, "False")):
        return arg.with_changes(value=make_string("optional")) if is_flag(arg.value, "True") else None
    if name in ITEM_OPTIONS[kind]:
        return arg.with_changes(keyword=cst.Name(name), value=_set_to_list(arg.value) if name == "tags" else arg.value)
    if name == "output_schema" and is_none(arg.value) and kind == "tool":
        return arg.with_changes(keyword=cst.Name("structured"), value=cst.Name("False"))
    if name in PROTECTING_ITEM_OPTIONS:
        if is_none(arg.value) or is_flag(arg.value, "True"):
            return None
        add_note(_refuse_to_drop(f"{name}= of a {kind}", PROTECTING_ITEM_OPTIONS[name]))
        return arg
    if name not in DROPPED_OPTIONS:
        hint = DROPPED_OPTION_HINTS.get(name, "it has no counterpart")
        add_note(f"the option {name}= of a {kind} is left out: {hint}")
    return None


def _set_to_list(value: cst.BaseExpression) -> cst.BaseExpression:
    """Tags are a list here: sets have no order."""
    if not isinstance(value, cst.Set):
        return value
    left = cst.LeftSquareBracket(value.lbrace.whitespace_after)
    right = cst.RightSquareBracket(value.rbrace.whitespace_before)
    return cst.List(value.elements, lbracket=left, rbracket=right, lpar=value.lpar, rpar=value.rpar)


SCALARS = frozenset({"int", "float", "bool"})


def is_list_of_texts(returns: cst.Annotation | None) -> bool:
    return returns is not None and cst.Module([]).code_for_node(returns.annotation) in ("list[str]", "List[str]")


def is_scalar_annotation(annotation: cst.BaseExpression) -> bool:
    """Whether it is a number or a truth value, or None beside one: theirs are structured content, ours are text."""
    if isinstance(annotation, cst.BinaryOperation):
        sides = annotation.left, annotation.right
        return any(is_scalar_annotation(side) for side in sides) and all(
            is_none(side) or is_scalar_annotation(side) for side in sides
        )
    return isinstance(annotation, cst.Name) and annotation.value in SCALARS


def add_structured_option(made: cst.BaseExpression) -> cst.Call:
    """`mcp.tool` → `mcp.tool(structured=True)`, unless it says something else."""
    call = made if isinstance(made, cst.Call) else cst.Call(made)
    if find_keyword_value(call.args, "structured") is not None:
        return call
    return replace_arguments(call, call.args, last=[make_keyword("structured", cst.Name("True"))])


# -- `run`, apps, mounts.


def rewrite_run(
    call: cst.Call, verb: str, address_options: Mapping[str, cst.BaseExpression], add_note: AddNote
) -> cst.Call:
    """`mcp.run(transport="http", port=8000)` → `mcp.run(on="http://127.0.0.1:8000/mcp")`."""
    call = _rename_method(call, "run")
    if any(arg.star for arg in call.args):
        add_note('the options of run are not written out: write run(), or run(on="http://127.0.0.1:8000/mcp") for HTTP')
        return call
    names = [_get_name(arg, place, ("transport",)) for place, arg in enumerate(call.args)]
    options = {name: arg.value for name, arg in zip(names, call.args, strict=True) if name is not None}
    transport = options.get("transport") or make_string(IMPLIED_TRANSPORTS.get(verb, "stdio"))
    kind = "stdio" if is_none(transport) else _read_string(transport)
    if kind == "stdio":
        return replace_arguments(call, [None] * len(call.args))
    where = {**address_options, **options}
    path = where.get("path") or where.get("streamable_http_path") or make_string("/sse" if kind == "sse" else "/mcp")
    host = where.get("host") or make_string("127.0.0.1")
    address = _make_address(host, where.get("port") or cst.Integer("8000"), path)
    if kind is None:
        add_note(
            "the transport is chosen when it runs: anything but stdio is served as HTTP; SSE needs legacy_sse=True"
        )
        is_stdio = cst.Comparison(transport, [cst.ComparisonTarget(cst.Equal(), make_string("stdio"))])
        address = cst.IfExp(is_stdio, make_string("stdio:"), address)
    on, is_placed = make_keyword("on", address), False
    kept: list[cst.Arg | None] = []
    for name, arg in zip(names, call.args, strict=True):
        if name == "transport":
            kept.append(arg.with_changes(keyword=on.keyword, equal=on.equal, value=address))
            is_placed = True
        else:
            kept.append(_rewrite_run_option(arg, name, add_note))
    if "allowed_hosts" not in options:
        _check_host(host, add_note)
    last = [make_keyword("legacy_sse", cst.Name("True"))] if kind == "sse" else []
    return replace_arguments(call, kept, first=None if is_placed else on, last=last)


def _rewrite_run_option(arg: cst.Arg, name: str | None, add_note: AddNote) -> cst.Arg | None:
    if name is not None and name in PROTECTING_SERVER_OPTIONS:
        return _keep_guard(arg, name, "run", add_note)
    if name == "log_level":
        level = _read_string(arg.value)
        return arg.with_changes(value=make_string(level.lower())) if level is not None else arg
    if name not in ("host", "port", "path") and name not in DROPPED_OPTIONS:
        add_note(f"the option {name}= of run is left out: it has no counterpart")
    return None


def _keep_guard(arg: cst.Arg, name: str, verb: str, add_note: AddNote) -> cst.Arg | None:
    """An option of `run` or of an app that may protect the server."""
    if is_none(arg.value):
        return None
    if name not in ADDRESS_GUARD_OPTIONS:
        add_note(_refuse_to_drop(f"{name}= of {verb}", PROTECTING_SERVER_OPTIONS[name]))
    return arg


def _check_host(host: cst.BaseExpression, add_note: AddNote) -> None:
    """Report an address that others can reach: our server starts there only if it knows its names."""
    known = _read_string(host)
    if known is None:
        add_note(
            f"if {format_node(host)} is not an address of this machine alone, the server does not start: {ADD_HOSTS}"
        )
    elif known not in ("localhost", "::1") and not known.startswith("127."):
        add_note(f"on {known or 'every address'} the server does not start: {ADD_HOSTS}")


ADD_HOSTS = (
    'add allowed_hosts=["tools.example.com"], the names by which it is reached, or trusted_proxy=True if a proxy in'
    " front checks them"
)


def _make_address(host: cst.BaseExpression, port: cst.BaseExpression, path: cst.BaseExpression) -> cst.BaseExpression:
    name, where = _read_string(host), _read_string(path)
    parts: list[str | cst.BaseExpression] = [
        "http://",
        host if name is None else f"[{name}]" if ":" in name else name,
        ":",
        port.value if isinstance(port, cst.Integer) else _read_string(port) or port,
        path if where is None else f"/{where.strip('/')}",
    ]
    texts = [part for part in parts if isinstance(part, str)]
    return make_string("".join(texts)) if len(texts) == len(parts) else _make_formatted(parts)


def _make_formatted(parts: Sequence[str | cst.BaseExpression]) -> cst.BaseExpression:
    """An f-string; or `"…".format(…)`, if an expression cannot stand in one before Python 3.12."""
    texts = [part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else None for part in parts]
    values = [
        cst.ensure_type(part.visit(_SingleQuotes()), cst.BaseExpression) for part in parts if not isinstance(part, str)
    ]
    fits = not any(sign in format_node(value) for value in values for sign in _NOT_IN_F_STRINGS)
    if fits and not any(sign in text for text in texts if text is not None for sign in ('"', "\\")):
        left = iter(values)
        return cst.FormattedString(
            [
                cst.FormattedStringText(text) if text is not None else cst.FormattedStringExpression(next(left))
                for text in texts
            ]
        )
    template = make_string("".join("{}" if text is None else text for text in texts))
    given = [cst.Arg(part) for part in parts if not isinstance(part, str)]
    return cst.Call(cst.Attribute(template, cst.Name("format")), given)


_NOT_IN_F_STRINGS = ('"', "\\", "\n", "#", "{", "!", ":")


class _SingleQuotes(cst.CSTTransformer):
    """Strings in single quotes, where that changes nothing else."""

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        is_plain = updated_node.quote == '"' and not set("'\\") & set(updated_node.value)
        if not is_plain:
            return updated_node
        return updated_node.with_changes(value=f"{updated_node.prefix}'{updated_node.raw_value}'")


def find_registered_names(module: cst.Module, servers: Set[str]) -> dict[str, str]:
    """The names of functions that calls register: `mcp.tool()(price)`, `mcp.add_tool(shop.price)`."""
    names: dict[str, str] = {}
    for call in find_nodes(module, cst.Call):
        used = call.func.func if isinstance(call.func, cst.Call) else call.func
        if not call.args or not isinstance(used, cst.Attribute) or get_full_name_for_node(used.value) not in servers:
            continue
        function, kind = call.args[0].value, used.attr.value.removeprefix("add_")
        if isinstance(function, cst.Call) and function.args and format_node(function.func).endswith(".from_function"):
            function = function.args[0].value
        name = get_full_name_for_node(function) if isinstance(function, cst.Name | cst.Attribute) else None
        if name is not None and kind in ITEM_OPTIONS:
            names[name.rpartition(".")[2]] = kind
    return names


def find_plain_functions(module: cst.Module, servers: Set[str], elsewhere: Sequence[str]) -> set[cst.CSTNode]:
    """`async def main()` that awaits nothing but the running of a server: ours is not awaited, and starts its own loop.

    The function, what it awaits, and each `asyncio.run(main())`. It stays as it is if the program uses it in another
    way, or another file of the project (`elsewhere` are their texts) runs it.
    """
    runs: dict[str, list[cst.CSTNode]] = {}
    for call in find_nodes(module, cst.Call):
        if get_full_name_for_node(call.func) not in ("asyncio.run", "anyio.run") or len(call.args) != 1:
            continue
        main = call.args[0].value
        name = get_full_name_for_node(main.func if isinstance(main, cst.Call) else main)
        runs.setdefault(name or "", []).append(call)
    plain: set[cst.CSTNode] = set()
    for function in module.body:
        if not isinstance(function, cst.FunctionDef) or function.asynchronous is None or function.decorators:
            continue
        name = function.name.value
        uses = [use for use in find_nodes(module, cst.Name) if use.value == name]
        if len(uses) != 1 + len(runs.get(name, ())) or name not in runs:
            continue
        if any(".run(" in line and name in line for text in elsewhere for line in text.splitlines()):
            continue
        waits = find_nodes(function.body, cst.Await)
        is_serving = waits and all(_is_serving(each.expression, servers) for each in waits)
        if is_serving and not _needs_loop(function.body):
            plain |= {function, *waits, *runs[name]}
    return plain


def _needs_loop(body: cst.CSTNode) -> bool:
    """Whether something in a function may need its event loop, awaits apart."""
    kinds = (cst.Asynchronous, cst.Yield, cst.FunctionDef)
    names = {node.value for node in find_nodes(body, cst.Name)}
    return bool(names & {"asyncio", "anyio"}) or any(find_nodes(body, kind) for kind in kinds)


def _is_serving(awaited: cst.BaseExpression, servers: Set[str]) -> bool:
    called = awaited.func if isinstance(awaited, cst.Call) else None
    is_server = isinstance(called, cst.Attribute) and get_full_name_for_node(called.value) in servers
    return is_server and cst.ensure_type(called, cst.Attribute).attr.value in (*IMPLIED_TRANSPORTS, "import_server")


def rewrite_asgi_call(call: cst.Call, verb: str, extra: Sequence[cst.Arg], add_note: AddNote) -> cst.Call:
    """`mcp.http_app(…)` → `mcp.asgi(…)`."""
    kept: list[cst.Arg | None] = []
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name in PROTECTING_SERVER_OPTIONS:
            kept.append(_keep_guard(arg, name, verb, add_note))
        else:
            kept.append(None)
            is_default = name == "path" and _read_string(arg.value) == "/mcp"
            if name not in DROPPED_OPTIONS and name != "transport" and not is_default:
                add_note(f"the option {name or format_node(arg)}= of {verb} is left out: see server.asgi(…)")
    if find_keyword_value(call.args, "allowed_hosts") is None:
        add_note(f"server.asgi() answers only as localhost; if it is reached by other names: {ADD_HOSTS}")
    return replace_arguments(_rename_method(call, "asgi"), kept, last=extra)


def rewrite_mount(call: cst.Call, add_note: AddNote) -> cst.Call:
    """`mcp.mount(child, namespace="shop")`, `mcp.import_server(child, prefix="shop")`, and the order of FastMCP 1."""
    call = _rename_method(call, "mount")
    if len(call.args) == 2 and all(_is_positional(arg) for arg in call.args):
        first, second = call.args
        child, prefix = (second, first) if isinstance(first.value, cst.SimpleString) else (first, second)
        changed = [first.with_changes(value=child.value), _name_argument(second, "prefix", prefix.value)]
        return replace_arguments(call, changed)
    kept: list[cst.Arg | None] = []
    child_argument: cst.Arg | None = None
    for place, arg in enumerate(call.args):
        name = _get_name(arg, place, ("server",))
        if name in ("namespace", "prefix"):
            kept.append(arg.with_changes(keyword=cst.Name("prefix")))
        elif name == "server" and place:
            child_argument = cst.Arg(arg.value)
            kept.append(None)
        elif name in (None, "server"):
            kept.append(arg if arg.star else _drop_name(arg))
        else:
            kept.append(None)
            if name != "as_proxy":
                add_note(f"the option {name}= of mount is left out: it has no counterpart")
    return replace_arguments(call, kept, first=child_argument)


# -- What tools return, and what contexts are asked.


def rewrite_hints(call: cst.Call) -> cst.BaseExpression:
    """`ToolAnnotations(readOnlyHint=True)` → `{"readOnlyHint": True}`."""
    elements = [
        cst.DictElement(make_string(_to_camel_case(arg.keyword.value)), arg.value, comma=arg.comma)
        if arg.keyword is not None
        else cst.StarredDictElement(arg.value, comma=arg.comma)
        for arg in call.args
    ]
    end = call.args[-1].whitespace_after_arg if call.args else cst.SimpleWhitespace("")
    return cst.Dict(
        elements,
        lbrace=cst.LeftCurlyBrace(call.whitespace_before_args),
        rbrace=cst.RightCurlyBrace(end),
        lpar=call.lpar,
        rpar=call.rpar,
    )


def _to_camel_case(name: str) -> str:
    """`read_only_hint`, as version 2 of the SDK has it, → `readOnlyHint`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def rename_icon_options(call: cst.Call) -> cst.Call:
    """`Icon(src=x, mimeType="image/png")` → `Icon(src=x, mime_type="image/png")`."""
    args = [
        arg.with_changes(keyword=cst.Name("mime_type"))
        if arg.keyword is not None and arg.keyword.value == "mimeType"
        else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)


def rewrite_text_content_call(call: cst.Call, add_note: AddNote) -> cst.Call:
    """`TextContent(type="text", text=x)` → `Text(x)`."""
    call = call.with_changes(func=cst.Name("Text"))
    names = [arg.keyword.value if arg.keyword is not None else "" for arg in call.args]
    if any(name not in ("type", "text") for name in names):
        add_note("only the text of a TextContent is kept")
    if "text" not in names:
        return call
    return replace_arguments(
        call, [_drop_name(arg) if name == "text" else None for name, arg in zip(names, call.args, strict=True)]
    )


def rewrite_tool_result_call(call: cst.Call, add_note: AddNote) -> cst.BaseExpression:
    """`ToolResult(content=x, structured_content=y)` → `ToolResult(x, data=y)`; without a content, just the data."""
    names = [_get_name(arg, place, ("content", "structured_content")) for place, arg in enumerate(call.args)]
    for name in names:
        if name not in ("content", "structured_content"):
            add_note(f"the option {name}= of ToolResult is left out: it has no counterpart")
    data = find_keyword_value(call.args, "structured_content")
    if "content" not in names and data is not None:
        return data
    kept: list[cst.Arg | None] = []
    for place, (name, arg) in enumerate(zip(names, call.args, strict=True)):
        if name == "content":
            kept.append(_drop_name(arg) if place == 0 else arg)
        else:
            kept.append(_name_argument(arg, "data") if name == "structured_content" else None)
    return replace_arguments(call, kept)


def rewrite_protocol_error(call: cst.Call, add_note: AddNote) -> cst.Call:
    """`McpError(ErrorData(code=…, message=x))` → `ToolError(x)`; version 2 has `MCPError(code, x)`."""
    inner = call.args[0].value if call.args else None
    given = inner if isinstance(inner, cst.Call) and format_node(inner.func).endswith("ErrorData") else call
    names = [_get_name(arg, place, ("code", "message")) for place, arg in enumerate(given.args)]
    if (given is call and len(call.args) < 2) or "message" not in names:
        add_note("the text of the error is not known here: write ToolError(text)")
        return call
    return call.with_changes(args=[cst.Arg(given.args[names.index("message")].value)])


def rewrite_message_call(call: cst.Call, kind: str) -> tuple[cst.Call, str]:
    """`Message("…", role="assistant")` → `Assistant("…")`; and the name that it uses."""
    role = find_keyword_value(call.args, "role")
    speaker = "user" if role is None else _read_string(role)
    if kind != "Message":
        speaker = "assistant" if kind.startswith("Assistant") else "user"
    name = {"user": "User", "assistant": "Assistant"}.get(str(speaker))
    if name is None:
        return call, "Message"
    kept = [
        _drop_name(arg) if arg.keyword is None or arg.keyword.value in ("content", "text") else None
        for arg in call.args
    ]
    return replace_arguments(call.with_changes(func=cst.Name(name)), kept), name


def rewrite_content_call(
    call: cst.Call, kind: str, decode: Callable[[], str], add_note: AddNote
) -> tuple[cst.Call, str] | None:
    """A content part of the SDK as one of ours, and its name; None if what it is made of is not known.

    `ImageContent(data=x, mimeType=m)` → `Image(b64decode(x), m)`, `ResourceLink(uri=u, name=n)` → `Link(u, n)`,
    `EmbeddedResource(resource=TextResourceContents(uri=u, text=t))` → `Embedded(u, text=t)`. `decode`: needs b64decode.
    """
    ours, given = _CONTENT[kind], call
    if kind == "EmbeddedResource":
        inner = find_keyword_value(call.args, "resource")
        if not isinstance(inner, cst.Call):
            return None
        given = inner
    needed = "data" if kind in ("ImageContent", "AudioContent") else "uri"
    if any(arg.keyword is None for arg in given.args) or find_keyword_value(given.args, needed) is None:
        return None
    kept: list[cst.Arg | None] = []
    for arg in given.args:
        name, value = cst.ensure_type(arg.keyword, cst.Name).value, arg.value
        if name in ("data", "blob"):
            kept.append(_name_argument(arg, "data", _decode_base64(value, decode)))
        elif name in ("mimeType", "mime_type"):
            kept.append(_name_argument(arg, "mime_type"))
        elif name == "uri":
            is_url = isinstance(value, cst.Call) and format_node(value.func).endswith("AnyUrl") and len(value.args) == 1
            kept.append(arg.with_changes(value=cst.ensure_type(value, cst.Call).args[0].value if is_url else value))
        elif name in ("name", "text", "title", "description", "size"):
            kept.append(arg)
        else:
            kept.append(None)
            if name != "type" and not is_none(value):
                add_note(f"the option {name}= of {kind} is left out: see {ours}(…)")
    made = replace_arguments(given.with_changes(func=cst.Name(ours)), kept)
    return made.with_changes(lpar=call.lpar, rpar=call.rpar), ours


_CONTENT = {"ImageContent": "Image", "AudioContent": "Audio", "EmbeddedResource": "Embedded", "ResourceLink": "Link"}


def _decode_base64(value: cst.BaseExpression, decode: Callable[[], str]) -> cst.BaseExpression:
    """The bytes of a text in base64: of `base64.b64encode(x).decode()`, x."""
    maker = value.func.value if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) else None
    if isinstance(maker, cst.Call) and format_node(maker.func).endswith("b64encode") and len(maker.args) == 1:
        return maker.args[0].value
    return cst.Call(cst.Name(decode()), [cst.Arg(value)])


def read_result(call: cst.Call) -> tuple[cst.BaseExpression | None, cst.Call]:
    """Whether a CallToolResult is an error, as an expression; and the call with the names of a ToolResult."""
    names = {"isError": "is_error", "structuredContent": "structured_content"}
    args = [
        arg.with_changes(keyword=cst.Name(names.get(arg.keyword.value, arg.keyword.value))) if arg.keyword else arg
        for arg in call.args
    ]
    error = find_keyword_value(args, "is_error")
    kept = [None if arg.keyword is not None and arg.keyword.value == "is_error" else arg for arg in args]
    return (None if error is None or is_flag(error, "False") else error), replace_arguments(call, kept)


def read_only_text(content: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The text of `[Text(x)]`, which a program has after it was rewritten."""
    if isinstance(content, cst.List) and len(content.elements) == 1:
        content = content.elements[0].value
    is_text = isinstance(content, cst.Call) and is_flag(content.func, "Text") and len(content.args) == 1
    return cst.ensure_type(content, cst.Call).args[0].value if is_text else None


def rewrite_progress(call: cst.Call) -> cst.Call:
    """`report_progress(progress=1, total=3)` → `progress(1, 3)`."""
    call = _rename_method(call, "progress")
    names = ("progress", "total", "message")
    kept: list[cst.Arg | None] = []
    for place, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else None
        if name is not None and place < len(names) and name == names[place]:
            arg = _drop_name(arg)
        elif name == "progress":
            arg = _name_argument(arg, "value")
        kept.append(arg)
    return replace_arguments(call, kept)


# -- Parts of calls.


def make_keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    return _name_argument(cst.Arg(value), name)


def make_string(value: str) -> cst.SimpleString:
    return cst.SimpleString('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')


def format_node(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def find_keyword_value(args: Sequence[cst.Arg], name: str) -> cst.BaseExpression | None:
    return next((arg.value for arg in args if arg.keyword is not None and arg.keyword.value == name), None)


def is_none(value: cst.BaseExpression) -> bool:
    return is_flag(value, "None")


def is_flag(value: cst.BaseExpression, name: str) -> bool:
    """Whether it is this constant: True, False or None."""
    return isinstance(value, cst.Name) and value.value == name


def _read_string(value: cst.BaseExpression) -> str | None:
    """What a string literal holds; None for anything else."""
    known = value.evaluated_value if isinstance(value, cst.SimpleString) else None
    return known if isinstance(known, str) else None


def _get_name(arg: cst.Arg, place: int, positional: Sequence[str]) -> str | None:
    """The name of an argument, if it has one or if its place tells it."""
    if arg.keyword is not None:
        return arg.keyword.value
    return positional[place] if place < len(positional) and not arg.star else None


def _is_positional(arg: cst.Arg) -> bool:
    return arg.keyword is None and not arg.star


def _name_argument(arg: cst.Arg, name: str, value: cst.BaseExpression | None = None) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(name), equal=equal, value=value or arg.value)


def _drop_name(arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)


def _rename_method(call: cst.Call, name: str) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    return call.with_changes(func=call.func.with_changes(attr=cst.Name(name)))


# -- The layout of arguments. A gap is what stands before the first, between two, or behind the last.


_Gap = cst.BaseParenthesizableWhitespace
_Broken = cst.ParenthesizedWhitespace  # a gap that goes over to another line; only such a one has comments


def replace_arguments(
    call: cst.Call,
    kept: Sequence[cst.Arg | None],
    *,
    first: cst.Arg | None = None,
    last: Sequence[cst.Arg] = (),
) -> cst.Call:
    """The call with other arguments. `kept`: what each of its arguments is now, None if it is left out."""
    has_comma = bool(call.args) and isinstance(call.args[-1].comma, cst.Comma)
    args: list[cst.Arg] = []
    gaps: list[_Gap] = [call.whitespace_before_args]
    if first is not None:
        args.append(first)
        gaps.append(_separate_like(gaps[0]) if call.args else cst.SimpleWhitespace(""))
    for place, (was, arg) in enumerate(zip(call.args, kept, strict=True)):
        gap = _get_gap_behind(was)
        if arg is None:
            gaps[-1] = _join_gaps(gaps[-1], gap, is_end=place == len(call.args) - 1)
        else:
            args.append(arg)
            gaps.append(gap)
    for arg in last:
        _append_argument(args, gaps, arg)
    laid_out: list[cst.Arg] = []
    for place, arg in enumerate(args, 1):
        if place < len(args) or has_comma:
            after, comma = cst.SimpleWhitespace(""), cst.Comma(whitespace_after=gaps[place])
        else:
            after, comma = gaps[place], cst.MaybeSentinel.DEFAULT
        laid_out.append(arg.with_changes(whitespace_after_arg=after, comma=comma))
    if not args and not _has_comment(gaps[0]):
        gaps[0] = cst.SimpleWhitespace("")
    return call.with_changes(whitespace_before_args=gaps[0], args=laid_out)


def _append_argument(args: list[cst.Arg], gaps: list[_Gap], arg: cst.Arg) -> None:
    """Add an argument behind the others, and a gap before it that is like the one before."""
    if args:
        end, between = gaps[-1], _separate_like(gaps[-2])
        if isinstance(end, _Broken) and isinstance(between, _Broken):
            # A comment at the end of a line belongs to what stands in that line.
            between = between.with_changes(first_line=end.first_line)
            gaps[-1] = end.with_changes(first_line=cst.TrailingWhitespace())
        gaps.insert(-1, between)
    elif isinstance(gaps[0], _Broken):
        gaps.insert(0, cst.SimpleWhitespace(""))
    else:
        gaps.append(cst.SimpleWhitespace(""))
    args.append(arg)


def _get_gap_behind(arg: cst.Arg) -> _Gap:
    gaps = [arg.whitespace_after_arg]
    if isinstance(arg.comma, cst.Comma):
        gaps += [arg.comma.whitespace_before, arg.comma.whitespace_after]
    broken = [gap for gap in gaps if isinstance(gap, _Broken)]
    return reduce(_join_broken, broken) if broken else gaps[-1]


def _separate_like(gap: _Gap) -> _Gap:
    """A gap between two arguments that breaks the line if this one does."""
    if isinstance(gap, _Broken):
        return gap.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return cst.SimpleWhitespace(" ")


def _has_comment(gap: _Gap) -> bool:
    return isinstance(gap, _Broken) and (
        gap.first_line.comment is not None or any(line.comment for line in gap.empty_lines)
    )


def _join_gaps(before: _Gap, after: _Gap, *, is_end: bool) -> _Gap:
    """The gap that is left where an argument stood between two."""
    if isinstance(before, _Broken) and isinstance(after, _Broken):
        return _join_broken(before, after)
    if isinstance(before, _Broken):
        return before if _has_comment(before) or not is_end else after
    return after if is_end or isinstance(after, _Broken) else before


def _join_broken(before: _Broken, after: _Broken) -> _Broken:
    comment = after.first_line.comment
    own_line = [cst.EmptyLine(before.indent, before.last_line, comment)] if comment is not None else []
    lines = [*before.empty_lines, *own_line, *after.empty_lines]
    return after.with_changes(first_line=before.first_line, empty_lines=lines)
