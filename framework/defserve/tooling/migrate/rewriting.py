"""Rewrites a program. What it does not understand it leaves as it is, and notes the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import PositionProvider

from defserve.tooling.migrate import calls
from defserve.tooling.migrate.facts import Facts, is_context
from defserve.tooling.migrate.imports import Imports
from defserve.tooling.migrate.low_level import LowLevel
from defserve.tooling.migrate.notes import Note
from defserve.tooling.migrate.quotes import quoted
from defserve.tooling.migrate.tables import (
    APPS,
    CONTENT,
    CONTEXT,
    CONTEXT_WITHOUT,
    ITEM_OPTIONS,
    LEVELS,
    NAMES,
    SERVER_WITHOUT,
    SERVERS,
    VERBS,
)
from defserve.tooling.migrate.uses import uses_of

SHOWN = frozenset({"ToolError", "ResourceError", "PromptError", "NotFoundError"})
"""Exceptions whose text a model reads."""


class Rewriting(cst.CSTTransformer):
    """One pass over a program. `notes` are what it could not do."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, facts: Facts, name: str) -> None:
        super().__init__()
        self._facts, self._name = facts, name
        self._imports = Imports(facts)
        self._low_level = LowLevel(facts, self._imports)
        self.notes: list[Note] = []
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

    def _say(self, node: cst.CSTNode, text: str) -> None:
        self.notes.append(Note(self._line(node), text))

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
        inner = quoted(original_node) if self._annotations and not self._calls else None
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
        called = self._facts.called(original) or ""
        ours = NAMES.get(called) or (CONTENT.get(called) if self._annotations else None)
        return cst.Name(self._imports.need(ours)) if ours is not None else updated

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self._facts.called(original_node) is not None:
            return self._ours(original_node, updated_node)
        full = get_full_name_for_node(original_node) or ""
        head, _, last = full.rpartition(".")
        context = head.removesuffix(".request_context")
        if last == "lifespan_context" and head != context and context in self._facts.contexts:
            return cst.Attribute(cst.Name(context), cst.Name("lifespan"))
        if head in self._facts.contexts:
            if last in CONTEXT:
                return updated_node.with_changes(attr=cst.Name(CONTEXT[last]))
            if last in CONTEXT_WITHOUT and last != "request_context":
                self._say(original_node, f"{full} has no counterpart: {CONTEXT_WITHOUT[last]}")
        is_server = head in self._facts.servers or self._facts.called(original_node.value) in SERVERS
        if is_server and last in SERVER_WITHOUT:
            self._say(original_node, f"{full} has no counterpart: {SERVER_WITHOUT[last]}")
        if not is_server and last in VERBS:
            self._say(original_node, f"{full} is left as it is: write {VERBS[last]} if it is a server")
        return updated_node

    # -- calls -------------------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        self._calls += 1

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        self._calls -= 1
        called = self._facts.called(original_node.func)

        def say(text: str) -> None:
            self._say(original_node, text)

        if called in SERVERS:
            self._imports.need("Server")
            return calls.server(updated_node, self._name, say)
        if called == "LowLevelServer":
            self._imports.need("Server")
            return calls.server(updated_node, self._name, say)
        if called == "ToolAnnotations":
            return calls.hints(updated_node)
        if called == "CurrentContext":
            return cst.Name("None")
        if called == "TextContent":
            return calls.content(updated_node)
        if called in ("Message", "UserMessage", "AssistantMessage"):
            made, name = calls.message(updated_node, called)
            self._imports.need(name)
            return made
        if get_full_name_for_node(original_node.func) in ("asyncio.run", "anyio.run"):
            return self._run_in_loop(original_node, updated_node)
        if isinstance(original_node.func, cst.Attribute) and self._facts.is_server(original_node.func.value):
            return self._of_server(original_node, updated_node, original_node.func.attr.value, say)
        return updated_node

    def _of_server(self, original: cst.Call, updated: cst.Call, verb: str, say: calls.Say) -> cst.BaseExpression:
        name = get_full_name_for_node(original.func.value) if isinstance(original.func, cst.Attribute) else None
        if verb in ITEM_OPTIONS:
            return calls.item(updated, verb, say)
        if verb in ("run", "run_async", "run_stdio_async", "run_http_async", "run_streamable_http_async"):
            changed = calls.run(updated, self._facts.addresses.get(name or "", {}), say)
            return calls.renamed_verb(changed, "run", changed.args)
        if verb in ("mount", "import_server"):
            return calls.mount(updated, say)
        if verb in APPS:
            if original.args:
                say(f"the options of {verb} are left out: see server.asgi(…)")
            args = [calls.keyword("legacy_sse", cst.Name("True"))] if APPS[verb] else []
            return calls.renamed_verb(updated, "asgi", args)
        return updated

    def _run_in_loop(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """`asyncio.run(mcp.run_async())` → `mcp.run()`."""
        if not original.args:
            return updated
        run = original.args[0].value
        used = run.func if isinstance(run, cst.Call) else run  # anyio is given the function itself
        if isinstance(used, cst.Attribute) and self._facts.is_server(used.value) and used.attr.value.startswith("run"):
            made = updated.args[0].value
            return made if isinstance(run, cst.Call) else cst.Call(cst.Attribute(used.value, cst.Name("run")))
        if (server := self._low_level.served_by(get_full_name_for_node(used))) is not None:
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
                self._say(original_node, "server.run() blocks: call it outside of an event loop")
            return made
        return updated_node

    def _of_context(self, call: cst.Call, made: cst.Call, verb: str) -> cst.BaseExpression | None:
        """A verb of the context: what is not awaited here, or has another name."""
        if verb == "log" and made.args:
            level = calls.option(made.args, "level") or made.args[0].value
            known = level.evaluated_value if isinstance(level, cst.SimpleString) else None
            rest = [arg for arg in made.args if arg.value is not level]
            return self._logged(call, made, str(known), rest) if known in LEVELS else None
        if verb in LEVELS:
            return self._logged(call, made, verb, made.args)
        if verb == "report_progress":
            return calls.renamed_verb(made, "progress", calls.progress(made.args))
        if verb == "list_roots":
            return cst.Await(calls.renamed_verb(made, "roots", []))
        if verb == "sample":
            args = [
                arg.with_changes(keyword=cst.Name("system"))
                if arg.keyword is not None and arg.keyword.value == "system_prompt"
                else arg
                for arg in made.args
            ]
            return cst.Await(made.with_changes(args=args))
        return None

    def _logged(self, call: cst.Call, made: cst.Call, level: str, args: Sequence[cst.Arg]) -> cst.Call:
        kept = [arg for arg in args if arg.keyword is None or arg.keyword.value in ("message", "data")][:1]
        if len(kept) < len(args):
            self._say(call, "only the text of a log message is kept; fields are ctx.log.info(text, key=value)")
        assert isinstance(made.func, cst.Attribute)
        log = cst.Attribute(cst.Attribute(made.func.value, cst.Name("log")), cst.Name(level))
        return made.with_changes(func=log, args=[cst.Arg(kept[0].value)] if kept else [])

    # -- functions ---------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._bound[node.name.value] = self._line(node)
        self._within.append(self._declared(node) == "tool")

    def visit_Raise(self, node: cst.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
        name = get_full_name_for_node(raised) if raised is not None else None
        if any(self._within[-1:]) and name is not None and self._facts.called(raised or node) not in SHOWN:
            self._say(node, f"models do not read the text of {name} here: raise ToolError for what they should read")

    def _declared(self, node: cst.FunctionDef) -> str | None:
        """Whether a function is a tool, a resource or a prompt, by its decorators."""
        for decorator in node.decorators:
            used = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
            if isinstance(used, cst.Attribute) and self._facts.is_server(used.value):
                return used.attr.value if used.attr.value in ITEM_OPTIONS else None
        return None

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        self._within.pop()
        if (replaced := self._low_level.function(original_node, updated_node)) is not None:
            return replaced
        kind = self._declared(original_node)
        parameters = updated_node.params
        changed = [self._parameter(p, kind) for p in parameters.params]
        keywords = [self._parameter(p, kind) for p in parameters.kwonly_params]
        return updated_node.with_changes(params=parameters.with_changes(params=changed, kwonly_params=keywords))

    def _parameter(self, parameter: cst.Param, kind: str | None) -> cst.Param:
        annotation = parameter.annotation
        if annotation is None:
            if kind is None or parameter.name.value in ("self", "cls"):
                return parameter
            name = _type_of(parameter.default) or (self._imports.need_typing("Any") if kind == "tool" else "str")
            return parameter.with_changes(annotation=cst.Annotation(cst.Name(name)), equal=_spaced(parameter))
        if is_context(annotation.annotation, self._facts) or _is_our_context(annotation.annotation):
            self._imports.need("Context")
            return parameter.with_changes(annotation=annotation.with_changes(annotation=cst.Name("Context")))
        default = parameter.default
        if isinstance(default, cst.Call) and get_full_name_for_node(default.func) == "Depends":
            wrapped = cst.Subscript(
                cst.Name(self._imports.need_typing("Annotated")),
                [
                    cst.SubscriptElement(cst.Index(annotation.annotation), comma=_COMMA),
                    cst.SubscriptElement(cst.Index(default)),
                ],
            )
            return parameter.with_changes(annotation=cst.Annotation(wrapped), default=None, equal=_NONE)
        return parameter

    # -- the whole ---------------------------------------------------------------------------------------

    def visit_Module(self, node: cst.Module) -> None:
        self._low_level.read(node)
        for line, text in ((self._line(n), text) for n, text in self._low_level.problems):
            self.notes.append(Note(line, text))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        made = self._imports.replaced(original_node, updated_node)
        for node, text in self._imports.problems:
            self._say(node, text)
        for use in uses_of(made):
            if use.name in self._low_level.mains:
                self._say(use.node, f"{use.name} is left out: call server.run()")
        for name in self._imports.needed & self._bound.keys():
            self.notes.append(Note(self._bound[name], f"{name} is also a name of defserve, used here: rename this one"))
        return made


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
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


def _spaced(parameter: cst.Param) -> Any:
    if parameter.default is None:
        return _NONE
    return cst.AssignEqual(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
