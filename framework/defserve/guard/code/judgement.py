"""The layers of the judge in order, and layer 1: rules on the syntax tree.

Each layer may refuse; none may raise. Rules look at structure, not substrings, and every rule names itself in its
violation.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from defserve.errors import MAX_NAMES_IN_REFUSAL, find_nearest_names
from defserve.guard.code import allowed_names
from defserve.guard.code.policy import CodePolicy, decode_source, find_exceeded_bound, strip_comments_and_strings
from defserve.guard.code.readonly import ReadonlyRules
from defserve.guard.code.syntax_tree import (
    ImportReference,
    ImportReferences,
    NameBinding,
    NameScope,
    NodeVisit,
    TreeTooDeep,
    TreeWalk,
    can_rename_fields,
    is_in_annotation,
    is_own_object,
)
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict

T = TypeVar("T")

MAX_VIOLATIONS = 20
IMPORT = "import"
QUOTED = re.compile(r"'([^']*)'")

# Rules that have nothing to do with what a level leaves out of the language.
PLAIN = frozenset((IMPORT, "size", "encoding"))
INVALID = "Invalid syntax"

# What a model should be told when the stricter levels refuse everyday Python.
RESTRICTIONS = {
    "unsupported_syntax": [
        "async and await",
        "match",
        "except*",
        "type parameters and type aliases",
        "metaclass=",
        "names with two leading underscores",
        "special methods other than __init__, __str__, __repr__, comparison, arithmetic and iteration",
    ],
    "unsupported_builtins": ["open", "input", "type", "super", "setattr", "BaseException"],
}
READONLY_FORM = "code that assigns only to names and to items of containers made in it, and to no attributes"


def judge_source(source: str | bytes, policy: CodePolicy) -> Verdict:
    """The verdict on a source under a policy."""
    violations = list(islice(dict.fromkeys(_violations(source, policy)), MAX_VIOLATIONS))
    return make_refused_verdict(violations, _hints(policy, violations)) if violations else Verdict(True)


def _violations(source: str | bytes, policy: CodePolicy) -> Iterable[Violation]:
    text = decode_source(source, policy.max_bytes)
    if isinstance(text, Violation):
        return [text]
    if policy.level == "unrestricted":
        return []
    if (excess := find_exceeded_bound(text, policy.bounds)) is not None:
        return [excess]
    try:
        tree = run_without_warnings(lambda: ast.parse(text))
        found = list(islice(chain(_block_texts(text, policy), _structure(tree, policy)), 10 * MAX_VIOLATIONS))
        if not found and policy.strict:
            found = _compile(text)
    except TreeTooDeep:
        return [Violation("nesting", f"Code nested too deeply: at most {policy.bounds.depth} levels are allowed")]
    except SyntaxError as error:
        is_more = error.msg.lower() != INVALID.lower()
        return [Violation("syntax", f"{INVALID}: {error.msg}" if is_more else INVALID, error.lineno)]
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return [Violation("nesting", "Code too complex to be judged")]
    return found


def _structure(tree: ast.Module, policy: CodePolicy) -> Iterator[Violation]:
    rules = CodeRules(TreeWalk(tree, policy.bounds.depth), policy)
    yield from rules
    if policy.level == "readonly":
        yield from ReadonlyRules(rules.references)


def _block_texts(text: str, policy: CodePolicy) -> Iterator[Violation]:
    if policy.blocked_texts:
        code = strip_comments_and_strings(text)
        for pattern in policy.blocked_texts:
            if pattern in code:
                yield Violation("pattern", f"Blocked pattern: '{pattern}'")


def _compile(text: str) -> list[Violation]:
    from defserve.guard.code.restricted import find_restriction_errors

    return [
        Violation("restricted", message, line)
        for line, message in run_without_warnings(lambda: find_restriction_errors(ast.parse(text)))
    ]


def _hints(policy: CodePolicy, violations: list[Violation]) -> dict[str, Any]:
    """What helps to correct these violations, and no more: a model pays for every word."""
    rules = {violation.rule for violation in violations}
    hints = policy.hints()
    if IMPORT not in rules:
        hints = {name: value for name, value in hints.items() if not name.endswith("_imports")}
    else:
        tried = {name.partition(".")[0] for v in violations for name in QUOTED.findall(v.message) if v.rule == IMPORT}
        hints["blocked_imports"] = [name for name in hints["blocked_imports"] if name in tried | policy.blocked_modules]
        # What an author allows is meant, whether or not it looks alike.
        likeness = 0.6 if policy.allow is None else 0
        nearest = (find_nearest_names(name, hints["allowed_imports"], min_likeness=likeness) for name in sorted(tried))
        hints["nearest"] = list(dict.fromkeys(chain.from_iterable(nearest)))[:MAX_NAMES_IN_REFUSAL]
    if policy.strict and any(v.rule not in PLAIN and not v.message.startswith(INVALID) for v in violations):
        hints |= RESTRICTIONS
    if policy.level == "readonly" and "write" in rules:
        hints["form"] = READONLY_FORM
    return hints


def run_without_warnings(work: Callable[[], T]) -> T:
    """Do the work, even if the process turns warnings (an odd escape in a string) into errors."""
    try:
        return work()
    except SyntaxError:
        if not any(action == "error" for action, *_ in warnings.filters):
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()


# -- Layer 1: rules on the syntax tree. Structure, not substrings; every rule names itself in its violation.
#
# R1 an imported module may only be the base of an attribute. R2 reading an attribute or file by name takes a literal
# name in a plain call. R3 a module gives out what its export table lists. R4 (readonly) is in `readonly`.


# What they are called on may read any attribute.
_FORMATTING = frozenset(("format", "format_map", "vformat"))
_POSITIONAL_BUILTINS = allowed_names.split_names("bool bytearray bytes dict float frozenset int list set str tuple")
_PLAIN_BASES = allowed_names.split_names(
    "object Exception ValueError RuntimeError TypeError KeyError LookupError tuple"
)
_MAX_JOINED = 10_000
_READING_MODES = frozenset({"r", "rb", "rt", "br", "tr"})
_GUARDED_PATH = re.compile(r"/(etc|proc|sys|dev|root|boot|run|var/run)(/|\Z)|~|.*(\A|[/\\])\.", re.DOTALL)
_REFUSED_BY_STRICT: dict[str, str] = {
    "AsyncFunctionDef": "async def",
    "AsyncFor": "async for",
    "AsyncWith": "async with",
    "Await": "await",
    "Match": "match",
    "TryStar": "except*",
    "TypeAlias": "type alias",
    "TypeVar": "type parameters",
    "TypeVarTuple": "type parameters",
    "ParamSpec": "type parameters",
    "TemplateStr": "template string",
}


class CodeRules:
    """The rules of one policy over one walked tree."""

    def __init__(self, walk: TreeWalk, policy: CodePolicy) -> None:
        self.walk, self.policy, self.strict = walk, policy, policy.strict
        self.references = ImportReferences(walk, self.strict)
        blocked = allowed_names.STRICT_BUILTINS if self.strict else allowed_names.BLOCKED_BUILTINS
        self._builtins = (blocked | policy.blocked_names) - policy.trust
        modules = _find_imported_modules(walk)
        self._exposed = frozenset[str]().union(
            *(allowed_names.EXPOSED_ATTRIBUTES.get(module, frozenset[str]()) for module in modules),
            *(allowed_names.EXPOSED_BY_MEMBER.get(name, frozenset[str]()) for name in _find_member_names(walk)),
        )
        self._exposed -= policy.trust
        self._foreign = frozenset[str]() if self.strict else _find_foreign_attributes(walk, modules)
        self._has_parsers = "argparse" in modules
        self._renames_fields: bool | None = None
        self._templates: dict[str, bool] = {}
        self._plain_classes: frozenset[str] | None = None
        self._checks: dict[type[ast.AST], Callable[[NodeVisit, Any], Iterator[Violation]]] = {
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Call: self._call,
            ast.Constant: self._constant,
            ast.FunctionDef: self._definition,
            ast.AsyncFunctionDef: self._definition,
            ast.ClassDef: self._definition,
            ast.arg: self._identifier,
            ast.alias: self._identifier,
            ast.ExceptHandler: self._identifier,
            ast.Global: self._identifier,
            ast.Nonlocal: self._identifier,
            ast.MatchAs: self._identifier,
            ast.MatchStar: self._identifier,
            ast.MatchMapping: self._identifier,
            ast.keyword: self._identifier,
            ast.MatchClass: self._match_class,
        }

    def __iter__(self) -> Iterator[Violation]:
        for visit in self.walk.visits:
            if (check := self._checks.get(type(visit.node))) is not None:
                yield from check(visit, visit.node)
            if self.strict and (syntax := _REFUSED_BY_STRICT.get(type(visit.node).__name__)):
                yield _violation(visit, "syntax", f"Blocked syntax: '{syntax}'")

    # Checks

    def _name(self, visit: NodeVisit, node: ast.Name) -> Iterator[Violation]:
        name = node.id
        if isinstance(node.ctx, ast.Load):
            if name in self._builtins:
                if self.references.is_builtin(name, visit.scope):
                    yield _violation(visit, "builtin", f"Blocked pattern: '{name}('")
                return
            if (name in allowed_names.ATTRIBUTE_BUILTINS or name == "open") and name not in self.policy.trust:
                yield from self._by_name(visit, name)
            yield from self._reference(visit, self.references.resolve_expression(node, visit.scope))
        if not self._dunder_name_allowed(visit, node):
            yield from self._bad_identifier(visit, name)

    def _dunder_name_allowed(self, visit: NodeVisit, node: ast.Name) -> bool:
        if node.id == "__name__":
            return isinstance(node.ctx, ast.Load)
        if self.strict:
            return False
        if visit.scope.kind == "class":
            return node.id in allowed_names.CLASS_DUNDERS
        return node.id in allowed_names.MODULE_DUNDERS or node.id in ("__doc__", "__debug__")

    def _by_name(self, visit: NodeVisit, name: str) -> Iterator[Violation]:
        """R2."""
        if not self.references.is_builtin(name, visit.scope):
            return
        call = visit.parent.node if visit.parent else None
        if not isinstance(call, ast.Call) or call.func is not visit.node:
            yield _violation(visit, "by-name", f"Blocked pattern: '{name}' used as a value")
            return
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            yield _violation(visit, "by-name", f"Blocked pattern: '{name}(' with star arguments")
        elif name == "open":
            yield from _opening(visit, call, self.walk)
        else:
            literal = call.args[1] if len(call.args) > 1 else None
            if not (isinstance(literal, ast.Constant) and isinstance(literal.value, str)):
                yield _violation(visit, "by-name", f"Blocked pattern: '{name}(' with a name that is not a literal")
            elif (attribute := self._attribute_name(literal.value)) is not None:
                yield _violation(visit, "attribute", attribute)
            elif name == "getattr" and literal.value in _FORMATTING:
                yield _violation(visit, "format", f"Blocked pattern: 'getattr(' of '{literal.value}'")

    def _reference(self, visit: NodeVisit, reference: ImportReference | None) -> Iterator[Violation]:
        """R1 and the patterns of `block` for a name or attribute that is read."""
        if reference is None:
            return
        if self.policy.blocks_dotted_name(reference.dotted):
            yield _violation(visit, "pattern", f"Blocked pattern: '{reference.dotted}'")
        parent = visit.parent.node if visit.parent else None
        if reference.dotted in _DIRECTLY and not (isinstance(parent, ast.Call) and parent.func is visit.node):
            yield _violation(visit, "by-name", f"Blocked pattern: '{reference.dotted}' used as a value")
        if not self.strict and reference.dotted in allowed_names.DECORATORS and not self._is_plain_decorator(visit):
            yield _violation(visit, "by-name", f"Blocked pattern: '{reference.dotted}' that decorates no plain class")
        if not self.strict and reference.dotted in allowed_names.FIELD_READERS:
            if self._renames_fields is None:
                self._renames_fields = can_rename_fields(self.references)
            if self._renames_fields:
                message = f"Blocked pattern: '{reference.dotted}' in a program that makes metaclasses or renames fields"
                yield _violation(visit, "by-name", message)
        if reference.is_module and not isinstance(parent, ast.Attribute):
            yield _violation(visit, "module-value", f"Blocked use of module '{reference.dotted}' as a value")

    def _attribute(self, visit: NodeVisit, node: ast.Attribute) -> Iterator[Violation]:
        base = self.references.resolve_expression(node.value, visit.scope)
        if base is not None and base.is_module:
            if not isinstance(node.ctx, ast.Load):
                yield _violation(visit, "module-write", f"Blocked write to module '{base.dotted}'")
            else:
                yield from self._member(visit, base.dotted, node.attr)
        elif base is not None and node.attr in allowed_names.BLOCKED_MODULE_MEMBERS and self._is_untabled(base.dotted):
            yield _violation(visit, "import", f"Blocked import: '{base.dotted}.{node.attr}'")
        elif not self._attribute_allowed(visit, node):
            message = self._attribute_name(node.attr, owned=is_own_object(node.value, visit.scope))
            if message is not None:
                yield _violation(visit, "attribute", message)
        if node.attr in _FORMATTING and not (base and base.is_module):
            yield from self._format(visit, node)
        yield from self._reference(visit, self.references.resolve_expression(node, visit.scope))

    def _is_untabled(self, dotted: str) -> bool:
        module = dotted.rpartition(".")[0] or dotted
        return (
            allowed_names.find_exports(module, self.strict) is None
            and allowed_names.get_top_level_module(module) not in self.policy.trust
        )

    def _member(self, visit: NodeVisit, module: str, attribute: str) -> Iterator[Violation]:
        """R3."""
        dotted = f"{module}.{attribute}"
        if self.policy.is_trusted(module) or attribute == "__version__" or self.references.is_submodule(dotted):
            return
        if (table := allowed_names.find_exports(module, self.strict)) is not None:
            refused = attribute not in table
        else:
            # A package of the standard library (`urllib`) may hold more submodules than the program imported.
            refused = (
                attribute.startswith("_")
                or attribute in allowed_names.BLOCKED_MODULE_MEMBERS
                or allowed_names.is_dangerous_module(module, self.strict)
            )
        if refused:
            yield _violation(visit, "import", f"Blocked import: '{dotted}'")

    def _attribute_allowed(self, visit: NodeVisit, node: ast.Attribute) -> bool:
        """The few dunders everyday programs read: `type(e).__name__`, `x.__class__.__name__`, `super().__init__`."""
        if self.strict or not isinstance(node.ctx, ast.Load):
            return False
        if node.attr in allowed_names.READABLE_DUNDERS:
            return True
        if node.attr == "__class__":
            parent = visit.parent.node if visit.parent else None
            return (
                isinstance(parent, ast.Attribute)
                and isinstance(parent.ctx, ast.Load)
                and parent.attr in ("__name__", "__qualname__")
            )
        match node.value:
            case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]):
                return node.attr in allowed_names.SUPER_METHODS
            case _:
                return False

    def _attribute_name(self, name: str, owned: bool = False) -> str | None:
        """Why an attribute of this name may not be touched, or None."""
        hidden = (
            allowed_names.is_dunder(name)
            or name in allowed_names.FRAME_ATTRIBUTES
            or allowed_names.is_restricted_python_hook(name)
            or name in self._exposed
        )
        if not hidden and not owned:
            plain = name.strip("_")
            hidden = name in self._foreign or (
                plain in allowed_names.HIDDEN_MODULES and not {name, plain} & self.policy.trust
            )
        if not hidden and self.strict:
            is_public = owned or name == "_" or name in allowed_names.NAMED_TUPLE_NAMES
            hidden = name.startswith("__") or (name.startswith("_") and not is_public)
        return f"Blocked attribute: '{name}'" if hidden else None

    def _format(self, visit: NodeVisit, node: ast.Attribute) -> Iterator[Violation]:
        templates = _literals(node.value, visit.scope, self.walk)
        if templates is None:
            yield _violation(visit, "format", f"Blocked pattern: '.{node.attr}(' of text that is not a literal")
        elif any(map(self._reads_private, templates)):
            yield _violation(visit, "format", f"Blocked pattern: '.{node.attr}(' that reads private attributes")

    def _reads_private(self, template: str) -> bool:
        if template not in self._templates:
            fields = re.findall(r"\{([^{}]*)", template)
            self._templates[template] = re.search(r"\{[^{}]*[.\[]_|__|\b[fgct][bior]?_", template) is not None or any(
                self._attribute_name(name) for name in set(re.findall(r"\.(\w+)", "\n".join(fields)))
            )
        return self._templates[template]

    def _import(self, visit: NodeVisit, node: ast.Import) -> Iterator[Violation]:
        for alias in node.names:
            if not self.policy.may_import(alias.name):
                yield _violation(visit, "import", f"Blocked import: '{alias.name}'")

    def _import_from(self, visit: NodeVisit, node: ast.ImportFrom) -> Iterator[Violation]:
        if node.level or not node.module:
            yield _violation(visit, "import", f"Blocked import: '{'.' * node.level}{node.module or ''}'")
            return
        for alias in node.names:
            if not self.policy.may_import_from(node.module, alias.name):
                whole = node.module if not self.policy.may_import(node.module) else f"{node.module}.{alias.name}"
                yield _violation(visit, "import", f"Blocked import: '{whole}'")

    def _call(self, visit: NodeVisit, node: ast.Call) -> Iterator[Violation]:
        is_print = isinstance(node.func, ast.Name) and node.func.id == "print"
        if self.strict and is_print and any(k.arg in ("file", None) for k in node.keywords):
            yield _violation(visit, "print-file", "Blocked pattern: 'print(file='")
        reference = self.references.resolve_expression(node.func, visit.scope)
        writing = allowed_names.WRITING_KEYWORDS.get(reference.dotted) if reference else None
        if writing and any(k.arg is None or k.arg in writing for k in node.keywords):
            yield _violation(visit, "write", f"Blocked write: '{reference.dotted if reference else ''}' to a file")
        harmless = allowed_names.HARMLESS_KEYWORDS.get(reference.dotted) if reference else None
        if reference and harmless is not None and not self.policy.is_trusted(reference.dotted):
            yield from _check_named_code(visit, node, reference.dotted, harmless)
        if (
            reference
            and reference.dotted in allowed_names.ONE_ARGUMENT
            and (len(node.args) + len(node.keywords) > 1 or any(isinstance(a, ast.Starred) for a in node.args))
        ):
            yield _violation(visit, "by-name", f"Blocked pattern: '{reference.dotted}(' with names of attributes")
        if self._has_parsers and not self.strict and _may_add_parsers(node):
            yield _violation(visit, "by-name", "Blocked pattern: 'add_argument(' with an action that is not a literal")
        for name in (k.arg for k in node.keywords if k.arg in self._exposed):
            yield _violation(visit, "attribute", f"Blocked argument: '{name}'")

    def _constant(self, visit: NodeVisit, node: ast.Constant) -> Iterator[Violation]:
        if not isinstance(node.value, str):
            return
        if self.strict and (found := allowed_names.DUNDER_PATTERN.search(node.value)):
            yield _violation(visit, "dunder-text", f"Blocked text: '{found[0]}' in a string")
        elif ("(" in node.value or "__" in node.value) and is_in_annotation(visit):
            # Libraries evaluate annotations that are strings.
            yield _violation(visit, "annotation", "Blocked annotation: a string that calls")

    def _definition(
        self, visit: NodeVisit, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> Iterator[Violation]:
        methods = allowed_names.STRICT_SPECIAL_METHODS if self.strict else allowed_names.SPECIAL_METHODS
        in_class = visit.scope.kind == "class" and not isinstance(node, ast.ClassDef)
        if in_class and allowed_names.is_dunder(node.name):
            if node.name not in methods:
                yield _violation(visit, "method", f"Blocked method: '{node.name}'")
            return
        yield from self._bad_identifier(visit, node.name)

    def _identifier(self, visit: NodeVisit, node: ast.AST) -> Iterator[Violation]:
        for name in _identifiers(node):
            yield from self._bad_identifier(visit, name)

    def _match_class(self, visit: NodeVisit, node: ast.MatchClass) -> Iterator[Violation]:
        if node.patterns and not self._is_plain_class(node.cls, visit.scope):
            yield _violation(
                visit, "attribute", "Blocked pattern: positions in a case of a class that may match anything"
            )
        for name in node.kwd_attrs:
            if (message := self._attribute_name(name)) is not None:
                yield _violation(visit, "attribute", message)
            elif name in _FORMATTING:
                yield _violation(visit, "format", f"Blocked pattern: '{name}=' in a case")

    def _is_plain_decorator(self, visit: NodeVisit) -> bool:
        """Whether it decorates, as it is or called with keywords, a class without a metaclass of the program."""
        parent = visit.parent
        if parent and isinstance(parent.node, ast.Call) and parent.node.func is visit.node and not parent.node.args:
            visit, parent = parent, parent.parent
        return (
            parent is not None
            and isinstance(parent.node, ast.ClassDef)
            and visit.node in parent.node.decorator_list
            and all(
                keyword.arg not in ("metaclass", None)
                or self.references.resolve_expression(keyword.value, parent.scope) is not None
                for keyword in parent.node.keywords
            )
        )

    def _is_plain_class(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether only true instances of a class match it, so that its positions read nothing of other objects."""
        if self.references.resolve_expression(node, scope) is not None:
            return True
        if not isinstance(node, ast.Name):
            return False
        if scope.find_binding_scope(node.id) is None:
            return node.id in _POSITIONAL_BUILTINS
        if self._plain_classes is None:
            self._plain_classes = _find_plain_classes(self.walk, self.references)
        return node.id in self._plain_classes

    def _bad_identifier(self, visit: NodeVisit, name: str) -> Iterator[Violation]:
        if (
            allowed_names.is_dunder(name)
            or allowed_names.is_restricted_python_hook(name)
            or (self.strict and name.startswith("__") and name != "__")
        ):
            yield _violation(visit, "name", f"Blocked name: '{name}'")


