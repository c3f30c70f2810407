"""The syntax tree of judged code: one iterative walk in source order, its scopes, and what its names stand for.

The walk gives nodes with their scopes and blocks, and names with their bindings.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from defserve.guard.code import allowed_names

BlockPath = tuple[int, ...]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_BINDERS = frozenset(
    {
        ast.Name,
        ast.arg,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.ExceptHandler,
        ast.MatchAs,
        ast.MatchStar,
        ast.MatchMapping,
        ast.Import,
        ast.ImportFrom,
    }
)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class TreeTooDeep(ValueError):
    """The tree is deeper than the walk may go."""


@dataclass(slots=True, eq=False)
class NodeVisit:
    """A node and its place in the tree."""

    node: ast.AST
    parent: NodeVisit | None
    scope: NameScope
    path: BlockPath
    """The blocks around it, outermost first."""
    depth: int
    index: int = 0
    """Its index in the parent's list."""


@dataclass(slots=True, eq=False)
class _Mentions:
    first: NodeVisit
    paths: list[BlockPath]
    deleted: bool = False


class TreeWalk:
    """All visits of a module, in source order, and its scopes. Raises TreeTooDeep."""

    def __init__(self, tree: ast.Module, max_depth: int) -> None:
        self.module = NameScope("module")
        self.visits: list[NodeVisit] = []
        self.scopes = [self.module]
        self.imported: set[str] = set()
        """Every module an `import` names, and every package above one."""
        self._blocks = 0
        self._max_depth = max_depth
        self._mentions: dict[str, _Mentions] = {}
        self._definitions: dict[str, NodeVisit] = {}
        self._counts: dict[int, int] = {}
        self._loaded: dict[int, set[str]] = {}
        stack = [NodeVisit(tree, None, self.module, (), 0)]
        while stack:
            visit = stack.pop()
            self.visits.append(visit)
            stack.extend(reversed(self._enter(visit)))
        # A `global` statement may follow the first use of the name, and a binding the use.
        for visit in self.visits:
            _declare(visit)
        for visit in self.visits:
            if type(visit.node) in _BINDERS:
                self._bind(visit)
        for visit in self.visits:
            if isinstance(visit.node, ast.Name):
                self._mention(visit, visit.node)
        self._settled: dict[str, bool] = {}

    def is_settled(self, name: str) -> bool:
        """Whether a module-level name certainly holds the module's own value wherever it is used.

        It does if its first mention is a plain assignment or definition and every other one lies in the same block or
        deeper.
        """
        if name not in self._settled:
            self._settled[name] = self._settles(name)
        return self._settled[name]

    def _settles(self, name: str) -> bool:
        if (mentions := self._mentions.get(name)) is None:
            return True
        home = self._definition(name, mentions.first)
        return home is not None and not mentions.deleted and all(p[: len(home)] == home for p in mentions.paths)

    def _definition(self, name: str, first: NodeVisit) -> BlockPath | None:
        """The block of the statement that surely defines the name before its first mention."""
        node, parent = first.node, first.parent
        while parent is not None and isinstance(parent.node, (ast.Tuple, ast.List)):
            parent = parent.parent
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and parent is not None:
            plain = isinstance(parent.node, ast.Assign) or (
                isinstance(parent.node, ast.AnnAssign) and parent.node.value is not None
            )
            if plain and not self._loads(parent.node, name):
                return first.path
        definition = self._definitions.get(name)
        if definition is not None and _before(definition.node, first.node):
            return definition.path
        return None

    def _loads(self, tree: ast.AST, name: str) -> bool:
        if id(tree) not in self._loaded:
            names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
            self._loaded[id(tree)] = {node.id for node in names}
        return name in self._loaded[id(tree)]

    def _mention(self, visit: NodeVisit, node: ast.Name) -> None:
        if visit.scope.find_binding_scope(node.id) not in (None, self.module):
            return
        if (known := self._mentions.get(node.id)) is None:
            known = self._mentions[node.id] = _Mentions(visit, [])
        known.paths.append(visit.path)
        known.deleted |= isinstance(node.ctx, ast.Del)

    def _enter(self, visit: NodeVisit) -> list[NodeVisit]:
        """The visits of a node's children, in source order, each in its scope."""
        if visit.depth > self._max_depth:
            raise TreeTooDeep
        node = visit.node
        inside = _own_parts(node)
        inner = visit.scope
        if inside:
            inner = NameScope(_kind(node), visit.scope)
            self.scopes.append(inner)
        outside = _outer_parts(node)
        children: list[NodeVisit] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if not isinstance(value, (ast.AST, list)):
                continue
            scope = inner if name in inside else visit.scope
            if name in outside and scope.parent is not None:
                scope = scope.parent
            path = visit.path
            if isinstance(value, ast.AST):
                if isinstance(value, _SIGNS):
                    continue
                children.append(NodeVisit(value, visit, scope, path, visit.depth + 1))
                continue
            if name in _BLOCKS:
                self._blocks += 1
                path = (*path, self._blocks)
            children += [
                NodeVisit(item, visit, scope, path, visit.depth + 1, index)
                for index, item in enumerate(cast(list[object], value))
                if isinstance(item, ast.AST) and not isinstance(item, _SIGNS)
            ]
        if isinstance(node, ast.comprehension):
            self._rescope_first_iterable(visit, children)
        return children

    def _rescope_first_iterable(self, visit: NodeVisit, children: list[NodeVisit]) -> None:
        # The first iterable of a comprehension is evaluated outside it: `[eval for eval in [eval]]`.
        owner = visit.parent.node if visit.parent else None
        if isinstance(owner, COMPREHENSIONS) and owner.generators[0] is visit.node and visit.scope.parent:
            for child in children:
                if child.node is getattr(visit.node, "iter", None):
                    child.scope = visit.scope.parent

    def _bind(self, visit: NodeVisit) -> None:
        node, scope = visit.node, visit.scope
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                self._bind_store(visit, name)
            case ast.arg(arg=name):
                scope.add_binding(name, NameBinding())
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._define(name, visit)
                scope.add_binding(name, NameBinding())
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.add_binding(name, NameBinding())
            case ast.MatchMapping(rest=str(name)):
                scope.add_binding(name, NameBinding())
            case ast.Import(names=names):
                for alias in names:
                    self._import(alias.name)
                    bound = alias.asname or alias.name.partition(".")[0]
                    scope.add_binding(bound, NameBinding(module=alias.name if alias.asname else bound))
            case ast.ImportFrom(names=names, module=module):
                for alias in names:
                    self._define(alias.asname or alias.name, visit)
                    scope.add_binding(alias.asname or alias.name, NameBinding(member=f"{module}.{alias.name}"))
            case _:
                pass

    def _import(self, module: str) -> None:
        while module and module not in self.imported:
            self.imported.add(module)
            module = module.rpartition(".")[0]

    def _define(self, name: str, visit: NodeVisit) -> None:
        if visit.scope is self.module:
            self._definitions.setdefault(name, visit)

    def _bind_store(self, visit: NodeVisit, name: str) -> None:
        parent = visit.parent.node if visit.parent else None
        scope = visit.scope
        value: ast.expr | None = None
        each_of: ast.expr | None = None
        match parent:
            case ast.AnnAssign(value=None):
                return
            case ast.Assign() | ast.AnnAssign() | ast.Tuple() | ast.List():
                value = self.find_assigned_value(visit)
            case ast.For(iter=each_of):
                pass
            case ast.AugAssign():
                # `n += 1` gives a new object or the same one, so it says nothing about who made it.
                value = ast.Constant(None)
            case ast.NamedExpr(value=value):
                while scope.kind == "comprehension" and scope.parent is not None:
                    scope = scope.parent
            case _:
                pass
        scope.add_binding(name, NameBinding(value=value, each_of=each_of))

    def find_assigned_value(self, target: NodeVisit) -> ast.expr | None:
        """What a plain assignment gives this target: in `a, b = [], {}`, each its own. None if that is unknown."""
        places: list[tuple[int, int]] = []
        visit = target
        while visit.parent is not None and isinstance(visit.parent.node, (ast.Tuple, ast.List)):
            places.append((visit.index, self._places(visit.parent.node)))
            visit = visit.parent
        statement = visit.parent.node if visit.parent else None
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        for index, count in reversed(places):
            if not isinstance(value, (ast.Tuple, ast.List)) or not 0 < count == self._places(value):
                return None
            value = value.elts[index]
        return value

    def _places(self, items: ast.Tuple | ast.List) -> int:
        """How many there are, or 0 if a star leaves that open."""
        if id(items) not in self._counts:
            starred = any(isinstance(item, ast.Starred) for item in items.elts)
            self._counts[id(items)] = 0 if starred else len(items.elts)
        return self._counts[id(items)]


