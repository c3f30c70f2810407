"""Servers of the SDK's low level, where they are simple: a list of tools, written out, and one function for all."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.facts import Facts
from defserve.tooling.migrate.imports import Imports

HINT = "write a function for each, with @server.tool(schema=…)"


class LowLevel:
    """What is known of `@server.list_tools()`, `@server.call_tool()` and the function that serves on stdio."""

    def __init__(self, facts: Facts, imports: Imports) -> None:
        self._facts, self._imports = facts, imports
        self._tools: dict[str, list[cst.Call]] = {}
        self._list: set[cst.FunctionDef] = set()
        self._call: dict[cst.FunctionDef, str] = {}
        self._mains: dict[str, str] = {}
        self.problems: list[tuple[cst.CSTNode, str]] = []

    def read(self, module: cst.Module) -> None:
        """Look through the functions of a module."""
        if not self._facts.low_level:
            return
        for statement in module.body:
            if isinstance(statement, cst.FunctionDef):
                self._look_at(statement)

    def _look_at(self, function: cst.FunctionDef) -> None:
        for decorator in function.decorators:
            used = decorator.decorator
            name = get_full_name_for_node(used.func if isinstance(used, cst.Call) else used) or ""
            server, _, verb = name.rpartition(".")
            if server not in self._facts.low_level:
                continue
            if verb == "list_tools":
                tools = self._written_out(function)
                if tools is None:
                    self.problems.append((function, f"the tools are not written out in one list: {HINT}"))
                else:
                    self._tools[server] = tools
                    self._list.add(function)
            elif verb == "call_tool":
                self._call[function] = server
            else:
                self.problems.append(
                    (function, f"@{name} has no counterpart that could be written: see docs on migrating")
                )
        text = cst.Module([]).code_for_node(function)
        main = function.name.value
        for server in self._facts.low_level:
            if f"{server}.run(" in text and "stdio_server" in text and not function.decorators:
                self._mains[main] = server
                if any(_is_more_than_serving(each, server) for each in function.body.body):
                    self.problems.append((function, f"{main} is left out: do the rest of it in a lifespan"))

    def _written_out(self, function: cst.FunctionDef) -> list[cst.Call] | None:
        body = function.body.body if isinstance(function.body, cst.IndentedBlock) else ()
        last = body[-1] if body else None
        returned = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
        if len(body) > 2 or not isinstance(returned, cst.Return) or not isinstance(returned.value, cst.List):
            return None
        found = [element.value for element in returned.value.elements]
        tools = [each for each in found if isinstance(each, cst.Call) and self._facts.called(each.func) == "Tool"]
        return tools if len(tools) == len(found) and tools else None

    @property
    def mains(self) -> set[str]:
        """The functions that serve on stdio. They are left out."""
        return set(self._mains)

    def served_by(self, function: str | None) -> str | None:
        """The server that a function serves on stdio; None for any other function."""
        return self._mains.get(function or "")

    def function(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel | None:
        """What becomes of a function of the low level; None for any other."""
        if original in self._list or original.name.value in self._mains:
            return cst.RemoveFromParent()
        if original not in self._call:
            return None
        server = self._call[original]
        made: list[cst.BaseStatement] = [updated.with_changes(decorators=[])]
        made += [self._wrapper(server, tool, updated) for tool in self._tools.get(server, ())]
        if server not in self._tools:
            self.problems.append((original, f"the list of tools is not known: {HINT}"))
        return cst.FlattenSentinel(made)

    def _wrapper(self, server: str, tool: cst.Call, function: cst.FunctionDef) -> cst.BaseStatement:
        """One tool: its name, description and schema, and a function that passes its arguments on."""
        given = {arg.keyword.value: arg.value for arg in tool.args if arg.keyword is not None}
        code = cst.Module([]).code_for_node
        name = given["name"]
        options = [f"name={code(name)}"]
        if "description" in given:
            options.append(f"description={code(given['description'])}")
        schema = given.get("inputSchema") or given.get("input_schema")
        if schema is not None:
            options.append(f"schema={code(schema)}")
        plain = name.evaluated_value if isinstance(name, cst.SimpleString) else "tool"
        word = "".join(c if c.isalnum() else "_" for c in str(plain))
        self._imports.need_typing("Any")
        wait = "await " if function.asynchronous is not None else ""
        text = (
            f"\n\n@{server}.tool({', '.join(options)})\n"
            f"async def _{word}(**arguments: Any) -> Any:\n"
            f"    return {wait}{function.name.value}({code(name)}, arguments)\n"
        )
        return cst.parse_statement(text)


def _is_more_than_serving(statement: cst.CSTNode, server: str) -> bool:
    code = cst.Module([]).code_for_node(statement).strip()
    return not code.startswith(('"', "'", "#")) and "stdio_server" not in code and f"{server}." not in code
