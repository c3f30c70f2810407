"""Rewrites a program: what it does not understand it leaves as it is, and notes the line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst
from libcst import matchers
from libcst.helpers import get_full_name_for_node
from libcst.metadata import PositionProvider

from defserve.tooling.migrate.calls import (
    AddNote,
    add_structured_option,
    find_keyword_value,
    format_node,
    is_flag,
    is_list_of_texts,
    is_scalar_annotation,
    make_keyword,
    read_only_text,
    read_result,
    rename_icon_options,
    replace_arguments,
    rewrite_asgi_call,
    rewrite_content_call,
    rewrite_hints,
    rewrite_item_decorator,
    rewrite_message_call,
    rewrite_mount,
    rewrite_progress,
    rewrite_protocol_error,
    rewrite_run,
    rewrite_server,
    rewrite_text_content_call,
    rewrite_tool_result_call,
)
from defserve.tooling.migrate.name_tables import (
    ASGI_APP_METHODS,
    CONTENT_CLASSES,
    FOREIGN_SERVER_CLASSES,
    IMPLIED_TRANSPORTS,
    ITEM_OPTIONS,
    LOG_LEVELS,
    MODULES_WITHOUT_EFFECT,
    RENAMED_CLASSES,
    RENAMED_CONTEXT_MEMBERS,
    RENAMED_RUN_METHODS,
    SHOWN_ERRORS,
    STANDARD_LIBRARY_NAMES,
    TOOL_HINTS,
    UNSUPPORTED_CONTEXT_MEMBERS,
    UNSUPPORTED_LOW_LEVEL_MEMBERS,
    UNSUPPORTED_MEDIA_MEMBERS,
    UNSUPPORTED_SERVER_MEMBERS,
    MigrationNote,
)
from defserve.tooling.migrate.program import (
    BlockTransformer,
    ProgramFacts,
    RequiredImports,
    find_name_uses,
    find_nodes,
    is_context_annotation,
    is_rewritten_context,
    parse_quoted_annotation,
)

if TYPE_CHECKING:
    from defserve.tooling.migrate.migration import LowLevelServers


class ProgramRewriter(cst.CSTTransformer):
    """One pass over a program. `notes` are what it could not do."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, facts: ProgramFacts, name: str, imports: RequiredImports, low_level: LowLevelServers) -> None:
        super().__init__()
        self._facts, self._name = facts, name
        self._imports, self._low_level = imports, low_level
        self.notes: list[MigrationNote] = []
        self._untouched: set[cst.CSTNode] = set()
        self._gone: set[cst.Attribute] = set()
        """Of arguments that are left out."""
        self._above: list[cst.EmptyLine] = []
        """What stood above statements that are gone, and belongs to `server.run()`."""
        self._within: list[bool] = []
        self._tries = [0]
        """For each function around: how many `try` are open."""
        self._plain_classes: set[str] = set()
        """Classes of attributes that tools return."""
        self._classes: list[cst.ClassDef] = []
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
        self._classes.append(node)
        self._name_self()
        if node.name.value in self._facts.server_classes and find_nodes(node.body, cst.FunctionDef):
            self._add_note(
                node, f"{node.name.value} is a server: check what it overrides, and what it uses of self and super()"
            )

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._classes.pop()
        self._name_self()
        if original_node.name.value not in self._plain_classes:
            return updated_node
        name = self._imports.add_standard_name("dataclasses", "dataclass")
        decorator = cst.parse_expression(f"{name}(init=False, repr=False, eq=False)")
        return updated_node.with_changes(decorators=[cst.Decorator(decorator)])

    def _name_self(self) -> None:
        """`self` is a server in a subclass of one, and not in a class inside that."""
        if self._classes and self._classes[-1].name.value in self._facts.server_classes:
            self._facts.servers.add("self")
        else:
            self._facts.servers.discard("self")

    def _is_constructor_of_subclass(self, call: cst.Call) -> bool:
        """Whether their `__init__` is called: by `super()` in a subclass of their server, or to make one."""
        inside = self._classes[-1] if self._classes else None
        if inside is not None and inside.name.value in self._facts.server_classes:
            return format_node(call.func) == "super().__init__" and not self._facts.inherits_own_init(inside)
        name = get_full_name_for_node(call.func)
        return self._facts.server_classes.get(name or "") is False

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        self._annotations -= 1
        return updated_node

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        self._lines[updated_node] = self._here = self._line(original_node)
        inner = parse_quoted_annotation(original_node) if self._annotations and not self._calls else None
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
        if called == "Tool" and self._annotations and self._low_level.has_loop:
            return cst.parse_expression(f"dict[str, {self._imports.add_standard_name('typing', 'Any')}]")
        if called == "ToolAnnotations" and self._annotations:
            item = cst.SubscriptElement(cst.Index(cst.Name(self._imports.add_standard_name("typing", "Any"))))
            text = cst.SubscriptElement(cst.Index(cst.Name("str")))
            return cst.Subscript(cst.Name("dict"), [text, item])
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
                self._add_note(original_node, f"{full} is not rewritten: {UNSUPPORTED_CONTEXT_MEMBERS[last]}")
        is_server = (
            head in self._facts.servers or self._facts.resolve_name(original_node.value) in FOREIGN_SERVER_CLASSES
        )
        if is_server and last in UNSUPPORTED_SERVER_MEMBERS:
            self._add_note(original_node, f"{full} is not rewritten: {UNSUPPORTED_SERVER_MEMBERS[last]}")
        if head in self._facts.low_level and last in UNSUPPORTED_LOW_LEVEL_MEMBERS and original_node not in self._gone:
            self._add_note(original_node, f"{full} is not rewritten: {UNSUPPORTED_LOW_LEVEL_MEMBERS[last]}")
        name = original_node.attr.value
        if name in UNSUPPORTED_MEDIA_MEMBERS and {"Image", "Audio", "File"} & set(self._facts.names.values()):
            self._add_note(original_node, f"{name} is not rewritten: {UNSUPPORTED_MEDIA_MEMBERS[name]}")
        if (hint := TOOL_HINTS.get(name)) is not None:
            self._add_note(
                original_node, f'{name} is not rewritten: the annotations of a tool are a dict, write .get("{hint}")'
            )
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

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return node not in self._facts.plain

    def visit_Await(self, node: cst.Await) -> None:
        if node in self._facts.low_level_runs:
            self._gone |= {*find_nodes(node, cst.Attribute)}

    def visit_Call(self, node: cst.Call) -> None:
        self._calls += 1

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        self._calls -= 1
        called = self._facts.resolve_name(original_node.func)

        def add_note(text: str) -> None:
            self._add_note(original_node, text)

        if called in FOREIGN_SERVER_CLASSES or called == "LowLevelServer":
            self._imports.add_name("Server")
            return rewrite_server(updated_node, self._name, add_note)
        if self._is_constructor_of_subclass(original_node):
            if original_node.args and all(arg.star for arg in original_node.args):
                return updated_node  # what it was given is passed on
            return rewrite_server(updated_node, self._name, add_note).with_changes(func=updated_node.func)
        if called == "ToolAnnotations":
            return rewrite_hints(updated_node)
        if called == "Icon":
            return rename_icon_options(updated_node)
        if called == "CurrentContext":
            return cst.Name("None")
        if called == "TextContent":
            return rewrite_text_content_call(updated_node, add_note)
        if called == "ToolResult":
            return rewrite_tool_result_call(updated_node, add_note)
        if called in ("Message", "UserMessage", "AssistantMessage"):
            made, name = rewrite_message_call(updated_node, called)
            self._imports.add_name(name)
            return made
        if original_node in self._facts.plain:
            main, *rest = updated_node.args
            return main.value if isinstance(main.value, cst.Call) else cst.Call(main.value, rest)
        if called in _CONTENT:
            content = rewrite_content_call(updated_node, called, self._import_b64decode, add_note)
            return updated_node if content is None else self._use(*content)
        if called == "CallToolResult":
            error, made = read_result(updated_node)
            if error is None:
                self._imports.add_name("ToolResult")
                return rewrite_tool_result_call(made.with_changes(func=cst.Name("ToolResult")), add_note)
            return updated_node
        if called == "PromptMessage":
            content = find_keyword_value(updated_node.args, "content")
            args = [
                arg.with_changes(value=read_only_text(content) or content) if arg.value is content else arg
                for arg in updated_node.args
            ]
            made, name = rewrite_message_call(updated_node.with_changes(args=args), "Message")
            return updated_node if name == "Message" else self._use(made, name)
        if called in ("McpError", "MCPError"):
            return rewrite_protocol_error(updated_node, add_note)
        if called == "Tool":
            return self._low_level.replace_tool(original_node, updated_node)
        if get_full_name_for_node(original_node.func) in ("asyncio.run", "anyio.run"):
            return self._run_in_loop(original_node, updated_node)
        if isinstance(original_node.func, cst.Attribute) and self._facts.is_server(original_node.func.value):
            return self._of_server(original_node, updated_node, original_node.func.attr.value, add_note)
        if self._is_tool(original_node.func) and isinstance(updated_node.func, cst.Call) and original_node.args:
            # `mcp.tool(name="x")(function)`
            made = self._keep_structured(original_node.args[0].value, updated_node.func, add_note)
            return updated_node.with_changes(func=made)
        return updated_node

    def _use(self, made: cst.Call, name: str) -> cst.Call:
        self._imports.add_name(name)
        return made

    def _import_b64decode(self) -> str:
        return self._imports.add_standard_name("base64", "b64decode")

    # A result that is an error is raised here. What a `try` around it would catch is left as it is.

    def visit_Try_body(self, node: cst.Try) -> None:
        self._tries[-1] += bool(node.handlers)

    def leave_Try_body(self, node: cst.Try) -> None:
        self._tries[-1] -= bool(node.handlers)

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return | cst.Raise:
        """`return CallToolResult(content=[TextContent(text=x)], isError=True)` → `raise ToolError(x)`."""
        was, call = original_node.value, updated_node.value
        if not isinstance(was, cst.Call) or not isinstance(call, cst.Call):
            return updated_node
        if self._facts.resolve_name(was.func) != "CallToolResult":
            return updated_node
        error, made = read_result(call)
        text = read_only_text(find_keyword_value(made.args, "content"))
        if error is None or not is_flag(error, "True") or text is None or self._tries[-1]:
            return updated_node
        raised = cst.Call(cst.Name(self._imports.add_name("ToolError")), [cst.Arg(text)])
        return cst.Raise(raised, whitespace_after_raise=cst.SimpleWhitespace(" "))

    def _of_server(self, original: cst.Call, updated: cst.Call, verb: str, add_note: AddNote) -> cst.BaseExpression:
        name = get_full_name_for_node(original.func.value) if isinstance(original.func, cst.Attribute) else None
        if verb in ITEM_OPTIONS:
            made = rewrite_item_decorator(updated, verb, add_note)
            function = original.args[0] if original.args else None
            if verb != "tool" or function is None or function.keyword is not None or function.star:
                return made
            return self._keep_structured(function.value, made, add_note)
        if verb in IMPLIED_TRANSPORTS:
            return rewrite_run(updated, verb, self._facts.addresses.get(name or "", {}), add_note)
        if verb in ("mount", "import_server"):
            return rewrite_mount(updated, add_note)
        if verb == "add_tool" and original.args:
            return self._add_tool(original.args[0].value, updated, add_note)
        if verb in ASGI_APP_METHODS:
            extra = [make_keyword("legacy_sse", cst.Name("True"))] if ASGI_APP_METHODS[verb] else []
            return rewrite_asgi_call(updated, verb, extra, add_note)
        return updated

    def _add_tool(self, tool: cst.BaseExpression, updated: cst.Call, add_note: AddNote) -> cst.Call:
        """`mcp.add_tool(Tool.from_function(f, name=…))` → `mcp.add_tool(f, name=…)`."""
        if isinstance(tool, cst.Call):
            maker = (
                tool.func if isinstance(tool.func, cst.Attribute) and tool.func.attr.value == "from_function" else None
            )
            if maker is None or self._facts.resolve_name(maker.value) not in ("Tool", "FunctionTool") or not tool.args:
                return updated
            options = rewrite_item_decorator(cst.ensure_type(updated.args[0].value, cst.Call), "tool", add_note)
            updated = updated.with_changes(args=options.args, whitespace_before_args=options.whitespace_before_args)
            tool = tool.args[0].value
        return self._keep_structured(tool, updated, add_note)

    def _keep_structured(self, function: cst.BaseExpression, made: cst.Call, add_note: AddNote) -> cst.Call:
        """`mcp.tool(function)` with `structured=True`, if the function returns a number or a truth value."""
        if (
            isinstance(function, cst.SimpleString | cst.Lambda)
            or find_keyword_value(made.args, "structured") is not None
        ):
            return made
        name = (get_full_name_for_node(function) or "").rpartition(".")[2]
        returned = {is_scalar_annotation(each) for each in self._facts.returns.get(name, ())}
        if len(returned) != 1:
            add_note(f"what {format_node(function)} returns is not known here: if it is a number or a truth value, add"
                     " structured=True")  # fmt: skip
        return add_structured_option(made) if returned == {True} else made

    def _run_in_loop(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """`asyncio.run(mcp.run_async())` → `mcp.run()`."""
        if not original.args:
            return updated
        run = original.args[0].value
        used = run.func if isinstance(run, cst.Call) else run  # anyio is given the function itself
        if isinstance(used, cst.Attribute) and self._facts.is_server(used.value) and used.attr.value.startswith("run"):
            made = updated.args[0].value
            return made if isinstance(run, cst.Call) else cst.Call(cst.Attribute(used.value, cst.Name("run")))
        return updated

    def leave_Await(self, original_node: cst.Await, updated_node: cst.Await) -> cst.BaseExpression:
        call, made = original_node.expression, updated_node.expression
        if not isinstance(call, cst.Call) or not isinstance(made, cst.Call) or not isinstance(call.func, cst.Attribute):
            return made if original_node in self._facts.plain else updated_node
        if original_node in self._facts.low_level_runs:
            return made.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
        verb, owner = call.func.attr.value, get_full_name_for_node(call.func.value)
        if owner in self._facts.contexts:
            return self._of_context(call, made, verb) or updated_node
        if owner in self._facts.servers and (verb == "import_server" or verb in IMPLIED_TRANSPORTS):
            if verb != "import_server" and original_node not in self._facts.plain:
                self._add_note(
                    original_node,
                    "server.run() blocks: call it outside of an event loop, in a plain `def` that is called without"
                    " asyncio.run; what is awaited before goes into Server(lifespan=…)",
                )
            return made
        return made if original_node in self._facts.plain else updated_node

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """`async with stdio_server()`: what is in it remains."""
        body = updated_node.body
        if original_node not in self._facts.plain or not isinstance(body, cst.IndentedBlock):
            return updated_node
        first, *rest = body.body
        lines = [*self._above, *updated_node.leading_lines, *first.leading_lines]  # pyright: ignore
        self._above = []
        return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *rest])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if original_node not in self._facts.plain:
            return updated_node
        self._above += updated_node.leading_lines
        return cst.RemoveFromParent()

    def _of_context(self, call: cst.Call, made: cst.Call, verb: str) -> cst.BaseExpression | None:
        """A verb of the context: what is not awaited here, or has another name."""
        if verb == "log" and made.args:
            level = find_keyword_value(made.args, "level") or made.args[0].value
            known = level.evaluated_value if isinstance(level, cst.SimpleString) else None
            return self._rewrite_log_call(call, made, str(known), level) if known in LOG_LEVELS else None
        if verb in LOG_LEVELS:
            return self._rewrite_log_call(call, made, verb)
        if verb == "report_progress":
            return rewrite_progress(made)
        if verb == "list_roots":
            return cst.Await(
                made.with_changes(func=cst.ensure_type(made.func, cst.Attribute).with_changes(attr=cst.Name("roots")))
            )
        if verb == "sample":
            args = [
                arg.with_changes(keyword=cst.Name("system"))
                if arg.keyword is not None and arg.keyword.value == "system_prompt"
                else arg
                for arg in made.args
            ]
            return cst.Await(made.with_changes(args=args))
        return None

    def _rewrite_log_call(
        self, call: cst.Call, made: cst.Call, level: str, named_level: cst.BaseExpression | None = None
    ) -> cst.Call:
        kept: list[cst.Arg | None] = []
        for arg in made.args:
            is_text = arg.keyword is None or arg.keyword.value in ("message", "data")
            if is_text and arg.value is not named_level and not any(kept):
                kept.append(arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT))
            else:
                kept.append(None)
                if arg.value is not named_level:
                    self._add_note(
                        call, "only the text of a log message is kept; fields are ctx.log.info(text, key=value)"
                    )
        assert isinstance(made.func, cst.Attribute)
        log = cst.Attribute(cst.Attribute(made.func.value, cst.Name("log")), cst.Name(level))
        return replace_arguments(made.with_changes(func=log), kept)

    # -- functions ---------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._bound[node.name.value] = self._line(node)
        self._tries.append(0)
        self._within.append(self._get_item_kind(node) == "tool" or node in self._low_level.handlers)

    def visit_Raise(self, node: cst.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
        name = get_full_name_for_node(raised) if raised is not None else None
        # `raise error` and `raise _failure(…)` may be a ToolError: only a class is one for sure, or none.
        is_class = name is not None and name.rpartition(".")[2][:1].isupper()
        if any(self._within[-1:]) and is_class and self._facts.resolve_name(raised or node) not in SHOWN_ERRORS:
            self._add_note(
                node, f"models do not read the text of {name} here: raise ToolError for what they should read"
            )

    def _get_item_kind(self, node: cst.FunctionDef) -> str | None:
        """Whether a function is a tool, a resource or a prompt, by its decorators, or by a call."""
        for decorator in node.decorators:
            used = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
            if isinstance(used, cst.Attribute) and self._facts.is_server(used.value):
                return used.attr.value if used.attr.value in ITEM_OPTIONS else None
        return self._facts.registered.get(node)

    def _is_tool(self, expression: cst.BaseExpression) -> bool:
        """Whether it is `mcp.tool` or `mcp.tool(…)`."""
        used = expression.func if isinstance(expression, cst.Call) else expression
        is_server = isinstance(used, cst.Attribute) and self._facts.is_server(used.value)
        return is_server and cst.ensure_type(used, cst.Attribute).attr.value == "tool"

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        self._within.pop()
        self._tries.pop()
        if original_node in self._facts.plain:
            return updated_node.with_changes(asynchronous=None)
        if (replaced := self._low_level.replace_function(original_node, updated_node)) is not None:
            return replaced
        kind = self._get_item_kind(original_node)
        if kind == "resource" and is_list_of_texts(original_node.returns):
            self._add_note(
                original_node,
                "here each text of the list is sent by itself: return json.dumps(…) to send the list as JSON",
            )
        if kind == "tool" and original_node.returns is not None and is_flag(original_node.returns.annotation, "bytes"):
            text = "bytes alone do not say what they are, and the server does not start: return File(data=…, name=…)"
            self._add_note(original_node, text)
        parameters = updated_node.params
        positional = [self._parameter(p, kind) for p in parameters.posonly_params]
        changed = [self._parameter(p, kind) for p in parameters.params]
        keywords = [self._parameter(p, kind) for p in parameters.kwonly_params]
        if (
            kind == "tool"
            and updated_node.returns is not None
            and is_scalar_annotation(updated_node.returns.annotation)
        ):
            pairs = zip(original_node.decorators, updated_node.decorators, strict=True)
            decorators = [
                made.with_changes(decorator=add_structured_option(made.decorator))
                if self._is_tool(was.decorator)
                else made
                for was, made in pairs
            ]
            updated_node = updated_node.with_changes(decorators=decorators)
        return updated_node.with_changes(
            params=parameters.with_changes(posonly_params=positional, params=changed, kwonly_params=keywords)
        )

    def _parameter(self, parameter: cst.Param, kind: str | None) -> cst.Param:
        annotation = parameter.annotation
        if annotation is None:
            if kind is None or parameter.name.value in ("self", "cls"):
                return parameter
            # Without a type they take any value. Arguments of resources and prompts are strings.
            is_text = kind != "tool" and parameter.default is None
            name = "str" if is_text else self._imports.add_standard_name("typing", "Any")
            return parameter.with_changes(annotation=cst.Annotation(cst.Name(name)), equal=_make_equal_sign(parameter))
        if is_context_annotation(annotation.annotation, self._facts) or is_rewritten_context(annotation.annotation):
            self._imports.add_name("Context")
            return parameter.with_changes(annotation=annotation.with_changes(annotation=cst.Name("Context")))
        return parameter

    # -- the whole ---------------------------------------------------------------------------------------

    def visit_Module(self, node: cst.Module) -> None:
        self._low_level.read_module(node)
        returned: set[str] = set()
        for function in find_nodes(node, cst.FunctionDef):
            if function.returns is not None and self._get_item_kind(function) == "tool":
                returned |= {name.value for name in find_nodes(function.returns, cst.Name)}
        for made in node.body:
            if isinstance(made, cst.ClassDef) and made.name.value in returned and _is_plain_class(made):
                self._plain_classes.add(made.name.value)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        made = self._imports.replace_imports(updated_node)
        for node, text in (*self._imports.problems, *self._low_level.notes):
            self._add_note(node, text)
        for arg in self._facts.left_versions:
            text = f"the version is left out with its line: write Server(…, version={format_node(arg.value)})"
            self._add_note(arg, text)
        for name in self._imports.needed & self._bound.keys():
            self.notes.append(
                MigrationNote(self._bound[name], f"{name} is also a name of defserve, used here: rename this one")
            )
        return made if self._facts.is_package else made.visit(_UnusedImports(original_node, made))


def _is_plain_class(made: cst.ClassDef) -> bool:
    """Whether it names the types of its attributes and is nothing else: as a dataclass it has a JSON form."""
    lines = [each.body[0] for each in made.body.body if isinstance(each, cst.SimpleStatementLine)]
    fields = [each for each in lines if isinstance(each, cst.AnnAssign)]
    is_mutable = any(isinstance(each.value, cst.List | cst.Dict | cst.Set) for each in fields)
    return bool(fields) and not (made.bases or made.keywords or made.decorators or is_mutable)


_CONTENT = frozenset({"ImageContent", "AudioContent", "EmbeddedResource", "ResourceLink"})
_NONE = cst.MaybeSentinel.DEFAULT


def _make_equal_sign(parameter: cst.Param) -> Any:
    if parameter.default is None:
        return _NONE
    return cst.AssignEqual(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))