def _declare(visit: NodeVisit) -> None:
    match visit.node:
        case ast.Global(names=names):
            visit.scope.elsewhere.update(dict.fromkeys(names, "global"))
        case ast.Nonlocal(names=names):
            visit.scope.elsewhere.update(dict.fromkeys(names, "nonlocal"))
        case _:
            pass


def _kind(node: ast.AST) -> Literal["function", "comprehension", "class"]:
    if isinstance(node, ast.ClassDef):
        return "class"
    return "comprehension" if isinstance(node, COMPREHENSIONS) else "function"


def _own_parts(node: ast.AST) -> frozenset[str]:
    """The fields of a node that live in a scope of its own; decorators, defaults and bases do not."""
    if isinstance(node, ast.ClassDef):
        return frozenset({"body"})
    if isinstance(node, FUNCTIONS):
        return frozenset({"args", "body"})
    if isinstance(node, COMPREHENSIONS):
        return frozenset({"elt", "key", "value", "generators"})
    return frozenset()


def _outer_parts(node: ast.AST) -> tuple[str, ...]:
    """The fields of a node inside a function's scope that are evaluated outside it."""
    if isinstance(node, ast.arguments):
        return ("defaults", "kw_defaults")
    return ("annotation",) if isinstance(node, ast.arg) else ()