_DIRECTLY = allowed_names.ONE_ARGUMENT.union(allowed_names.HARMLESS_KEYWORDS, allowed_names.WRITING_KEYWORDS)


def _find_plain_classes(walk: TreeWalk, references: ImportReferences) -> frozenset[str]:
    """The names that only ever mean a class whose metaclass, or whose base, does not say what its instances are."""
    classes: dict[str, list[NodeVisit]] = {}
    for visit in walk.visits:
        match visit.node:
            case ast.ClassDef(name=name):
                classes.setdefault(name, []).append(visit)
            case ast.Attribute(attr="register") | ast.FunctionDef(name="__subclasshook__" | "__instancecheck__"):
                return frozenset()
            case _:
                pass
    plain: set[str] = set()
    bound: dict[str, list[tuple[NameBinding, NameScope]]] = {}
    for scope in walk.scopes:
        for name, bindings in scope.bindings.items():
            bound.setdefault(name, []).extend((binding, scope) for binding in bindings)
    for name, bindings in bound.items():
        defined = classes.get(name, [])
        made = [
            binding
            for binding, scope in bindings
            if isinstance(binding.value, ast.Call)
            and (reference := references.resolve_expression(binding.value.func, scope))
            and reference.dotted in ("collections.namedtuple", "typing.NamedTuple")
        ]
        if len(bindings) == len(defined) + len(made) and all(
            _has_plain_parts(visit, plain, references) for visit in defined
        ):
            plain.add(name)
    return frozenset(plain)