# -- Imports that the rewritten program no longer needs: `import asyncio`, where `asyncio.run` has gone.


class _UnusedImports(BlockTransformer):
    """Takes away imports of names that the program used before, and does not use now."""

    def __init__(self, before: cst.Module, after: cst.Module) -> None:
        super().__init__()
        words = {
            word for string in find_nodes(after, cst.SimpleString) for word in re.findall(r"\w+", string.value)
        }  # types in quotes, `__all__`
        now = words | {use.name for use in find_name_uses(after)}
        self._unused = {use.name for use in find_name_uses(before)} - now

    def visit_Try(self, node: cst.Try) -> bool:
        return False

    def visit_If(self, node: cst.If) -> bool:
        return any(name.value == "__name__" for name in find_nodes(node.test, cst.Name))

    def leave_Module(self, original_node: Any, updated_node: Any) -> Any:
        """Also of an indented block."""
        kept: list[Any] = []
        above: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            made = self._strip_line(statement) if isinstance(statement, cst.SimpleStatementLine) else statement
            if made is None:
                above += statement.leading_lines
            elif above and (not made.leading_lines or any(line.comment for line in above)):
                kept.append(made.with_changes(leading_lines=[*above, *made.leading_lines]))
            else:
                kept.append(made)
            above = above if made is None else []
        footer = [*(line for line in above if line.comment), *updated_node.footer]
        return updated_node.with_changes(body=kept, footer=footer)

    leave_IndentedBlock = leave_Module

    def _strip_line(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        part = line.body[0]
        if not isinstance(part, cst.Import | cst.ImportFrom) or isinstance(part.names, cst.ImportStar):
            return line
        names = [alias for alias in part.names if not self._is_unused(alias, part)]
        has_comment = matchers.findall(line.with_changes(leading_lines=()), matchers.Comment())
        if len(names) == len(part.names) or len(line.body) > 1 or has_comment:
            return line
        names[-1:] = [alias.with_changes(comma=part.names[-1].comma) for alias in names[-1:]]
        return line.with_changes(body=[part.with_changes(names=names)]) if names else None

    def _is_unused(self, alias: cst.ImportAlias, part: cst.Import | cst.ImportFrom) -> bool:
        source = part.module if isinstance(part, cst.ImportFrom) else alias.name
        if source is None or (isinstance(part, cst.ImportFrom) and part.relative):
            return False
        local = (alias.evaluated_alias or alias.evaluated_name).partition(".")[0]
        return (get_full_name_for_node(source) or "").partition(".")[
            0
        ] in MODULES_WITHOUT_EFFECT and local in self._unused