def _before(definition: ast.AST, use: ast.AST) -> bool:
    at = (getattr(definition, "end_lineno", 0), getattr(definition, "end_col_offset", 0))
    return at < (getattr(use, "lineno", 0), getattr(use, "col_offset", 0))


# -- Python's scopes: where a name is bound, and which binding a use of it sees.
#
# A name bound in a function is never the built-in or the host's: function scopes `shield`. In a class or module, a name
# that is not bound yet may still mean those. So a module's own name counts only from its first mention
# (`TreeWalk.settled`).


@dataclass(slots=True, eq=False)
class NameBinding:
    """One place that gives a name a value."""

    value: ast.expr | None = None
    """The expression, if the binding is a plain assignment, alone or as one of several."""
    each_of: ast.expr | None = None
    """The iterable, if the binding is a loop."""
    module: str | None = None
    """The module, if the binding is an import."""
    member: str | None = None
    """`module.name`, if the binding is a `from` import."""


@dataclass(slots=True, eq=False)
class NameScope:
    kind: Literal["module", "function", "comprehension", "class"]
    parent: NameScope | None = None
    bindings: dict[str, list[NameBinding]] = field(default_factory=dict[str, list[NameBinding]])
    elsewhere: dict[str, Literal["global", "nonlocal"]] = field(
        default_factory=dict[str, Literal["global", "nonlocal"]]
    )

    imports: dict[str, NameBinding] = field(default_factory=dict[str, NameBinding])
    """The names that an import binds. Whatever else binds them, they may be that import."""

    def add_binding(self, name: str, binding: NameBinding) -> None:
        home = self.find_assignment_scope(name)
        home.bindings.setdefault(name, []).append(binding)
        if binding.module is not None or binding.member is not None:
            home.imports.setdefault(name, binding)

    def find_assignment_scope(self, name: str) -> NameScope:
        """The scope that an assignment to the name in this one changes."""
        if (where := self.elsewhere.get(name)) is None:
            return self
        scope = self
        while scope.parent is not None:
            scope = scope.parent
            if where == "nonlocal" and scope.kind == "function" and name in scope.bindings:
                return scope
        return scope

    @property
    def is_hiding_builtins(self) -> bool:
        """Whether a name bound here can never turn out to be the built-in."""
        return self.kind in ("function", "comprehension")

    def find_binding_scope(self, name: str) -> NameScope | None:
        """The scope whose binding a use of the name here sees, or None: a built-in or the host's."""
        if name in self.elsewhere:
            home = self.find_assignment_scope(name)
            return home if name in home.bindings else None
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.parent
        return None


# -- What a name in judged code stands for: a built-in, an imported module, a member of one. Aliases are resolved.


class ImportReference(NamedTuple):
    """What a name or attribute chain stands for, import aliases resolved."""

    dotted: str
    is_module: bool


