"""Rewrites a program: what it does not understand it leaves as it is, and notes the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import PositionProvider

from defserve.tooling.migrate.name_tables import (
    ADDRESS_GUARDS,
    ASGI_APP_METHODS,
    CONTENT_CLASSES,
    DROPPED_OPTIONS,
    FOREIGN_SERVER_CLASSES,
    ITEM_OPTIONS,
    LOG_LEVELS,
    PROTECTING_ITEM_OPTIONS,
    PROTECTING_OPTIONS,
    RENAMED_CLASSES,
    RENAMED_CONTEXT_MEMBERS,
    RENAMED_OPTIONS,
    RENAMED_RUN_METHODS,
    SERVER_OPTIONS,
    STANDARD_LIBRARY_NAMES,
    UNSUPPORTED_CONTEXT_MEMBERS,
    UNSUPPORTED_SERVER_MEMBERS,
    MigrationNote,
)
from defserve.tooling.migrate.program import (
    LowLevelServers,
    ProgramFacts,
    RequiredImports,
    find_name_uses,
    is_context,
    parse_quoted,
)

SHOWN = frozenset({"ToolError", "ResourceError", "PromptError", "NotFoundError"})
"""Exceptions whose text a model reads."""


class ProgramRewriter(cst.CSTTransformer):
    """One pass over a program. `notes` are what it could not do."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, facts: ProgramFacts, name: str) -> None:
        super().__init__()
        self._facts, self._name = facts, name
        self._imports = RequiredImports(facts)
        self._low_level = LowLevelServers(facts, self._imports)
        self.notes: list[MigrationNote] = []
        self._untouched: set[cst.CSTNode] = set()
        self._within: list[bool] = []
        self._annotations = self._calls = self._here = 0
        self._lines: dict[cst.CSTNode, int] = {}
        """Of names that are left as they are: where they stood."""
        self._bound: dict[str, int] = {}
        """Names that the program gives to things of its own, and where."""

    def _line(self, node: cst.CSTNode) -> int:
        found: Any = self.get_metadata(PositionProvider, node, None)
        return found.start.line if found is not None else self._lines.get(node, self._here or 1)

    def _add_note(self, node: cst.CSTNode, text: str) -> None:
        self.notes.append(MigrationNote(self._line(node), text))

    # -- names -------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._untouched.add(node.attr)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._untouched.add(node.keyword)

    def visit_Param(self, node: cst.Param) -> None:
        self._untouched.add(node.name)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            name = alias.evaluated_alias or alias.evaluated_name
            if name not in self._facts.names:
                self._bound[name] = self._line(node)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._bound[node.name.value] = self._line(node)

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        self._annotations -= 1
        return updated_node

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        self._lines[updated_node] = self._here = self._line(original_node)
        inner = parse_quoted(original_node) if self._annotations and not self._calls else None
        if inner is None:
            return updated_node
        made = inner.visit(self)
        assert isinstance(made, cst.BaseExpression)
        code = cst.Module([]).code_for_node(made)
        changed = original_node.with_changes(value=f"{original_node.quote}{code}{original_node.quote}")
        self._lines[changed] = self._here
        return changed

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        self._lines[updated_node] = self._line(original_node)
        if original_node in self._untouched:
            return updated_node
        return self._ours(original_node, updated_node)

    def _ours(self, original: cst.CSTNode, updated: Any) -> Any:
        called = self._facts.resolve_name(original) or ""
        if called in STANDARD_LIBRARY_NAMES:
            return cst.Name(self._imports.add_standard_name(*STANDARD_LIBRARY_NAMES[called]))
        ours = RENAMED_CLASSES.get(called) or (CONTENT_CLASSES.get(called) if self._annotations else None)
        return cst.Name(self._imports.add_name(ours)) if ours is not None else updated

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self._facts.resolve_name(original_node) is not None:
            return self._ours(original_node, updated_node)
        full = get_full_name_for_node(original_node) or ""
        head, _, last = full.rpartition(".")
        context = head.removesuffix(".request_context")
        if last == "lifespan_context" and head != context and context in self._facts.contexts:
            return cst.Attribute(cst.Name(context), cst.Name("lifespan"))
        if head in self._facts.contexts:
            if last in RENAMED_CONTEXT_MEMBERS:
                return updated_node.with_changes(attr=cst.Name(RENAMED_CONTEXT_MEMBERS[last]))
            if last in UNSUPPORTED_CONTEXT_MEMBERS and last != "request_context":
                self._add_note(original_node, f"{full} has no counterpart: {UNSUPPORTED_CONTEXT_MEMBERS[last]}")
        is_server = (
            head in self._facts.servers or self._facts.resolve_name(original_node.value) in FOREIGN_SERVER_CLASSES
        )
        if is_server and last in UNSUPPORTED_SERVER_MEMBERS:
            self._add_note(original_node, f"{full} has no counterpart: {UNSUPPORTED_SERVER_MEMBERS[last]}")
        if not is_server and last in RENAMED_RUN_METHODS:
            self._add_note(
                original_node, f"{full} is left as it is: write {RENAMED_RUN_METHODS[last]} if it is a server"
            )
        return updated_node

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """`MCPServer[State]` → `Server`, which has no parameter."""
        is_server = self._facts.resolve_name(original_node.value) in FOREIGN_SERVER_CLASSES
        return updated_node.value if is_server else updated_node

    # -- calls -------------------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        self._calls += 1

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        self._calls -= 1
        called = self._facts.resolve_name(original_node.func)

        def add_note(text: str) -> None:
            self._add_note(original_node, text)

        if called in FOREIGN_SERVER_CLASSES:
            self._imports.add_name("Server")
            return server(updated_node, self._name, add_note)
        if called == "LowLevelServer":
            self._imports.add_name("Server")
            return server(updated_node, self._name, add_note)
        if called == "ToolAnnotations":
            return hints(updated_node)
        if called == "CurrentContext":
            return cst.Name("None")
        if called == "TextContent":
            return content(updated_node, add_note)
        if called == "ToolResult":
            return tool_result(updated_node, add_note)
        if called in ("Message", "UserMessage", "AssistantMessage"):
            made, name = message(updated_node, called)
            self._imports.add_name(name)
            return made
        if get_full_name_for_node(original_node.func) in ("asyncio.run", "anyio.run"):
            return self._run_in_loop(original_node, updated_node)
        if isinstance(original_node.func, cst.Attribute) and self._facts.is_server(original_node.func.value):
            return self._of_server(original_node, updated_node, original_node.func.attr.value, add_note)
        return updated_node

    def _of_server(self, original: cst.Call, updated: cst.Call, verb: str, say: Say) -> cst.BaseExpression:
        name = get_full_name_for_node(original.func.value) if isinstance(original.func, cst.Attribute) else None
        if verb in ITEM_OPTIONS:
            return item(updated, verb, say)
        if verb in ("run", "run_async", "run_stdio_async", "run_http_async", "run_streamable_http_async"):
            changed = run(updated, self._facts.addresses.get(name or "", {}), say)
            return rename_verb(changed, "run", changed.args)
        if verb in ("mount", "import_server"):
            return mount(updated, say)
        if verb == "add_tool" and len(original.args) == 1:
            return self._add_made_tool(original.args[0].value, updated, say)
        if verb in ASGI_APP_METHODS:
            args = keep_guards(updated, verb, say)
            if len(original.args) > len(args):
                say(f"the other options of {verb} are left out: see server.asgi(…)")
            args += [keyword("legacy_sse", cst.Name("True"))] if ASGI_APP_METHODS[verb] else []
            return rename_verb(updated, "asgi", commas(args, cst.Call(cst.Name("asgi"))))
        return updated

    def _add_made_tool(self, made: cst.BaseExpression, updated: cst.Call, say: Say) -> cst.Call:
        """`mcp.add_tool(Tool.from_function(f, name=…))` → `mcp.add_tool(f, name=…)`."""
        func = made.func if isinstance(made, cst.Call) else None
        if not isinstance(func, cst.Attribute) or func.attr.value != "from_function":
            return updated
        if self._facts.resolve_name(func.value) not in ("Tool", "FunctionTool"):
            return updated
        options = item(cst.ensure_type(updated.args[0].value, cst.Call), "tool", say)
        return updated.with_changes(args=options.args)

    def _run_in_loop(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """`asyncio.run(mcp.run_async())` → `mcp.run()`."""
        if not original.args:
            return updated
        run = original.args[0].value
        used = run.func if isinstance(run, cst.Call) else run  # anyio is given the function itself
        if isinstance(used, cst.Attribute) and self._facts.is_server(used.value) and used.attr.value.startswith("run"):
            made = updated.args[0].value
            return made if isinstance(run, cst.Call) else cst.Call(cst.Attribute(used.value, cst.Name("run")))
        if (server := self._low_level.find_server_of(get_full_name_for_node(used))) is not None:
            return cst.Call(cst.Attribute(cst.Name(server), cst.Name("run")))
        return updated

    def leave_Await(self, original_node: cst.Await, updated_node: cst.Await) -> cst.BaseExpression:
        call, made = original_node.expression, updated_node.expression
        if not isinstance(call, cst.Call) or not isinstance(made, cst.Call) or not isinstance(call.func, cst.Attribute):
            return updated_node
        verb, owner = call.func.attr.value, get_full_name_for_node(call.func.value)
        if owner in self._facts.contexts:
            return self._of_context(call, made, verb) or updated_node
        if owner in self._facts.servers and verb in ("import_server", "run_async", "run_http_async", "run_stdio_async"):
            if verb != "import_server":
                self._add_note(original_node, "server.run() blocks: call it outside of an event loop")
            return made
        return updated_node

    def _of_context(self, call: cst.Call, made: cst.Call, verb: str) -> cst.BaseExpression | None:
        """A verb of the context: what is not awaited here, or has another name."""
        if verb == "log" and made.args:
            level = option(made.args, "level") or made.args[0].value
            known = level.evaluated_value if isinstance(level, cst.SimpleString) else None
            rest = [arg for arg in made.args if arg.value is not level]
            return self._rewrite_log_call(call, made, str(known), rest) if known in LOG_LEVELS else None
        if verb in LOG_LEVELS:
            return self._rewrite_log_call(call, made, verb, made.args)
        if verb == "report_progress":
            return rename_verb(made, "progress", progress(made.args))
        if verb == "list_roots":
            return cst.Await(rename_verb(made, "roots", []))
        if verb == "sample":
            args = [
                arg.with_changes(keyword=cst.Name("system"))
                if arg.keyword is not None and arg.keyword.value == "system_prompt"
                else arg
                for arg in made.args
            ]
            return cst.Await(made.with_changes(args=args))
        return None

    def _rewrite_log_call(self, call: cst.Call, made: cst.Call, level: str, args: Sequence[cst.Arg]) -> cst.Call:
        kept = [arg for arg in args if arg.keyword is None or arg.keyword.value in ("message", "data")][:1]
        if len(kept) < len(args):
            self._add_note(call, "only the text of a log message is kept; fields are ctx.log.info(text, key=value)")
        assert isinstance(made.func, cst.Attribute)
        log = cst.Attribute(cst.Attribute(made.func.value, cst.Name("log")), cst.Name(level))
        return made.with_changes(func=log, args=[cst.Arg(kept[0].value)] if kept else [])

    # -- functions ---------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._bound[node.name.value] = self._line(node)
        self._within.append(self._get_item_kind(node) == "tool")

    def visit_Raise(self, node: cst.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
        name = get_full_name_for_node(raised) if raised is not None else None
        # `raise error` and `raise _failure(…)` may be a ToolError: only a class is one for sure, or none.
        is_class = name is not None and name.rpartition(".")[2][:1].isupper()
        if any(self._within[-1:]) and is_class and self._facts.resolve_name(raised or node) not in SHOWN:
            self._add_note(
                node, f"models do not read the text of {name} here: raise ToolError for what they should read"
            )

    def _get_item_kind(self, node: cst.FunctionDef) -> str | None:
        """Whether a function is a tool, a resource or a prompt, by its decorators."""
        for decorator in node.decorators:
            used = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
            if isinstance(used, cst.Attribute) and self._facts.is_server(used.value):
                return used.attr.value if used.attr.value in ITEM_OPTIONS else None
        return None

    def _is_tool(self, decorator: cst.Decorator) -> bool:
        used = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
        is_server = isinstance(used, cst.Attribute) and self._facts.is_server(used.value)
        return is_server and cst.ensure_type(used, cst.Attribute).attr.value == "tool"

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        self._within.pop()
        if (replaced := self._low_level.function(original_node, updated_node)) is not None:
            return replaced
        kind = self._get_item_kind(original_node)
        parameters = updated_node.params
        changed = [self._parameter(p, kind) for p in parameters.params]
        keywords = [self._parameter(p, kind) for p in parameters.kwonly_params]
        if kind == "tool" and updated_node.returns is not None and is_scalar(updated_node.returns.annotation):
            pairs = zip(original_node.decorators, updated_node.decorators, strict=True)
            decorators = [keep_structured(made) if self._is_tool(was) else made for was, made in pairs]
            updated_node = updated_node.with_changes(decorators=decorators)
        return updated_node.with_changes(params=parameters.with_changes(params=changed, kwonly_params=keywords))

    def _parameter(self, parameter: cst.Param, kind: str | None) -> cst.Param:
        annotation = parameter.annotation
        if annotation is None:
            if kind is None or parameter.name.value in ("self", "cls"):
                return parameter
            name = _type_of(parameter.default) or (
                self._imports.add_standard_name("typing", "Any") if kind == "tool" else "str"
            )
            return parameter.with_changes(annotation=cst.Annotation(cst.Name(name)), equal=_make_equal_sign(parameter))
        if is_context(annotation.annotation, self._facts) or _is_our_context(annotation.annotation):
            self._imports.add_name("Context")
            return parameter.with_changes(annotation=annotation.with_changes(annotation=cst.Name("Context")))
        return parameter

    # -- the whole ---------------------------------------------------------------------------------------

    @property
    def is_incomplete(self) -> bool:
        """Whether a server of the low level could not be rewritten as a whole."""
        return bool(self._low_level.problems)

    def visit_Module(self, node: cst.Module) -> None:
        self._low_level.read_module(node)
        for line, text in ((self._line(n), text) for n, text in self._low_level.problems):
            self.notes.append(MigrationNote(line, text))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        made = self._imports.replace_imports(updated_node)
        for node, text in self._imports.problems:
            self._add_note(node, text)
        for use in find_name_uses(made):
            if use.name in self._low_level.list_main_functions:
                self._add_note(use.node, f"{use.name} is left out: call server.run()")
        for name in self._imports.needed & self._bound.keys():
            self.notes.append(
                MigrationNote(self._bound[name], f"{name} is also a name of defserve, used here: rename this one")
            )
        return made


_NONE = cst.MaybeSentinel.DEFAULT


def _is_our_context(annotation: cst.BaseExpression) -> bool:
    """`Context | None` after its name was rewritten."""
    return isinstance(annotation, cst.BinaryOperation | cst.Subscript) and any(
        isinstance(node, cst.Name) and node.value == "Context" for node in annotation.children
    )


def _type_of(default: cst.BaseExpression | None) -> str | None:
    """The type that a plain default tells."""
    if isinstance(default, cst.Name) and default.value in ("True", "False"):
        return "bool"
    kinds = ((cst.Integer, "int"), (cst.Float, "float"), (cst.SimpleString, "str"))
    return next((name for kind, name in kinds if isinstance(default, kind)), None)


def _make_equal_sign(parameter: cst.Param) -> Any:
    if parameter.default is None:
        return _NONE
    return cst.AssignEqual(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))


# -- Calls of theirs as calls of ours: servers, decorators, `run`, contexts, content. Pure: nodes in, nodes out.


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
        elif given in PROTECTING_OPTIONS:
            if not is_none(arg.value):
                say(_refuse_to_drop(f"{given}= of the server", PROTECTING_OPTIONS[given]))
                kept.append(arg)
        elif given not in DROPPED_OPTIONS:
            say(f"the option {given}= of the server is left out: {_HINTS.get(given, 'it has no counterpart')}")
    return call.with_changes(func=cst.Name("Server"), args=commas(kept, call))


_HINTS: Mapping[str, str] = {"tools": "call server.add_tool(function) for each"}


def _refuse_to_drop(option: str, hint: str) -> str:
    return f"the option {option} may protect something, so it stays and the server does not start: {hint}"


def is_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"


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
                arg.with_changes(keyword=cst.Name(name), value=_set_to_list(arg.value) if name == "tags" else arg.value)
            )
        elif name == "output_schema" and is_none(arg.value) and kind == "tool":
            kept.append(keyword("structured", cst.Name("False")))
        elif name in PROTECTING_ITEM_OPTIONS:
            is_harmless = is_none(arg.value) or (isinstance(arg.value, cst.Name) and arg.value.value == "True")
            if not is_harmless:
                say(_refuse_to_drop(f"{name}= of a {kind}", PROTECTING_ITEM_OPTIONS[name]))
                kept.append(arg)
        elif name not in DROPPED_OPTIONS:
            say(f"the option {name}= of a {kind} is left out: it has no counterpart")
    return call.with_changes(args=commas(kept, call))