def _has_plain_parts(visit: NodeVisit, plain: Collection[str], references: ImportReferences) -> bool:
    node = visit.node
    assert isinstance(node, ast.ClassDef)
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return not node.keywords and all(
        references.resolve_expression(part, visit.scope) is not None
        or (isinstance(part, ast.Name) and (part.id in plain or part.id in _PLAIN_BASES))
        for part in (*bases, *decorators)
    )


def _find_imported_modules(walk: TreeWalk) -> frozenset[str]:
    nodes = (visit.node for visit in walk.visits)
    members = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return frozenset(map(allowed_names.get_top_level_module, walk.imported | members))


def _find_member_names(walk: TreeWalk) -> frozenset[str]:
    """The names that a program takes from modules, and those of all attributes: there is no telling them apart here."""
    names = (
        visit.node.name if isinstance(visit.node, ast.alias) else visit.node.attr
        for visit in walk.visits
        if isinstance(visit.node, (ast.alias, ast.Attribute))
    )
    return frozenset(names)


def _find_foreign_attributes(walk: TreeWalk, modules: frozenset[str]) -> frozenset[str]:
    """What no attribute may be called, but those of the program's own `self`."""
    # An AttributeError holds the module that lacks what this version of Python does not have.
    found = frozenset({"obj"}) if modules else frozenset[str]()
    if modules & allowed_names.FILE_MODULES or any(
        isinstance(visit.node, ast.Name) and visit.node.id == "open" for visit in walk.visits
    ):
        found |= allowed_names.FILE_ATTRIBUTES
    return found