class ImportReferences:
    """The references of one walked tree, each resolved once."""

    def __init__(self, walk: TreeWalk, strict: bool) -> None:
        self.walk, self.strict = walk, strict
        self._known: dict[int, ImportReference | None] = {}

    def resolve_expression(self, node: ast.expr, scope: NameScope) -> ImportReference | None:
        """What an expression refers to, if it is an imported module or a member of one."""
        chain: list[ast.Attribute] = []
        while isinstance(node, ast.Attribute) and id(node) not in self._known:
            chain.append(node)
            node = node.value
        if isinstance(node, ast.Attribute):
            reference = self._known[id(node)]
        else:
            reference = self._find_import(node.id, scope) if isinstance(node, ast.Name) else None
        for link in reversed(chain):
            if reference is not None:
                dotted = f"{reference.dotted}.{link.attr}"
                reference = ImportReference(dotted, reference.is_module and self.is_submodule(dotted))
            self._known[id(link)] = reference
        return reference

    def _find_import(self, name: str, scope: NameScope) -> ImportReference | None:
        home = scope.find_binding_scope(name)
        binding = home.imports.get(name) if home else None
        if binding is None:
            return None
        if binding.module is not None:
            return ImportReference(binding.module, True)
        return ImportReference(binding.member or "", self.is_submodule(binding.member or ""))

    def is_submodule(self, dotted: str) -> bool:
        """Whether a dotted name is a module: one with an export table, or one that the code imports."""
        return allowed_names.find_exports(dotted, self.strict) is not None or dotted in self.walk.imported

    def is_builtin(self, name: str, scope: NameScope) -> bool:
        """Whether the name may be the built-in here."""
        if (home := scope.find_binding_scope(name)) is None:
            return True
        return not home.is_hiding_builtins and (home is not self.walk.module or not self.walk.is_settled(name))


# -- Where something stands, and what a program may do with it.


def is_in_annotation(visit: NodeVisit) -> bool:
    """Whether a node stands in the annotation of a name or of a function."""
    child, parent = visit.node, visit.parent
    while parent is not None and isinstance(child, ast.expr):
        if child in (getattr(parent.node, "annotation", None), getattr(parent.node, "returns", None)):
            return True
        child, parent = parent.node, parent.parent
    return False


def is_own_object(base: ast.expr, scope: NameScope) -> bool:
    """Whether an expression is `self`, `cls` or `other` of the method around it."""
    while scope.kind == "comprehension" and scope.parent is not None:
        scope = scope.parent
    in_method = scope.kind == "function" and scope.parent is not None and scope.parent.kind == "class"
    return in_method and isinstance(base, ast.Name) and base.id in ("self", "cls", "other")


def can_rename_fields(references: ImportReferences) -> bool:
    """Whether a program can say which attributes the fields of a class name, or gives a class fields by a metaclass.

    `asdict` reads those attributes, whatever they are called.
    """
    is_held = is_renamed = False
    bases = dict[tuple[int, str], tuple[ast.expr, NameScope]]()
    for visit in references.walk.visits:
        match visit.node:
            case ast.ClassDef():
                # Many classes may have the same base, and that name many values.
                for base in visit.node.bases:
                    home = visit.scope.find_binding_scope(base.id) if isinstance(base, ast.Name) else visit.scope
                    bases[id(home), ast.dump(base)] = base, visit.scope
            case ast.Name(id="type", ctx=ast.Load()) if not _only_asks_type(visit):
                return True
            case ast.Attribute(attr="name", ctx=ast.Store() | ast.Del(), value=base):
                is_renamed |= not is_own_object(base, visit.scope)
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="name"), *_]):
                is_renamed = True
            case ast.Name() | ast.Attribute() as node if reference := references.resolve_expression(node, visit.scope):
                is_held |= reference.dotted == "dataclasses.fields"
                is_held |= reference.dotted == "dataclasses.field" and not _makes_default(visit)
            case _:
                pass
    return (is_held and is_renamed) or any(_may_be_metaclass(base, scope, references) for base, scope in bases.values())


def _may_be_metaclass(base: ast.expr, scope: NameScope, references: ImportReferences) -> bool:
    reference = references.resolve_expression(base.func if isinstance(base, ast.Call) else base, scope)
    if reference is not None:
        return reference.dotted == "abc.ABCMeta"
    if isinstance(base, ast.Call):
        return True
    home = scope.find_binding_scope(base.id) if isinstance(base, ast.Name) else None
    values = [binding.value for binding in home.bindings[base.id]] if home and isinstance(base, ast.Name) else []
    return any(isinstance(value, ast.Call) and _may_be_metaclass(value, scope, references) for value in values)


def _only_asks_type(visit: NodeVisit) -> bool:
    """Whether `type` is called with one argument, or stands where it makes no class: in a test, or in an annotation."""
    match visit.parent.node if visit.parent else None:
        case ast.Call(func=function, args=args, keywords=keywords) if function is visit.node:
            return len(args) == 1 and not isinstance(args[0], ast.Starred) and not keywords
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass")) | ast.Compare() | ast.Subscript():
            return True
        case _:
            return is_in_annotation(visit)


def _makes_default(visit: NodeVisit) -> bool:
    """Whether a function is called for an annotated name of a class: `x: list = field(default_factory=list)`."""
    call = visit.parent
    statement = call.parent.node if call and call.parent else None
    return call is not None and isinstance(statement, ast.AnnAssign) and statement.value is call.node
