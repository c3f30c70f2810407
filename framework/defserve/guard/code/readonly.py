"""R4: readonly code changes only what it made itself. A name is its own if every binding of it is a fresh value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from defserve.guard.code.mutators import MUTATORS
from defserve.guard.code.rules import Rules
from defserve.guard.code.scopes import Scope, Visit
from defserve.guard.verdict import Violation


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
_FRESH_BUILTINS = _words(
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
_FRESH_METHODS = _words(
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


class Writes:
    """The violations of R4 in one walked tree."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.walk = rules.walk
        # A program that defines a `copy` of its own may return anything from it.
        self._redefined = {name for scope in self.walk.scopes for name in scope.bindings}
        self._owned: dict[tuple[int, str], bool] = {}

    def __iter__(self) -> Iterator[Violation]:
        for visit in self.walk.visits:
            node = visit.node
            match node:
                case ast.Attribute(ctx=ast.Load()) if node.attr in MUTATORS:
                    if not self._own(node.value, visit.scope) and not self._exported(node, visit.scope):
                        yield _write(node, f".{node.attr}(")
                case ast.Attribute(ctx=ast.Store() | ast.Del()):
                    yield _write(node, f".{node.attr} =")
                case ast.Subscript(ctx=ast.Store() | ast.Del()) if not self._own(node.value, visit.scope):
                    yield _write(node, "[…] =")
                case ast.AugAssign(target=ast.Name() as target) if not self._own(target, visit.scope):
                    yield _write(node, f"{target.id} {_operator(node)}=")
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                    yield from self._argument(visit, node)
                case _:
                    pass

    def _argument(self, visit: Visit, node: ast.Name | ast.Attribute) -> Iterator[Violation]:
        reference = self.rules.refer(node, visit.scope)
        if reference is None or reference.dotted not in ARGUMENT_MUTATORS:
            return
        call = visit.parent.node if visit.parent else None
        if isinstance(call, ast.Call) and call.func is node and call.args:
            position = 1 if reference.dotted in ("json.dump", "struct.pack_into") else 0
            if len(call.args) > position and self._own(call.args[position], visit.scope):
                return
        yield _write(node, f"{reference.dotted}(")

    def _exported(self, node: ast.Attribute, scope: Scope) -> bool:
        """A module's function of that name (`heapq.merge`, `operator.add`) changes no object by itself."""
        base = self.rules.refer(node.value, scope)
        return base is not None and base.is_module

    def _own(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the object an expression gives was surely made by this program."""
        if not isinstance(node, ast.Name):
            return isinstance(node, _LITERALS) or (isinstance(node, ast.Call) and self._fresh(node, scope))
        home = scope.find(node.id)
        if home is None or home.kind == "class" or (home is self.walk.module and not self.walk.settled(node.id)):
            return False
        key = (id(home), node.id)
        if key not in self._owned:
            bindings = home.bindings[node.id]
            self._owned[key] = all(b.value is not None and self._fresh(b.value, home) for b in bindings)
        return self._owned[key]

    def _fresh(self, node: ast.expr, scope: Scope) -> bool:
        match node:
            case ast.IfExp(body=body, orelse=other):
                return self._fresh(body, scope) and self._fresh(other, scope)
            case ast.Call(func=ast.Name(id=name) as function, args=args) if name in _FRESH_BUILTINS:
                alone = name != "sum" or (len(args) == 1 and not node.keywords)
                return alone and self.rules.is_builtin(function.id, scope) and name not in self._redefined
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                reference = self.rules.refer(function, scope)
                if reference is not None:
                    return reference.dotted in _FRESH_MEMBERS
                return (
                    isinstance(function, ast.Attribute)
                    and function.attr in _FRESH_METHODS
                    and function.attr not in self._redefined
                )
            case _:
                return isinstance(node, _LITERALS)


def _operator(node: ast.AugAssign) -> str:
    symbols = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "BitOr": "|", "BitAnd": "&", "BitXor": "^"}
    return symbols.get(type(node.op).__name__, "")


def _write(node: ast.expr | ast.AugAssign, pattern: str) -> Violation:
    return Violation("write", f"Blocked write: '{pattern}' on an object the code did not make", node.lineno)
