"""The way in: programs in, the rewritten programs and a report of each out. Here is what needs more than one function.

That is what one file of a project knows from another, which functions need no event loop any more, and servers of the
SDK's low level. Importing this raises UsageError if libcst is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from defserve.errors import UsageError

try:
    import libcst as cst
except ImportError:
    raise UsageError("migrate needs libcst, which is not installed", fix='pip install "defserve[dev]"') from None
from libcst.helpers import get_full_name_for_node
from libcst.metadata import MetadataWrapper, PositionProvider

from defserve.tooling.migrate.calls import find_plain_functions, find_registered_names, format_node, is_none
from defserve.tooling.migrate.name_tables import (
    CLIENT_CONTENT,
    FOREIGN_CLIENTS,
    FOREIGN_PACKAGES,
    FOREIGN_SERVER_CLASSES,
    LOW_LEVEL_HINT,
    LOW_LEVEL_HINTS,
    LOW_LEVEL_LISTS,
    LOW_LEVEL_TOOL_OPTIONS,
    MigrationNote,
)
from defserve.tooling.migrate.program import (
    ProgramFacts,
    RequiredImports,
    ServerClasses,
    collect_program_facts,
    find_comments_above,
    find_name_uses,
    find_nodes,
    find_scopes,
    get_target,
    is_foreign_module,
    is_valid_python,
    list_bases,
    list_children,
    unquote_annotations,
    walk,
)
from defserve.tooling.migrate.rewriting import ProgramRewriter


class Migration(NamedTuple):
    """The program as it is now, and what is left to do by hand."""

    text: str
    notes: list[MigrationNote]


def migrate(source: str, name: str = "server") -> Migration:
    """Rewrite a server of FastMCP or the official SDK. `name` is for one that has none.

    Raises UsageError if the text is no Python.
    """
    path = Path(f"{name}.py")
    migration = migrate_files({path: source})[path]
    if any(note.text == INVALID_PYTHON_PROBLEM for note in migration.notes):
        raise UsageError(f"{path}:{migration.notes[0].line}: {INVALID_PYTHON_PROBLEM}", fix=INVALID_PYTHON_FIX)
    return migration


OnProgress = Callable[[int, int, Path], None]
"""Is told how many steps are done, of how many, and the file of the next one."""


def migrate_files(sources: Mapping[Path, str], on_progress: OnProgress | None = None) -> dict[Path, Migration]:
    """Rewrite the files of one project. A file may use a server that another one makes.

    A file that is no Python stays as it is, and has a note.
    """
    done: dict[Path, Migration] = {}
    files: dict[Path, SourceFile] = {}
    steps = 2 * len(sources)
    for step, (path, source) in enumerate(sources.items()):
        if on_progress is not None:
            on_progress(step, steps, path)
        try:
            files[path] = _read_file(path, source)
        except cst.ParserSyntaxError as error:
            done[path] = Migration(source, [MigrationNote(error.raw_line, INVALID_PYTHON_PROBLEM)])
        except RecursionError:
            problem = "it is nested too deeply to be read: migrate this file by hand"
            done[path] = Migration(source, [MigrationNote(1, problem)])
    spread_server_facts(files)
    spread_return_facts(files)
    mark_low_level_mains(files)
    for path, file in files.items():
        if "async def" in file.text and file.facts.servers:
            elsewhere = [other.text for each, other in files.items() if each != path]
            file.facts.plain |= find_plain_functions(file.module, file.facts.servers, elsewhere)
        for name, kind in find_registered_names(file.module, file.facts.servers).items() if file.facts.servers else ():
            _mark_registered(name, kind, file, files.values())
    left: set[Path] = set()
    for step, (path, file) in enumerate(files.items(), len(sources)):
        if on_progress is not None:
            on_progress(step, steps, path)
        done[path], is_whole = _migrate_file(file, path)
        if not is_whole:
            left.add(path)
    if left and not any(file.facts.servers for file in files.values()):
        # Half of a server of the low level would be none at all: it could not send what is ours.
        for path in files.keys() - left:
            if done[path].text != files[path].text:
                done[path] = Migration(files[path].text, [MigrationNote(1, _PART_OF_LOW_LEVEL)])
    return {path: done[path] for path in sources}


def _read_file(path: Path, source: str) -> SourceFile:
    module = cst.parse_module(source)
    if not any(name in source for name in FOREIGN_PACKAGES):
        return SourceFile(source, module, collect_program_facts(module))
    facts = collect_program_facts(module)
    if facts.names:
        unquoted = unquote_annotations(module, facts)
        if unquoted is not module:
            module, facts = unquoted, collect_program_facts(unquoted)
    names = set(facts.names.values())
    if names & FOREIGN_CLIENTS and not names & FOREIGN_SERVER_CLASSES:
        facts.left = CLIENT_CONTENT
    facts.is_package = path.name == "__init__.py"
    return SourceFile(source, module, facts)


def _mark_registered(name: str, kind: str, file: SourceFile, files: Iterable[SourceFile]) -> None:
    """The function of that name in the file that registers it, or in another one; if there are two, it is neither."""
    for candidates in ((file,), files):
        functions = [(each, node) for each in candidates for node in each.facts.functions.get(name, ())]
        if functions:
            if len(functions) == 1:
                functions[0][0].facts.registered[functions[0][1]] = kind
            return


def _migrate_file(file: SourceFile, path: Path) -> tuple[Migration, bool]:
    """A file, rewritten; and False if a server of the low level in it is left as it was."""
    facts, source = file.facts, file.text
    if not (
        facts.names or facts.modules or facts.servers or facts.server_classes or facts.registered or facts.plain
        or facts.low_level or facts.low_level_problems
    ):  # fmt: skip
        return Migration(source, [MigrationNote(1, NOTHING_TO_MIGRATE)]), True
    wrapper = MetadataWrapper(file.module, unsafe_skip_copy=True)
    imports = RequiredImports(facts)
    low_level = LowLevelServers(facts, imports)
    rewriting = ProgramRewriter(facts, path.stem, imports, low_level)
    text = wrapper.visit(rewriting).code
    if low_level.problems:
        lines = wrapper.resolve(PositionProvider)
        return Migration(
            source, sorted({MigrationNote(lines[node].start.line, text) for node, text in low_level.problems})
        ), False
    if is_valid_python(source) and not is_valid_python(text):
        problem = "rewritten, it would be no valid Python: migrate this file by hand"
        return Migration(source, [MigrationNote(1, problem)]), True
    return Migration(text, sorted(set(rewriting.notes))), True


NOTHING_TO_MIGRATE = "nothing of FastMCP or the official SDK is imported here"
INVALID_PYTHON_PROBLEM = "this is not valid Python"
INVALID_PYTHON_FIX = "correct the syntax error, then migrate again"
_PART_OF_LOW_LEVEL = "left as it is, like the low-level server of this project: migrate them together"


# -- What one file of a project knows from another: a server that it imports, or that its function is called with.


class SourceFile(NamedTuple):
    """One file of a project, read."""

    text: str
    module: cst.Module
    facts: ProgramFacts


def spread_server_facts(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts of each file which of its names are servers of other files, also of the low level."""
    _spread_server_classes(files)
    while True:
        known = sum(len(file.facts.servers) for file in files.values())
        given: dict[str, set[int | str]] = {}
        makers = {name for file in files.values() for name in file.facts.makers}
        facts = [file.facts for file in files.values()]
        known_names = {name for each in facts for name in (*each.servers, *each.low_level, *each.server_classes)}
        names = {name.rpartition(".")[2] for name in known_names} | makers
        for path, file in files.items():
            if any(name in file.text for name in names):
                walk(file.module, _Imported(path, files, file.facts))
                walk(file.module, _GivenServers(file.facts, given, makers))
        for file in files.values():
            if any(f"def {name}(" in file.text or f"class {name}" in file.text for name in given):
                walk(file.module, _ReceivedServers(file.facts, given))
        if known == sum(len(file.facts.servers) for file in files.values()):
            return