SCALARS = frozenset({"int", "float", "bool"})


def is_scalar(annotation: cst.BaseExpression) -> bool:
    """Whether it is a number or a truth value, or None beside one: theirs are structured content, ours are text."""
    if isinstance(annotation, cst.BinaryOperation):
        sides = annotation.left, annotation.right
        return any(is_scalar(side) for side in sides) and all(is_none(side) or is_scalar(side) for side in sides)
    return isinstance(annotation, cst.Name) and annotation.value in SCALARS


def keep_structured(decorator: cst.Decorator) -> cst.Decorator:
    """`@mcp.tool` → `@mcp.tool(structured=True)`, unless it says something else."""
    made = decorator.decorator
    if not isinstance(made, cst.Call):
        return decorator.with_changes(decorator=cst.Call(made, [keyword("structured", cst.Name("True"))]))
    if option(made.args, "structured") is not None:
        return decorator
    args = commas([*made.args, keyword("structured", cst.Name("True"))], made)
    return decorator.with_changes(decorator=made.with_changes(args=args))


def _task(arg: cst.Arg) -> list[cst.Arg]:
    if isinstance(arg.value, cst.Name) and arg.value.value in ("True", "False"):
        return [arg.with_changes(value=text("optional"))] if arg.value.value == "True" else []
    return [arg]


