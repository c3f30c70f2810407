"""R4: readonly code changes only what it made itself, as far as `Ownership` can tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from defserve.guard.code.allowed_names import ARGUMENT_MUTATING_METHODS, MUTATING_METHODS, split_names
from defserve.guard.code.syntax_tree import ImportReferences, NameBinding, NameScope, NodeVisit
from defserve.guard.verdict import Violation

_SYMBOLS = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "BitOr": "|", "BitAnd": "&", "BitXor": "^"}


class ReadonlyRules:
    """The violations of R4 in one walked tree."""

    def __init__(self, references: ImportReferences) -> None:
        self.references, self.walk = references, references.walk
        self._own = Ownership(references).is_owned

    def __iter__(self) -> Iterator[Violation]:
        for visit in self.walk.visits:
            node = visit.node
            match node:
                case ast.Attribute(ctx=ast.Load()) if node.attr in MUTATING_METHODS:
                    # A module's function of that name (`heapq.merge`, `operator.add`) changes no object by itself.
                    base = self.references.resolve_expression(node.value, visit.scope)
                    if not self._own(node.value, visit.scope) and not (base is not None and base.is_module):
                        yield _write(node, f".{node.attr}(")
                case ast.Attribute(ctx=ast.Load()) if node.attr in ARGUMENT_MUTATING_METHODS:
                    base = self.references.resolve_expression(node.value, visit.scope)
                    call = visit.parent.node if visit.parent else None
                    given = call.args[:1] if isinstance(call, ast.Call) and call.func is node else []
                    if base is not None and base.is_module:
                        yield from self._argument(visit, node)
                    elif not (given and self._own(given[0], visit.scope)):
                        yield _write(node, f".{node.attr}(")
                case ast.Call(func=ast.Name(id="getattr"), args=[ob, ast.Constant(value=str(name)), *_]) if (
                    name in MUTATING_METHODS and not self._own(ob, visit.scope)
                ) or name in ARGUMENT_MUTATING_METHODS:
                    yield _write(node, f"getattr(…, '{name}')")
                case ast.Attribute(ctx=ast.Store() | ast.Del()):
                    yield _write(node, f".{node.attr} =")
                case ast.Subscript(ctx=ast.Store() | ast.Del()) if not self._own(node.value, visit.scope):
                    yield _write(node, "[…] =")
                case ast.AugAssign(target=ast.Name() as target) if not (
                    _adds_number(node) or self._own(target, visit.scope)
                ):
                    yield _write(node, f"{target.id} {_SYMBOLS.get(type(node.op).__name__, '')}=")
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                    yield from self._argument(visit, node)
                case _:
                    pass

    def _argument(self, visit: NodeVisit, node: ast.Name | ast.Attribute) -> Iterator[Violation]:
        reference = self.references.resolve_expression(node, visit.scope)
        if reference is None or reference.dotted not in ARGUMENT_MUTATORS:
            return
        call = visit.parent.node if visit.parent else None
        if isinstance(call, ast.Call) and call.func is node and call.args:
            position = 1 if reference.dotted in ("json.dump", "struct.pack_into") else 0
            if len(call.args) > position and self._own(call.args[position], visit.scope):
                return
        yield _write(node, f"{reference.dotted}(")


def _adds_number(node: ast.AugAssign) -> bool:
    """Whether a number is added, subtracted or the like. No container takes one in place; `*=` makes a list longer."""
    value = node.value.operand if isinstance(node.value, ast.UnaryOp) else node.value
    is_number = isinstance(value, ast.Constant) and isinstance(value.value, (int, float, complex))
    return is_number and not isinstance(node.op, ast.Mult)


def _write(node: ast.expr | ast.AugAssign, pattern: str) -> Violation:
    return Violation("write", f"Blocked write: '{pattern}' on an object the code did not make", node.lineno)


# -- Which objects a program certainly made itself: new values, names that hold only new values, and what is in those.
#
# One level deep: in `grid = [[0] * 9 for _ in range(9)]` the rows are the program's own as long as nothing else is put
# into `grid`. The order of statements does not count: after one doubtful assignment anywhere, a name is not trusted.


# Functions that change their first argument.
ARGUMENT_MUTATORS = frozenset(
    {
        "heapq.heappush",
        "heapq.heappop",
        "heapq.heapify",
        "heapq.heappushpop",
        "heapq.heapreplace",
        "bisect.insort",
        "bisect.insort_left",
        "bisect.insort_right",
        "random.shuffle",
        "struct.pack_into",
        "json.dump",
        "csv.writer",
        "csv.DictWriter",
    }
)
_FRESH_BUILTINS = split_names(
    "list dict set frozenset tuple bytearray bytes str int float complex bool sorted len abs round ord chr hash hex oct"
    " bin repr ascii range enumerate zip divmod format sum any all isinstance object"
)
_FRESH_MEMBERS = frozenset(
    {
        "collections.deque",
        "collections.Counter",
        "collections.defaultdict",
        "collections.OrderedDict",
        "io.StringIO",
        "io.BytesIO",
        "random.Random",
        "copy.deepcopy",
        "json.loads",
        "array.array",
        "heapq.nlargest",
        "heapq.nsmallest",
        "re.findall",
        "re.split",
        "re.sub",
        "math.sqrt",
        "math.floor",
        "math.ceil",
        "decimal.Decimal",
        "fractions.Fraction",
        "datetime.datetime",
        "datetime.date",
        "datetime.timedelta",
        "csv.reader",
        "csv.DictReader",
    }
    | {f"hashlib.{name}" for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s", "new")}
)
_FRESH_METHODS = split_names(
    "split rsplit splitlines strip lstrip rstrip lower upper title capitalize replace join encode decode copy count"
    " index find most_common strftime isoformat total_seconds"
)
_LITERALS = (
    ast.Constant,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.Tuple,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
    ast.GeneratorExp,
    ast.JoinedStr,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Lambda,
)

# Which argument of a method is the thing it adds. Methods that only remove or reorder add nothing.
_ADDED = {"append": 0, "appendleft": 0, "add": 0, "insert": 1, "setdefault": 1}
_TAKING = split_names("pop popleft popitem remove discard clear sort reverse rotate move_to_end")
_PUTTING = MUTATING_METHODS - _TAKING

_EMPTY_BUILTINS = split_names("list dict set")
_EMPTY_MEMBERS = frozenset(f"collections.{name}" for name in ("deque", "OrderedDict", "Counter", "defaultdict"))
_FACTORIES = split_names("list dict set int float str bool tuple bytearray")

NameKey = tuple[int, str]


class Ownership:
    """What one program owns."""

    def __init__(self, references: ImportReferences) -> None:
        self.references, self.walk = references, references.walk
        # A program that defines a `copy` of its own may return anything from it.
        self._redefined = {name for scope in self.walk.scopes for name in scope.bindings}
        self._scopes = {id(visit.node): visit.scope for visit in self.walk.visits}
        self._made_names: dict[NameKey, bool] = {}
        self._own_names: dict[NameKey, bool] = {}
        self._keeping: dict[NameKey, bool] = {}
        self._mixed: set[NameKey] | None = None

    def is_owned(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether the object an expression gives was surely made by this program."""
        match node:
            case ast.Name():
                return self._own_name(node, scope)
            case ast.Subscript(value=ast.Name() as holder, slice=index) if not isinstance(index, ast.Slice):
                return self._keeps(holder, scope)
            case ast.Call(func=ast.Attribute(value=ast.Name() as holder, attr="setdefault"), args=[_, kept]):
                return self._keeps(holder, scope) and self._is_new_object(kept, scope)
            case _:
                return isinstance(node, _LITERALS) or (isinstance(node, ast.Call) and self._fresh(node, scope))

    def _home(self, name: str, scope: NameScope) -> NameScope | None:
        """Where the name is bound, if it certainly holds one of those bindings wherever it is used."""
        home = scope.find_binding_scope(name)
        if home is None or home.kind == "class" or (home is self.walk.module and not self.walk.is_settled(name)):
            return None
        return home

    def _own_name(self, node: ast.Name, scope: NameScope) -> bool:
        if (home := self._home(node.id, scope)) is None:
            return False
        key = (id(home), node.id)
        if key not in self._own_names:
            self._own_names[key] = all(
                self._new(binding, home) or self._item(binding) for binding in home.bindings[node.id]
            )
        return self._own_names[key]

    def _new(self, binding: NameBinding, home: NameScope) -> bool:
        return binding.value is not None and self._fresh(binding.value, home)

    def _item(self, binding: NameBinding) -> bool:
        """Whether a loop gives the name what a list of the program's own keeps. (A dictionary gives its keys.)"""
        rows = binding.each_of
        if not isinstance(rows, ast.Name) or not self._keeps(rows, self._scopes[id(rows)]):
            return False
        home = self._home(rows.id, self._scopes[id(rows)])
        values = [binding.value for binding in home.bindings[rows.id]] if home else []
        return all(isinstance(value, (ast.List, ast.ListComp, ast.Constant)) for value in values)

    def _is_new_object(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether an expression gives a new object, or a name that has only ever held new objects."""
        if not isinstance(node, ast.Name):
            return self._fresh(node, scope)
        if (home := self._home(node.id, scope)) is None:
            return False
        key = (id(home), node.id)
        if key not in self._made_names:
            self._made_names[key] = all(self._new(binding, home) for binding in home.bindings[node.id])
        return self._made_names[key]

    # What is inside

    def _keeps(self, node: ast.Name, scope: NameScope) -> bool:
        """Whether this program also made everything in a name's containers."""
        home = self._home(node.id, scope)
        if home is None or not self._is_new_object(node, scope):
            return False
        if self._mixed is None:
            self._mixed = {key for visit in self.walk.visits for key in self._mixes(visit)}
        key = (id(home), node.id)
        if key not in self._keeping:
            values = [binding.value for binding in home.bindings[node.id]]
            self._keeping[key] = key not in self._mixed and all(
                value is not None and self._holds_made(value, home) for value in values
            )
        return self._keeping[key]

    def _mixes(self, visit: NodeVisit) -> Iterator[NameKey]:
        """The names of containers that may hold objects not made here, because of this node."""
        node, scope = visit.node, visit.scope
        parent = visit.parent.node if visit.parent else None
        holders: list[ast.expr] = []
        match node:
            case ast.Subscript(value=ast.Name() as holder, slice=index, ctx=ast.Store()):
                # In place, an item stays what it was or becomes new.
                value = None if isinstance(index, ast.Slice) else self.walk.find_assigned_value(visit)
                if not isinstance(parent, ast.AugAssign) and not (value and self._is_new_object(value, scope)):
                    holders = [holder]
            case ast.Attribute(value=ast.Name() as holder, attr=method) if method in _PUTTING:
                call = parent if isinstance(parent, ast.Call) and parent.func is node else None
                if call is None or not self._adds_made(call, method, scope):
                    holders = [holder]
            case ast.AugAssign(target=ast.Name() as holder, value=value):
                holders = [] if self._holds_made(value, scope) else [holder]
            case ast.Call(func=ast.Name() | ast.Attribute() as function, args=args):
                reference = self.references.resolve_expression(function, scope)
                holders = args if reference is not None and reference.dotted in ARGUMENT_MUTATORS else []
            case _:
                pass
        for holder in holders:
            home = scope.find_binding_scope(holder.id) if isinstance(holder, ast.Name) else None
            if home is not None and isinstance(holder, ast.Name):
                yield id(home), holder.id

    def _adds_made(self, call: ast.Call, method: str, scope: NameScope) -> bool:
        at = _ADDED.get(method, len(call.args))
        plain = not call.keywords and not any(isinstance(given, ast.Starred) for given in call.args)
        return plain and at < len(call.args) and self._is_new_object(call.args[at], scope)

    def _holds_made(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether a new container's contents are new too."""
        match node:
            case ast.Constant():
                return True
            case ast.List(elts=items) | ast.Set(elts=items) | ast.Tuple(elts=items):
                return all(self._is_new_object(item, scope) for item in items)
            case ast.Dict(keys=keys, values=items):
                return None not in keys and all(self._is_new_object(item, scope) for item in items)
            case ast.ListComp(elt=item) | ast.SetComp(elt=item) | ast.DictComp(value=item):
                return self._is_new_object(item, self._scopes[id(item)])
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                repeated = left if isinstance(left, ast.List) else right
                return isinstance(repeated, ast.List) and self._holds_made(repeated, scope)
            case ast.Call():
                return self._starts_empty(node, scope)
            case _:
                return False

    def _starts_empty(self, call: ast.Call, scope: NameScope) -> bool:
        function, reference = call.func, self.references.resolve_expression(call.func, scope)
        if call.keywords or (call.args and (reference is None or reference.dotted != "collections.defaultdict")):
            return False
        if call.args:
            return len(call.args) == 1 and self._makes(call.args[0], scope)
        if reference is not None:
            return reference.dotted in _EMPTY_MEMBERS
        return isinstance(function, ast.Name) and function.id in _EMPTY_BUILTINS and self._builtin(function, scope)

    def _makes(self, factory: ast.expr, scope: NameScope) -> bool:
        """Whether calling `factory` gives a new object each time."""
        reference = self.references.resolve_expression(factory, scope)
        match factory:
            case ast.Lambda(args=ast.arguments(args=[], posonlyargs=[], kwonlyargs=[]), body=body):
                return self._fresh(body, self._scopes[id(body)])
            case ast.Name(id=name) if reference is None:
                return name in _FACTORIES and self._builtin(factory, scope)
            case _:
                return reference is not None and reference.dotted in _EMPTY_MEMBERS

    def _builtin(self, function: ast.Name, scope: NameScope) -> bool:
        return self.references.is_builtin(function.id, scope) and function.id not in self._redefined

    def _fresh(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether an expression surely gives a new object. What is in it does not matter."""
        match node:
            case ast.IfExp(body=body, orelse=other):
                return self._fresh(body, scope) and self._fresh(other, scope)
            case ast.Call(func=ast.Name(id=name) as function, args=args) if name in _FRESH_BUILTINS:
                # `sum(rows, start)` may return `start` itself.
                without_start = name != "sum" or (len(args) == 1 and not node.keywords)
                return without_start and self._builtin(function, scope)
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                reference = self.references.resolve_expression(function, scope)
                if reference is not None:
                    return reference.dotted in _FRESH_MEMBERS
                return (
                    isinstance(function, ast.Attribute)
                    and function.attr in _FRESH_METHODS
                    and function.attr not in self._redefined
                )
            case _:
                return isinstance(node, _LITERALS)