def _check_named_code(visit: NodeVisit, call: ast.Call, dotted: str, harmless: frozenset[str]) -> Iterator[Violation]:
    """`unittest.main()` imports and calls what its arguments name. `argv` is for the name of the program."""
    argv = next((k.value for k in call.keywords if k.arg == "argv"), None)
    plain = argv is None or (
        isinstance(argv, ast.List) and all(_is_flag(word, at) for at, word in enumerate(argv.elts))
    )
    if call.args or not plain or any(k.arg not in harmless for k in call.keywords):
        yield _violation(visit, "by-name", f"Blocked pattern: '{dotted}(' with arguments that may name code")


def _is_flag(word: ast.expr, at: int) -> bool:
    """The first word is a name that nobody looks up; the others are short flags without a value."""
    text = word.value if isinstance(word, ast.Constant) else None
    return isinstance(text, str) and (at == 0 or text in ("-v", "-q", "-b", "-f", "--verbose", "--quiet"))


def _identifiers(node: ast.AST) -> tuple[str, ...]:
    """The names that a node holds as plain strings, not as Name nodes."""
    match node:
        case ast.arg(arg=name):
            return (name,)
        case ast.alias(name=module, asname=name):
            return (name,) if name else () if module == "__future__" else tuple(module.split("."))
        case ast.Global(names=several) | ast.Nonlocal(names=several):
            return tuple(several)
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
            | ast.keyword(arg=str(name))
        ):
            return (name,)
        case _:
            return ()