def _set_to_list(value: cst.BaseExpression) -> cst.BaseExpression:
    """Tags are a list here: sets have no order."""
    return cst.List(value.elements) if isinstance(value, cst.Set) else value


def run(call: cst.Call, default: Mapping[str, cst.BaseExpression], say: Say) -> cst.Call:
    """`mcp.run(transport="http", port=8000)` → `mcp.run(on="http://127.0.0.1:8000/mcp")`."""
    if any(arg.star for arg in call.args):
        say('the options of run are not written out: write run(), or run(on="http://127.0.0.1:8000/mcp") for HTTP')
        return call
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    positional = [arg.value for arg in call.args if arg.keyword is None]
    transport = given.get("transport") or (positional[0] if positional else None)
    if transport is None:
        return call.with_changes(args=[])
    kind = transport.evaluated_value if isinstance(transport, cst.SimpleString) else None
    if kind == "stdio":
        return call.with_changes(args=[])
    where = {**default, **given}
    path = where.get("path") or where.get("streamable_http_path") or text("/sse" if kind == "sse" else "/mcp")
    address = _address(where.get("host") or text("127.0.0.1"), where.get("port") or cst.Integer("8000"), path)
    if kind is None:
        say("the transport is chosen when it runs: anything but stdio is served as HTTP; SSE needs legacy_sse=True")
        is_stdio = cst.Comparison(transport, [cst.ComparisonTarget(cst.Equal(), text("stdio"))])
        address = cst.IfExp(is_stdio, text("stdio:"), address)
    args = [keyword("on", address)]
    if kind == "sse":
        args.append(keyword("legacy_sse", cst.Name("True")))
    known = {"transport", "host", "port", "path", "log_level", *PROTECTING_OPTIONS}
    if unknown := sorted(given.keys() - known - DROPPED_OPTIONS):
        say(f"the option {unknown[0]}= of run is left out: it has no counterpart")
    args += keep_guards(call, "run", say)
    if "log_level" in given:
        args.append(keyword("log_level", _lower(given["log_level"])))
    return call.with_changes(args=commas(args, cst.Call(cst.Name("run"))))