def _spread_server_classes(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts of each file the subclasses of servers that it imports: it may make one, or extend one."""
    known = 0
    while known != (count := sum(len(file.facts.server_classes) for file in files.values())):
        known = count
        names = {name.rpartition(".")[2] for file in files.values() for name in file.facts.server_classes}
        for path, file in files.items():
            if any(name in file.text for name in names):
                walk(file.module, _Imported(path, files, file.facts))
                walk(file.module, ServerClasses(file.facts))


def spread_return_facts(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts of each file what functions of other files return."""
    everywhere: dict[str, list[cst.BaseExpression]] = {}
    for file in files.values():
        for name, returned in file.facts.returns.items():
            everywhere.setdefault(name, []).extend(returned)
    for file in files.values():
        file.facts.returns = {**everywhere, **file.facts.returns}


class _Imported:
    """Finds `from .app import mcp`, `from .app import Shop`, `from shop import app` and `import shop.app`."""

    def __init__(self, path: Path, files: Mapping[Path, SourceFile], facts: ProgramFacts) -> None:
        self._path, self._files, self._facts = path, files, facts

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        dotted = get_full_name_for_node(node.module) if node.module is not None else ""
        if dotted is None or (is_foreign_module(dotted) and not node.relative):
            return
        source = self._find_file(dotted, len(node.relative))
        if isinstance(node.names, cst.ImportStar):
            if source is not None:
                self._facts.servers |= source.facts.servers
                self._facts.server_classes |= source.facts.server_classes
            return
        for alias in node.names:
            name, local = alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name
            if source is not None and name in source.facts.servers:
                self._facts.servers.add(local)
            if source is not None and name in source.facts.low_level:
                self._facts.low_level.add(local)
            if source is not None and name in source.facts.server_classes:
                self._facts.server_classes[local] = source.facts.server_classes[name]
            self._add_members(f"{dotted}.{name}".strip("."), len(node.relative), local)

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = alias.evaluated_name
            if not is_foreign_module(name):
                self._add_members(name, 0, alias.evaluated_alias or name)

    def _add_members(self, dotted: str, level: int, local: str) -> None:
        """The servers of a module that is imported as a whole, and its classes of servers."""
        if (source := self._find_file(dotted, level)) is not None:
            self._facts.servers |= {f"{local}.{name}" for name in source.facts.servers if "." not in name}
            classes = source.facts.server_classes
            self._facts.server_classes |= {f"{local}.{name}": own for name, own in classes.items() if "." not in name}

    def _find_file(self, dotted: str, level: int) -> SourceFile | None:
        parts = tuple(part for part in dotted.split(".") if part)
        if level:
            start = self._path.parents[min(level, len(self._path.parents)) - 1]
            places = [start.joinpath(*parts)]
        else:
            # Where the project begins is not known: the last folders of a file's path are what is imported.
            stems = ((path.parent if path.name == "__init__.py" else path.with_suffix("")) for path in self._files)
            places = [stem for stem in stems if parts and stem.parts[-len(parts) :] == parts]
        paths = [path for place in places for path in (place / "__init__.py", place.parent / f"{place.name}.py")]
        return next((self._files[path] for path in paths if path in self._files and path != self._path), None)


class _GivenServers:
    """Finds `register(mcp)`, `self.mcp = mcp`, and `mcp = make_server()`.

    `given`: the name of a function → the positions and keywords where it gets a server.
    """

    def __init__(self, facts: ProgramFacts, given: dict[str, set[int | str]], makers: set[str]) -> None:
        self._facts, self._given, self._makers = facts, given, makers

    def visit_Call(self, node: cst.Call) -> None:
        name = (get_full_name_for_node(node.func) or "").rpartition(".")[2]
        for place, arg in enumerate(node.args):
            if name and not arg.star and self._facts.is_server(arg.value):
                self._given.setdefault(name, set()).add(arg.keyword.value if arg.keyword is not None else place)

    def visit_Assign(self, node: cst.Assign) -> None:
        called = get_full_name_for_node(node.value.func) or "" if isinstance(node.value, cst.Call) else ""
        is_made = called in self._facts.server_classes or called.rpartition(".")[2] in self._makers
        if is_made or self._facts.is_server(node.value):
            names = (get_full_name_for_node(target.target) for target in node.targets)
            self._facts.servers |= {name for name in names if name is not None}


class _ReceivedServers:
    """Finds the parameters of functions, and of classes that are made, which get a server."""

    def __init__(self, facts: ProgramFacts, given: Mapping[str, set[int | str]]) -> None:
        self._facts, self._given = facts, given
        self._classes: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        name = node.name.value
        called = self._classes[-1] if name == "__init__" and self._classes else name
        places = self._given.get(called, set())
        parameters = [*node.params.posonly_params, *node.params.params]
        if parameters and parameters[0].name.value in ("self", "cls"):
            del parameters[0]
        for place, parameter in enumerate([*parameters, *node.params.kwonly_params]):
            received = parameter.name.value
            if received in places or (place in places and place < len(parameters)):
                self._facts.servers.add(received)


# -- Functions that serve a server of the low level. They become plain ones: ours starts its own loop.


def mark_low_level_mains(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts what serves on stdio: the functions, the parts of them that go, and what runs them."""
    mains: dict[str, list[cst.FunctionDef]] = {}
    for file in files.values():
        if "stdio_server" not in file.text:
            continue
        for function in find_scopes(file.module):
            if function.asynchronous is not None and (block := _find_stdio_block(function)) is not None:
                _mark_stdio_block(file.facts, function, block)
                mains.setdefault(function.name.value, []).append(function)
    known = -1
    while known != (known := sum(map(len, mains.values()))):
        for file in files.values():
            if any(name in file.text for name in mains):
                _mark_callers(file, mains)
    for file in files.values():
        if any(name in file.text for name in mains):
            _check_mains(file, mains)


def _find_stdio_block(function: cst.FunctionDef) -> cst.With | None:
    """`async with stdio_server() as (read, write):`, with `await server.run(read, write, …)` in it."""
    for block in _find_own_nodes(function, cst.With):
        calls = [item.item for item in block.items if isinstance(item.item, cst.Call)]
        if len(block.items) == 1 and calls and format_node(calls[0].func).rpartition(".")[2] == "stdio_server":
            return block if _find_low_level_run(block) is not None else None
    return None


def _find_low_level_run(block: cst.With) -> cst.Await | None:
    for awaited in _find_own_nodes(block, cst.Await):
        call = awaited.expression
        is_run = isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "run"
        if is_run and len(cst.ensure_type(call, cst.Call).args) > 1:
            return awaited
    return None


_T = TypeVar("_T", bound=cst.CSTNode)


def _find_own_nodes(node: cst.CSTNode, kind: type[_T]) -> list[_T]:
    """The nodes of a kind in a function, without those of functions that are defined in it."""
    found: list[_T] = []
    waiting = list_children(node)[::-1]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            found.append(each)
        if not isinstance(each, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            waiting += list_children(each)[::-1]
    return found


def _mark_stdio_block(facts: ProgramFacts, function: cst.FunctionDef, block: cst.With) -> None:
    run = _find_low_level_run(block)
    assert run is not None
    facts.plain |= {function, block, run}
    facts.low_level_runs.add(run)
    names = {node.value for node in find_nodes(run, cst.Name)}
    for line in _find_own_nodes(function, cst.SimpleStatementLine):
        value = line.body[0].value if isinstance(line.body[0], cst.Assign | cst.AnnAssign) else None
        made = format_node(value.func).rpartition(".")[2] if isinstance(value, cst.Call) else ""
        if made in ("create_initialization_options", "InitializationOptions") and get_target(line) in names:
            facts.plain.add(line)
    for arg in find_nodes(function, cst.Arg):
        if arg.keyword is not None and arg.keyword.value == "server_version":
            facts.left_versions.append(arg)


def _mark_callers(file: SourceFile, mains: dict[str, list[cst.FunctionDef]]) -> None:
    """Mark `asyncio.run(main())`, and functions that only await such a function."""
    for call in find_nodes(file.module, cst.Call):
        called = get_full_name_for_node(call.func) or ""
        is_loop = called in ("asyncio.run", "anyio.run") or called.endswith("run_until_complete")
        if not is_loop and isinstance(call.func, cst.Attribute):
            is_loop = call.func.attr.value == "run_until_complete"
        if is_loop and call.args and _is_main(call.args[0].value, file, mains):
            file.facts.plain.add(call)
    for function in find_scopes(file.module):
        if function.asynchronous is None or function in file.facts.plain:
            continue
        awaits = [each for each in _find_own_nodes(function, cst.Await) if _is_main(each.expression, file, mains)]
        if awaits:
            file.facts.plain |= {function, *awaits}
            mains.setdefault(function.name.value, []).append(function)


def _is_main(node: cst.BaseExpression, file: SourceFile, mains: Mapping[str, list[cst.FunctionDef]]) -> bool:
    """Whether it is `main()` or `main`, of this file or of another one."""
    function = node.func if isinstance(node, cst.Call) else node
    name = format_node(function).rpartition(".")[2]
    if isinstance(function, cst.Name) and (own := file.facts.functions.get(name)):
        return any(each in mains.get(name, ()) for each in own)
    return name in mains and isinstance(function, cst.Name | cst.Attribute)


def _check_mains(file: SourceFile, mains: Mapping[str, list[cst.FunctionDef]]) -> None:
    """Note what a function awaits beside serving: it would need a loop. And where it runs beside other things."""
    plain, problems = file.facts.plain, file.facts.low_level_problems
    run = {node for each in plain if isinstance(each, cst.Call | cst.Await) for node in list_children(each)}
    run |= {arg.value for arg in run if isinstance(arg, cst.Arg)}
    for call in find_nodes(file.module, cst.Call):
        if call not in run and _is_main(call, file, mains) and call not in plain and isinstance(call.func, cst.Name):
            problems.append((call, f"{format_node(call.func)} starts a loop of its own: run it by itself"))
    for function in (each for each in find_scopes(file.module) if each in plain):
        if function not in mains.get(function.name.value, ()):
            continue
        waits: list[cst.CSTNode] = [*_find_own_nodes(function, cst.Await), *_find_own_nodes(function, cst.Yield)]
        waits += [block for block in _find_own_nodes(function, cst.With) if block.asynchronous is not None]
        waits += [block for block in _find_own_nodes(function, cst.For) if block.asynchronous is not None]
        name = function.name.value
        for wait in waits:
            if wait not in plain:
                text = f"{name} waits for this beside serving: do it in Server(lifespan=…), and migrate again"
                problems.append((wait, text))
        for block in (each for each in _find_own_nodes(function, cst.With) if each in plain):
            target = block.items[0].asname
            streams = {each.value for each in find_nodes(target.name, cst.Name)} if target is not None else set[str]()
            run = _find_low_level_run(block)
            inside = set(find_nodes(run, cst.Name)) if run is not None else set[cst.Name]()
            for used in find_nodes(block.body, cst.Name):
                if used.value in streams and used not in inside:
                    problems.append((used, "the streams of stdio are used here: server.run() opens them itself"))


# -- Servers of the SDK's low level: a function that lists the tools, and one that is called for all of them.


class LowLevelServers:
    """What becomes of `@server.list_tools()` and `@server.call_tool()`, in the module or inside a function.

    If the list is written out, each of its tools becomes a function that calls the one for all. If not, the list stays,
    as a plain function that returns the options of each tool, and a loop registers them.
    """

    def __init__(self, facts: ProgramFacts, imports: RequiredImports) -> None:
        self._facts, self._imports = facts, imports
        self._is_written: dict[cst.FunctionDef, bool] = {}
        """A function that lists tools → whether its list is written out."""
        self._registering: dict[cst.FunctionDef, _Handlers] = {}
        """The later of the two functions: behind it the tools are registered."""
        self._tools: dict[cst.Call, cst.Call] = {}
        """Each `Tool(…)` → the same, rewritten."""
        self._names: set[str] = set()
        self._gone: set[cst.FunctionDef] = set()
        """Functions that list nothing, and those that would get something of it."""
        self.handlers: set[cst.FunctionDef] = set()
        """The functions that are called for all tools."""
        self.problems: list[tuple[cst.CSTNode, str]] = []
        self.notes: list[tuple[cst.CSTNode, str]] = []

    def read_module(self, module: cst.Module) -> None:
        """Look through the functions of a module."""
        self.problems += self._facts.low_level_problems
        if not self._facts.low_level and "LowLevelServer" not in self._facts.names.values():
            return
        self._check_shapes(module)
        self._names = {node.value for node in find_nodes(module, cst.Name)}
        scopes = find_scopes(module)
        groups: dict[tuple[cst.CSTNode | None, str], dict[str, cst.FunctionDef]] = {}
        decorators: set[cst.CSTNode] = set()
        for function, scope in scopes.items():
            for decorator in function.decorators:
                used = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
                server, _, verb = (get_full_name_for_node(used) or "").rpartition(".")
                if server in self._facts.low_level:
                    groups.setdefault((scope, server), {})[verb] = function
                    decorators.add(used)
        for node in find_nodes(module, cst.Attribute):
            verb = node.attr.value
            if get_full_name_for_node(node.value) not in self._facts.low_level or node in decorators:
                continue
            if verb in ("list_tools", "call_tool") or verb in LOW_LEVEL_HINTS:
                self.problems.append((node, f"{verb} is not a decorator here: write it as one, and migrate again"))
        for (_, server), functions in groups.items():
            self._read_handlers(module, server, functions, [*scopes])

    def _check_shapes(self, module: cst.Module) -> None:
        """Note what makes a server that can't be written here: a subclass, or one with its handlers as options."""
        for made in find_nodes(module, cst.ClassDef):
            if any(self._facts.resolve_name(base) == "LowLevelServer" for base in list_bases(made)):
                self.problems.append((made, f"{made.name.value} extends a low-level server: {LOW_LEVEL_HINT}"))
        for call in find_nodes(module, cst.Call):
            names = [arg.keyword.value for arg in call.args if arg.keyword and arg.keyword.value.startswith("on_")]
            if names and self._facts.resolve_name(call.func) == "LowLevelServer":
                self.problems.append((call, f"the server is made with {', '.join(names)}: {LOW_LEVEL_HINT}"))

    def _read_handlers(
        self, module: cst.Module, server: str, functions: dict[str, cst.FunctionDef], order: list[cst.FunctionDef]
    ) -> None:
        lists, calls = functions.pop("list_tools", None), functions.pop("call_tool", None)
        for listing, others in LOW_LEVEL_LISTS.items():
            if all(verb not in functions or _returns_nothing(functions[verb]) for verb in listing):
                self._gone |= {functions.pop(verb) for verb in (*listing, *others) if verb in functions}
        for verb, function in functions.items():
            hint = LOW_LEVEL_HINTS.get(verb, "see the page on migrating")
            self.problems.append((function, f"@{server}.{verb} is not rewritten: {hint}"))
        if lists is None or calls is None:
            if (known := lists or calls) is not None:
                missing = "the list of tools" if lists is None else "the function that is called for all tools"
                self.problems.append((known, f"{missing} is not known: {LOW_LEVEL_HINT}"))
            return
        name = lists.name.value
        defined = {function.name for function in order}
        if used := [use.node for use in find_name_uses(module) if use.name == name and use.node not in defined]:
            self.problems.append((used[0], f"{name} is also used here: it does not stay as it is. {LOW_LEVEL_HINT}"))
            return
        tools = self._find_written_tools(lists)
        self._is_written[lists] = tools is not None
        if tools is None:
            tools = self._find_made_tools(module, lists)
        self._tools |= {tool: tool for tool in tools}
        self.handlers.add(calls)
        self._registering[max(lists, calls, key=order.index)] = _Handlers(server, lists, calls, tools)

    def _find_written_tools(self, function: cst.FunctionDef) -> list[cst.Call] | None:
        """The tools of `return [Tool(…), …]`, also if the list has a name first."""
        body = [*function.body.body] if isinstance(function.body, cst.IndentedBlock) else []
        if function.get_docstring() is not None:
            del body[0]
        parts = [line.body[0] for line in body if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1]
        last = parts[-1] if parts and len(parts) == len(body) else None
        value = last.value if isinstance(last, cst.Return) else None
        if len(parts) == 2 and isinstance(value, cst.Name) and get_target(parts[0]) == value.value:
            value = cst.ensure_type(parts[0], cst.Assign if isinstance(parts[0], cst.Assign) else cst.AnnAssign).value
        elif len(parts) != 1:
            return None
        found = [element.value for element in value.elements] if isinstance(value, cst.List) else []
        tools = [each for each in found if isinstance(each, cst.Call) and self._is_tool(each)]
        return tools if len(tools) == len(found) and tools else None

    def _is_tool(self, call: cst.Call) -> bool:
        """Whether it is `Tool(name=…, …)`, with every field written out."""
        return self._facts.resolve_name(call.func) == "Tool" and all(arg.keyword is not None for arg in call.args)

    def _find_made_tools(self, module: cst.Module, function: cst.FunctionDef) -> list[cst.Call]:
        """The tools of a list that is made when the function runs, if it can be made without the SDK."""
        waits = [*find_nodes(function.body, cst.Await), *find_nodes(function.body, cst.Asynchronous)]
        if waits:
            self.problems.append((waits[0], f"the tools are only known after this: {LOW_LEVEL_HINT}"))
            return []
        uses = [use.name for use in find_name_uses(module)]
        inside = set(find_nodes(function.body, cst.Call))
        own = {use.name for use in find_name_uses(function.body)}
        for statement in module.body:
            part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else statement
            if (name := get_target(part)) in own and uses.count(name) == 2:  # TOOLS = […], for this function alone
                inside |= set(find_nodes(part, cst.Call))
        tools = [call for call in find_nodes(module, cst.Call) if self._facts.resolve_name(call.func) == "Tool"]
        if not tools:
            self.problems.append(
                (function, f"the tools are made in another file, or by another function: {LOW_LEVEL_HINT}")
            )
        for tool in tools:
            if tool not in inside or not self._is_tool(tool):
                self.problems.append((tool, f"what becomes of this tool is not known: {LOW_LEVEL_HINT}"))
        fields = {node for tool in tools for node in find_nodes(tool, cst.Attribute)}
        for node in find_nodes(function.body, cst.Attribute):
            if node.attr.value in LOW_LEVEL_TOOL_OPTIONS and node not in fields:
                self.problems.append((node, f"this may be read from a tool: {LOW_LEVEL_HINT}"))
        return tools

    @property
    def has_loop(self) -> bool:
        """Whether the tools of a server are only known when their list is made."""
        return not all(self._is_written.values())

    def replace_tool(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """A Tool as the options of one of ours, `dict(name=…, schema=…)`; another one stays."""
        if original not in self._tools:
            return updated
        options: list[cst.Arg] = []
        for arg in updated.args:
            name = arg.keyword.value if arg.keyword is not None else ""
            if name in LOW_LEVEL_TOOL_OPTIONS:
                options.append(arg.with_changes(keyword=cst.Name(LOW_LEVEL_TOOL_OPTIONS[name])))
            elif not is_none(arg.value):
                self.notes.append((original, f"the option {name}= of the tool is left out: it has no counterpart"))
        self._tools[original] = updated.with_changes(func=cst.Name("dict"), args=options)
        return self._tools[original]

    def replace_function(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel | None:
        """What becomes of a function of the low level; None for any other."""
        lines = [*updated.leading_lines, *updated.lines_after_decorators]
        plain = updated.with_changes(decorators=[], leading_lines=lines, lines_after_decorators=[])
        made: list[cst.BaseStatement] = []
        if original in self._gone:
            return cst.RemoveFromParent()
        if original in self.handlers:
            made.append(plain)
        elif original not in self._is_written:
            return None
        elif not self._is_written[original]:
            any_type = self._imports.add_standard_name("typing", "Any")
            returns = cst.Annotation(cst.parse_expression(f"list[dict[str, {any_type}]]"))
            made.append(plain.with_changes(asynchronous=None, returns=returns))
        if (handlers := self._registering.get(original)) is not None:
            if self._is_written[handlers.lists]:
                made += [self._make_wrapper(handlers, tool, self._tools[tool]) for tool in handlers.tools]
            else:
                made += self._make_loop(handlers)
        return cst.FlattenSentinel(made) if made else cst.RemoveFromParent()

    def _find_free_name(self, word: str) -> str:
        while word in self._names:
            word += "_"
        self._names.add(word)
        return word

    def _make_wrapper(self, handlers: _Handlers, tool: cst.Call, updated: cst.Call) -> cst.BaseStatement:
        """One tool: its name, description and schema, and a function that passes its arguments on."""
        name = next(arg.value for arg in updated.args if arg.keyword is not None and arg.keyword.value == "name")
        plain = name.evaluated_value if isinstance(name, cst.SimpleString) else format_node(name)
        word = self._find_free_name("_" + "".join(c if c.isalnum() else "_" for c in str(plain)))
        any_type = self._imports.add_standard_name("typing", "Any")
        wait = "await " if handlers.calls.asynchronous is not None else ""
        made = cst.parse_statement(
            f"async def {word}(**arguments: {any_type}) -> {any_type}:\n"
            f"    return {wait}{handlers.calls.name.value}({format_node(name)}, arguments)\n"
        )
        decorator = cst.Decorator(updated.with_changes(func=cst.parse_expression(f"{handlers.server}.tool")))
        lines = [cst.EmptyLine(indent=False), *find_comments_above(tool, handlers.lists)]
        return made.with_changes(decorators=[decorator], leading_lines=lines)

    def _make_loop(self, handlers: _Handlers) -> list[cst.BaseStatement]:
        """What registers tools that are only known when the list is made."""
        any_type = self._imports.add_standard_name("typing", "Any")
        adds, calls, options = (self._find_free_name(name) for name in ("_add_tool", "_call_tool", "_options"))
        wait = "await " if handlers.calls.asynchronous is not None else ""
        return [
            _make_statement(
                f"def {adds}(options: dict[str, {any_type}]) -> None:\n"
                f"    @{handlers.server}.tool(**options)\n"
                f"    async def {calls}(**arguments: {any_type}) -> {any_type}:\n"
                f'        return {wait}{handlers.calls.name.value}(options["name"], arguments)\n'
            ),
            _make_statement(f"for {options} in {handlers.lists.name.value}():\n    {adds}({options})\n"),
        ]


def _make_statement(code: str) -> cst.BaseStatement:
    """A statement with an empty line above it."""
    return cst.parse_statement(code).with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def _returns_nothing(function: cst.FunctionDef) -> bool:
    """Whether `return []` is all that it does."""
    body = [*function.body.body][1 if function.get_docstring() is not None else 0 :]
    return all(format_node(line).strip() == "return []" for line in body)


class _Handlers(NamedTuple):
    """The two functions of a server of the low level, and its tools."""

    server: str
    lists: cst.FunctionDef
    calls: cst.FunctionDef
    tools: list[cst.Call]