def _opening(visit: NodeVisit, call: ast.Call, walk: TreeWalk) -> Iterator[Violation]:
    given: dict[str, ast.expr] = {k.arg: k.value for k in call.keywords if k.arg}
    mode = call.args[1] if len(call.args) > 1 else given.get("mode")
    if mode is not None and not (isinstance(mode, ast.Constant) and mode.value in _READING_MODES):
        yield _violation(visit, "write", "Blocked write: 'open(' with a mode that is not a literal for reading")
    buffering = call.args[2] if len(call.args) > 2 else given.get("buffering")
    if buffering is not None and not _is_buffered(buffering):
        # The class of an unbuffered file opens others, also to write.
        yield _violation(visit, "write", "Blocked write: 'open(' without a buffer, or one whose size is no literal")
    if "opener" in given or len(call.args) > 7:
        yield _violation(visit, "by-name", "Blocked pattern: 'open(' with an opener")
    path = call.args[0] if call.args else given.get("file")
    starts = _find_starts(path, visit.scope, walk) if path is not None else []
    if (isinstance(path, ast.Constant) and not isinstance(path.value, str)) or any(
        _GUARDED_PATH.match(start.removeprefix("./")) for start in starts
    ):
        yield _violation(visit, "path", "Blocked path: 'open(' of a system or hidden file")