def keep_guards(call: cst.Call, verb: str, say: Say) -> list[cst.Arg]:
    """The options of `run` and of an app that may protect the server."""
    kept = [
        arg
        for arg in call.args
        if arg.keyword is not None and arg.keyword.value in PROTECTING_OPTIONS and not is_none(arg.value)
    ]
    for arg in kept:
        assert arg.keyword is not None
        if (name := arg.keyword.value) not in ADDRESS_GUARDS:
            say(_refuse_to_drop(f"{name}= of {verb}", PROTECTING_OPTIONS[name]))
    return kept


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


def rename_verb(call: cst.Call, name: str, args: Sequence[cst.Arg]) -> cst.Call:
    return call.with_changes(func=_attribute(call, name), args=args)


def hints(call: cst.Call) -> cst.BaseExpression:
    """`ToolAnnotations(readOnlyHint=True)` → `{"readOnlyHint": True}`."""
    return cst.Dict(
        [
            cst.DictElement(text(arg.keyword.value), arg.value)
            if arg.keyword is not None
            else cst.StarredDictElement(arg.value)
            for arg in call.args
        ]
    )


def content(call: cst.Call, say: Say) -> cst.Call:
    """`TextContent(type="text", text=x)` → `Text(x)`."""
    value = option(call.args, "text")
    if any(arg.keyword is None or arg.keyword.value not in ("type", "text") for arg in call.args):
        say("only the text of a TextContent is kept")
    kept = [cst.Arg(value)] if value is not None else list(call.args)
    return call.with_changes(func=cst.Name("Text"), args=kept)


def tool_result(call: cst.Call, say: Say) -> cst.BaseExpression:
    """`ToolResult(content=x, structured_content=y)` → `ToolResult(x, data=y)`; without a content, just the data."""
    names = {"content": "content", "structured_content": "data"}
    given = {
        arg.keyword.value if arg.keyword is not None else ("content", "structured_content")[min(place, 1)]: arg.value
        for place, arg in enumerate(call.args)
    }
    if unknown := sorted(given.keys() - names.keys()):
        say(f"the option {unknown[0]}= of ToolResult is left out: it has no counterpart")
    said, data = given.get("content"), given.get("structured_content")
    if said is None and data is not None:
        return data
    args = [*([cst.Arg(said)] if said is not None else []), *([keyword("data", data)] if data is not None else [])]
    return call.with_changes(args=commas(args, cst.Call(cst.Name("ToolResult"))))


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
    if len(args) > len(names) or any(arg.star for arg in args):
        return list(args)
    given = {arg.keyword.value if arg.keyword is not None else names[i]: arg.value for i, arg in enumerate(args)}
    kept: list[cst.Arg] = []
    for name in names:
        if name in given:
            kept.append(cst.Arg(given[name]) if len(kept) == names.index(name) else keyword(name, given[name]))
    return commas(kept, cst.Call(cst.Name("progress")))