def _may_add_parsers(call: ast.Call) -> bool:
    """Whether a call may be `add_argument(action="parsers")`."""
    actions = [keyword.value for keyword in call.keywords if keyword.arg == "action"]
    is_adding = isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    return (is_adding and any(keyword.arg is None for keyword in call.keywords)) or any(
        not isinstance(action, ast.Constant) or action.value == "parsers" for action in actions
    )


def _is_buffered(size: ast.expr) -> bool:
    match size:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))) | ast.Constant(value=int(number)):
            return number != 0
        case _:
            return False


def _find_starts(node: ast.expr, scope: NameScope, walk: TreeWalk) -> list[str]:
    """The literal texts that an expression may be, or what a joined text surely begins with."""
    if (texts := _literals(node, scope, walk)) is not None:
        return texts
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node = node.left
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            return [start]
        case _:
            return _literals(node, scope, walk) or []


def _literals(node: ast.expr, scope: NameScope, walk: TreeWalk) -> list[str] | None:
    """The literal texts an expression may be, or None if one of them is not a literal."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_literals(left, scope, walk), _literals(right, scope, walk)]
            joined = "".join(text for part in parts for text in part or ())
            return None if None in parts or len(joined) > _MAX_JOINED else [joined]
        case ast.Name(id=name):
            home = scope.find_binding_scope(name)
            if home is None or (not home.is_hiding_builtins and not (home is walk.module and walk.is_settled(name))):
                return None
            texts: list[str] = []
            if len(home.bindings[name]) > 20:
                return None
            for binding in home.bindings[name]:
                if not (isinstance(binding.value, ast.Constant) and isinstance(binding.value.value, str)):
                    return None
                texts.append(binding.value.value)
            return texts
        case _:
            return None


def _violation(visit: NodeVisit, rule: str, message: str) -> Violation:
    place: NodeVisit | None = visit
    while place is not None and not hasattr(place.node, "lineno"):
        place = place.parent
    return Violation(rule, message, getattr(place.node, "lineno", None) if place else None)
