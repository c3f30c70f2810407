"""A function's signature, read once at registration: which parameters come from JSON, which are injected.

With the facts that this needs: annotations, docstrings, callables of any kind, and which values options may have.
Nothing here imports pydantic.
"""

from __future__ import annotations

import builtins
import collections.abc as abc
import functools
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from defserve.binding.injection import (
    Dependency,
    DependsMarker,
    FunctionKind,
    InjectedParameter,
    ParameterProvider,
    can_be_hashed,
)
from defserve.core.json_values import is_mapping
from defserve.errors import UsageError

empty: Any = inspect.Parameter.empty

ProviderFinder = Callable[[Any], ParameterProvider | None]

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Parameter:
    """A parameter that comes from the peer.

    `wire_name` is its name in JSON: an alias, or its own. `default` is `empty` when it is required. `fills`: validation
    puts in the default, because the function's own is a `Field(…)` or a mutable value that a call could change
    (pydantic copies it). `default_factory` then makes it, if there is one, and `factory_takes_data` says that it gets
    the arguments before.
    """

    __slots__ = (
        "name",
        "annotation",
        "default",
        "wire_name",
        "fills",
        "default_factory",
        "factory_takes_data",
        "_docs",
    )

    def __init__(self, name: str, annotation: Any, default: Any = empty, docs: ParsedDocstring | None = None) -> None:
        self.name, self.annotation, self.default, self._docs = name, annotation, default, docs
        self.wire_name, self.fills = name, False
        self.default_factory: Callable[..., Any] | None = None
        self.factory_takes_data = False

    @property
    def required(self) -> bool:
        return self.default is empty and self.default_factory is None

    @property
    def description(self) -> str | None:
        """The description in the annotation, or else in the docstring."""
        _, metadata = split_annotated(self.annotation)
        return find_description(metadata) or (self._docs.parameter(self.name) if self._docs else None)

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {format_annotation(self.annotation)})"


class Signature:
    """Everything known about a function before it is called. `takes_rest`: it has `**kwargs`."""

    __slots__ = ("function", "name", "parameters", "injected", "returns", "flow", "docs", "takes_rest")

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        parameters: tuple[Parameter, ...],
        injected: tuple[InjectedParameter, ...],
        returns: Any,
        flow: FunctionKind,
        docs: ParsedDocstring,
        takes_rest: bool = False,
    ) -> None:
        self.function, self.name, self.docs = function, name, docs
        self.parameters, self.injected, self.takes_rest = parameters, injected, takes_rest
        self.returns = returns
        self.flow: FunctionKind = flow

    @property
    def where(self) -> str:
        return find_source_location(self.function)

    @property
    def description(self) -> str | None:
        return self.docs.description


def read_signature(function: Callable[..., Any], find_provider: ProviderFinder, *, explicit: bool = False) -> Signature:
    """Read a function's signature. `find_provider` knows the injectable annotations.

    `explicit`: the author's own schema describes the arguments. Then parameters need no types, and `**kwargs` may take
    the rest. Raises UsageError for a function that could not be called from JSON.
    """
    return _Reader(function, find_provider, explicit=explicit).read_signature()


def read_dependency(function: Callable[..., Any], find_provider: ProviderFinder) -> Dependency:
    """Read a function that stands in for a dependency. Raises UsageError for one that cannot be called as such."""
    return _Reader(function, find_provider).dependency(use_cache=True)


class _Reader:
    """One function on its way to a Signature. `chain` holds the dependencies that led here."""

    def __init__(
        self, function: Any, find_provider: ProviderFinder, chain: tuple[Any, ...] = (), *, explicit: bool = False
    ) -> None:
        self.function, self.name, self.find_provider = function, get_function_name(function), find_provider
        self.chain, self.explicit = chain, explicit

    def read_signature(self) -> Signature:
        if self.name in ("", "<lambda>"):
            raise self.wrong("a lambda has no name a peer could call", fix="write a def")
        if isinstance(self.function, classmethod):
            raise self.wrong("it is an unbound classmethod", fix=f"register Class.{self.name} after the class body")
        raw = self.raw_parameters()
        self.refuse_unbound_method(raw)
        hints = self.hints()
        docs = ParsedDocstring(docstring_of(self.function))
        parameters: list[Parameter] = []
        injected: list[InjectedParameter] = []
        for parameter in raw:
            if self.explicit and parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            self.refuse_unnamed(parameter)
            annotation = hints.get(parameter.name, empty)
            provider = self.provider(parameter, annotation)
            if provider is not None:
                injected.append(InjectedParameter(parameter.name, provider))
            elif annotation is empty and self.explicit:
                parameters.append(Parameter(parameter.name, Any, parameter.default, docs))
            elif annotation is empty:
                raise self.wrong(f"parameter {parameter.name!r} has no type", fix=_suggest_annotation(parameter.name))
            else:
                parameters.append(_ordinary(parameter.name, annotation, parameter.default, docs))
        if any(parameter.factory_takes_data for parameter in parameters):
            for parameter in parameters:
                parameter.fills = not parameter.required  # the factory gets the defaults before it, too
        returns = self.function if inspect.isclass(self.function) else hints.get("return", empty)
        return Signature(
            self.function,
            self.name,
            tuple(parameters),
            tuple(injected),
            returns,
            detect_function_kind(self.function, returns),
            docs,
            takes_rest=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in raw),
        )

    def dependency(self, use_cache: bool) -> Dependency:
        """The plan of this function as a dependency of another."""
        hints = self.hints()
        direct: list[tuple[str, ParameterProvider]] = []
        needs: list[tuple[str, Dependency]] = []
        for parameter in self.raw_parameters():
            provider = self.provider(parameter, hints.get(parameter.name, empty))
            if isinstance(provider, Dependency):
                needs.append((parameter.name, provider))
            elif provider is not None:
                direct.append((parameter.name, provider))
            elif parameter.default is empty and parameter.kind not in _VARIADIC:
                raise self.wrong(
                    f"dependency parameter {parameter.name!r} can neither be injected nor left out",
                    fix="annotate it with Context or Annotated[…, Depends(…)], or give it a default",
                )
        opened, flow = read_opening(self.function, hints.get("return"))
        return Dependency(self.function, opened, flow, use_cache, tuple(direct), tuple(needs))

    def provider(self, parameter: inspect.Parameter, annotation: Any) -> ParameterProvider | Dependency | None:
        inner, metadata = split_annotated(annotation)
        for item in (*metadata, parameter.default):
            if isinstance(item, DependsMarker):
                return self.depends(item, inner, parameter.name)
        if annotation is empty:
            return None
        try:
            found = self.find_provider(annotation)
            if found is None and len(options := list_union_members(inner)) == 2 and type(None) in options:
                found = self.find_provider(options[options[0] is type(None)])
        except UsageError as error:
            raise self.wrong(f"parameter {parameter.name!r}: {error.problem}", fix=error.fix) from None
        return found

    def depends(self, depends: DependsMarker, annotated: Any, parameter: str) -> Dependency:
        function = depends.function or annotated
        if not callable(function):
            raise self.wrong(
                f"parameter {parameter!r} depends on {function!r}, which is not callable",
                fix="write Depends(function), without calling the function",
            )
        if depends.use_cache and not can_be_hashed(function):
            raise self.wrong(
                f"parameter {parameter!r} depends on {get_function_name(function)}, which cannot be hashed",
                fix="give its class __hash__ (@dataclass(eq=False) keeps one), or write Depends(…, use_cache=False)",
            )
        chain = (*self.chain, self.function)
        if function in chain:
            names = " → ".join(get_function_name(link) for link in (*chain[chain.index(function) :], function))
            raise self.wrong(f"dependencies form a circle: {names}", fix="let one of them do without the other")
        reader = _Reader(function, self.find_provider, chain)
        dependency = reader.dependency(depends.use_cache)
        if dependency.is_blocking and detect_function_kind(self.function) in ("async", "async_generator"):
            self.warn_of_other_thread(reader, annotated, parameter)
        return dependency

    def warn_of_other_thread(self, dependency: _Reader, annotated: Any, parameter: str) -> None:
        """Warn if a sync dependency gives what only its own thread may use, and this function runs on the loop."""
        returned = dependency.hints().get("return", empty)
        kinds = (annotated, returned, *get_args(returned))
        if not any(map(_belongs_to_thread, kinds)) or _shares_between_threads(dependency.function):
            return
        from defserve.base.redaction import get_logger

        get_logger().warning(
            "%s: %s: parameter %r is a sqlite3 object of another thread: %s is sync and runs in a worker thread, %s is"
            " async and runs on the event loop\n  fix: write `def %s` (a call runs its sync code in one thread),"
            " or open it with sqlite3.connect(…, check_same_thread=False)",
            *(find_source_location(self.function), self.name, parameter, dependency.name, self.name, self.name),
        )

    def raw_parameters(self) -> list[inspect.Parameter]:
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (ValueError, TypeError):
            raise self.wrong("it has no signature to read", fix="wrap it in a def with typed parameters") from None
        is_partial = isinstance(self.function, functools.partial)
        # Keywords given to functools.partial are fixed; the peer sends the rest.
        fixed: dict[str, Any] = getattr(self.function, "keywords", {}) if is_partial else {}
        return [parameter for parameter in parameters if parameter.name not in fixed]

    def hints(self) -> dict[str, Any]:
        target = inspect.unwrap(get_body_function(self.function), stop=lambda f: hasattr(f, "__signature__"))
        try:
            return _plain_hints(target) or typing.get_type_hints(target, include_extras=True)
        except NameError:
            return self.hints_with_locals(target)
        except Exception as error:
            raise self.wrong(f"its annotations cannot be read: {error}", fix="correct the annotation") from error

    def hints_with_locals(self, target: Any) -> dict[str, Any]:
        """The hints, with local names of the enclosing function, which is still running."""
        code = getattr(target, "__code__", None)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        names: dict[str, Any] = {}
        while frame is not None:
            if code is not None and code in frame.f_code.co_consts:
                names = dict(frame.f_locals)
                break
            frame = frame.f_back
        try:
            return typing.get_type_hints(target, localns=names, include_extras=True)
        except NameError as error:
            missing = getattr(error, "name", None)
            raise self.wrong(
                f"an annotation names {missing!r}, which is not defined where the function is",
                fix=f"import or define {missing!r} at module level, above this function (not under TYPE_CHECKING)",
            ) from error

    def refuse_unnamed(self, parameter: inspect.Parameter) -> None:
        if star := _VARIADIC.get(parameter.kind):
            raise self.wrong(
                f"parameter '{star}{parameter.name}' cannot be described in JSON",
                fix="name each parameter with its type (a decorator that wraps the function needs functools.wraps)",
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise self.wrong(
                f"parameter {parameter.name!r} is positional-only, and JSON arguments have names",
                fix="remove the `/` from the signature",
            )

    def refuse_unbound_method(self, parameters: list[inspect.Parameter]) -> None:
        if not parameters or not inspect.isfunction(self.function):
            return
        first = parameters[0]
        outer = self.function.__qualname__.rpartition(".")[0]
        in_class = bool(outer) and not outer.endswith("<locals>")
        named_self = first.name in ("self", "cls")
        if (named_self and (in_class or first.annotation is empty)) or (in_class and first.annotation is empty):
            raise self.wrong(
                f"it is a method that is not bound: nobody can give {first.name!r}",
                fix=f"register the bound method: server.tool(obj.{self.name})",
            )

    def wrong(self, problem: str, *, fix: str) -> UsageError:
        return UsageError(f"{self.name or 'function'}: {problem}", where=find_source_location(self.function), fix=fix)


def _belongs_to_thread(kind: Any) -> bool:
    return isinstance(kind, type) and any(base.__module__ == "sqlite3" for base in kind.__mro__)


def _shares_between_threads(function: Any) -> bool:
    """Whether a function says `check_same_thread`: its constants hold the names of the keywords that it gives."""
    code = getattr(inspect.unwrap(get_body_function(function)), "__code__", None)
    constants = code.co_consts if code is not None else ()
    return any("check_same_thread" in names for names in constants if isinstance(names, tuple | str))


def _suggest_annotation(name: str) -> str:
    if name in ("ctx", "context"):
        return f"annotate it: `{name}: Context` (from defserve import Context)"
    return f"annotate it, for example `{name}: str`"


def _plain_hints(target: Any) -> dict[str, Any]:
    """The hints if each is a class or the global name of one; otherwise empty. Four times as fast as typing's."""
    scope: dict[str, Any] = getattr(target, "__globals__", {})
    found: dict[str, Any] = {}
    for name, hint in getattr(target, "__annotations__", {}).items():
        if hint is None or hint == "None":
            hint = NoneType
        elif isinstance(hint, str):
            hint = scope.get(hint) or getattr(builtins, hint, None)
        if not isinstance(hint, type):
            return {}
        found[name] = hint
    return found


def _ordinary(name: str, annotation: Any, default: Any, docs: ParsedDocstring) -> Parameter:
    if is_field_info(default):
        annotation = typing.Annotated[annotation, default]
        default = empty
    parameter = Parameter(name, annotation, default, docs)
    parameter.fills = type(default).__hash__ is None
    for field in filter(is_field_info, split_annotated(annotation)[1]):
        if isinstance(alias := field.validation_alias or field.alias, str):
            parameter.wire_name = alias
        if default is empty and not field.is_required():
            parameter.fills = True
            parameter.default_factory = field.default_factory
            parameter.factory_takes_data = bool(field.default_factory_takes_validated_data)
            parameter.default = empty if field.default_factory else field.default
    return parameter


# -- Reading annotations without importing pydantic: the types in them, and the descriptions beside the types.


def split_annotated(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type inside `Annotated`, and the metadata beside it."""
    if not isinstance(annotation, type) and get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def list_union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; any other annotation is its own only member."""
    if not isinstance(annotation, type) and get_origin(annotation) in (Union, UnionType):
        return get_args(annotation)
    return (annotation,)


def can_be_none(annotation: Any) -> bool:
    inner, _ = split_annotated(annotation)
    if inner in (Any, object, None, NoneType):
        return True
    options = list_union_members(inner)
    return len(options) > 1 and any(map(can_be_none, options))


def get_value_class(value: Any) -> type[Any]:
    return value.__class__


def is_field_info(metadata: Any) -> bool:
    """Whether this is what pydantic's `Field(…)` returns, or FastAPI's `Path(…)`. Then pydantic is imported already."""
    return any(
        kind.__name__ == "FieldInfo" and kind.__module__ == "pydantic.fields"
        for kind in get_value_class(metadata).__mro__
    )


def is_doc_metadata(metadata: Any) -> bool:
    """Whether this is `typing_extensions.Doc`."""
    return type(metadata).__name__ == "Doc" and isinstance(getattr(metadata, "documentation", None), str)


def find_description(metadata: tuple[Any, ...]) -> str | None:
    """The description written beside a type: `Field(description=…)`, `Doc(…)` or a bare string."""
    for item in reversed(metadata):
        if isinstance(item, str):
            return item
        if is_doc_metadata(item):
            return item.documentation
        if is_field_info(item) and item.description:
            return item.description
    return None


def format_annotation(annotation: Any) -> str:
    """The annotation as the author would write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


# -- Facts about a callable of any kind: function, method, partial, class or object with `__call__`.


# How a plain function answers, by its return annotation.
_ANSWERS: dict[Any, FunctionKind] = {
    abc.Awaitable: "async",
    abc.Coroutine: "async",
    abc.AsyncIterator: "async_generator",
    abc.AsyncGenerator: "async_generator",
    abc.AsyncIterable: "async_generator",
    abc.Iterator: "generator",
    abc.Generator: "generator",
}


_MANAGERS: dict[FunctionKind, Any] = {"generator": contextmanager, "async_generator": asynccontextmanager}


def get_function_name(function: Any) -> str:
    """The name of a function, of the function in a partial, or of a callable object's class."""
    function = behind_partials(function)
    return getattr(function, "__name__", None) or type(function).__name__


def find_source_location(function: Any) -> str:
    """`file.py:12`, relative to the working directory if below it; empty if there is no source."""
    code = getattr(inspect.unwrap(get_body_function(function)), "__code__", None)
    if code is not None:
        return format_source_location(code.co_filename, code.co_firstlineno)
    if not inspect.isclass(function):
        return ""
    try:
        return format_source_location(inspect.getfile(function), inspect.getsourcelines(function)[1])
    except (OSError, TypeError):
        return ""


def format_source_location(path: str, line: int) -> str:
    """`file.py:12`, relative to the working directory if below it."""
    return f"{path.removeprefix(os.getcwd() + os.sep)}:{line}"


def detect_function_kind(function: Any, returns: Any = None) -> FunctionKind:
    """How the function answers when it is called.

    A plain function may wrap a coroutine function (functools.wraps), or be annotated as returning an
    awaitable or an iterator. Then it answers like one.
    """
    body = get_body_function(function)
    if inspect.isasyncgenfunction(body):
        return "async_generator"
    if inspect.isgeneratorfunction(body):
        return "generator"
    if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(inspect.unwrap(body)):
        return "async"
    return _ANSWERS.get(get_origin(returns), "sync")


def read_opening(function: Any, returns: Any) -> tuple[Callable[..., Any], FunctionKind]:
    """What a call of a dependency calls, and how that answers: what yields becomes a context manager."""
    for flow, decorator in _MANAGERS.items():
        if _is_made_by(decorator, get_body_function(function)):
            return function, flow
    flow = detect_function_kind(function, returns)
    return (_MANAGERS[flow](function) if flow in _MANAGERS else function), flow


def _is_made_by(decorator: Any, function: Any) -> bool:
    """Whether a decorator of the standard library returned this function, under whatever other decorators."""
    while function is not None:
        # The function inside a decorator has one code, which is a constant of the decorator's own.
        if hasattr(function, "__code__") and function.__code__ in decorator.__code__.co_consts:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def docstring_of(function: Any) -> str | None:
    function = behind_partials(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return function.__doc__
    return get_body_function(function).__doc__ or type(function).__doc__


def get_body_function(function: Any) -> Any:
    """The function whose body runs and whose annotations count."""
    function = behind_partials(function)
    if inspect.isroutine(function):
        return getattr(function, "__func__", function)
    if inspect.isclass(function):
        own = {name for base in function.__mro__ if base is not object for name in vars(base)}
        return inspect.getattr_static(function, "__init__" if "__init__" in own else "__new__")
    return type(function).__call__


def behind_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType]
    return function  # pyright: ignore[reportUnknownVariableType]


# -- What a docstring says: the description without its parameter sections, and one text for each parameter.
#
# It reads four styles (Google, NumPy, reST, epydoc). A docstring is parsed when it is first needed, and one without a
# parameter section never imports docstring_parser (10 ms).


_PARAMETERS = r"(?:Args|Arguments|Parameters|Params|Other Parameters|Keyword Args|Keyword Arguments)"
_CUT = rf"(?:{_PARAMETERS}|Returns?|Raises|Yields?)"
_FIELDS = r"(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|yields?|ytype)"
_UNDERLINED = r"^\S.*\n-{3,}[ \t]*$"

# Style -> what begins a section on parameters, and the sections that are cut from the description.
# Strings, not compiled: compiling them all costs 3 ms, and many servers have only plain docstrings.
_STYLES: dict[str, tuple[str, str]] = {
    "GOOGLE": (
        rf"^{_PARAMETERS}:[ \t]*$",
        rf"^{_CUT}:[ \t]*\n(?:(?:[ \t]+\S.*|[ \t]*)(?:\n|\Z))*?(?=^\S|\Z)",
    ),
    "NUMPYDOC": (
        rf"^{_PARAMETERS}[ \t]*\n-{{3,}}[ \t]*$",
        rf"^{_CUT}[ \t]*\n-{{3,}}[ \t]*\n(?:.*(?:\n|\Z))*?(?={_UNDERLINED}|\Z)",
    ),
    "REST": (
        r"^:(?:param|parameter|arg|argument|key|keyword)\b",
        rf"^:{_FIELDS}\b[^:\n]*:.*(?:\n[ \t]+\S.*)*\n?",
    ),
    "EPYDOC": (
        r"^@(?:param|parameter|arg|argument|key|keyword)\b",
        rf"^@{_FIELDS}\b[^:\n]*:.*(?:\n[ \t]+\S.*)*\n?",
    ),
}


class ParsedDocstring:
    """One docstring, read on demand."""

    __slots__ = ("_source", "_text", "_description", "_parameters")

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._text: str | None = None
        self._description: str | None = None
        self._parameters: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """The whole docstring, unindented."""
        if self._text is None:
            self._text = cleandoc(self._source).strip() if self._source else ""
        return self._text

    @property
    def description(self) -> str | None:
        """The text without the sections on parameters, results and exceptions."""
        if self._description is None:
            text = self.text
            if "\n" in text:
                for _, sections in _STYLES.values():
                    text = re.sub(sections, "", text, flags=re.MULTILINE)
                text = re.sub(r"\n{3,}", "\n\n", text).strip()
            self._description = text
        return self._description or None

    def parameter(self, name: str) -> str | None:
        """What the docstring says about one parameter."""
        if self._parameters is None:
            self._parameters = _read_parameters(self.text)
        return self._parameters.get(name)


def _read_parameters(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if "\n" not in text and text[:1] not in (":", "@"):
        return found
    for style, (mark, _) in _STYLES.items():
        if not re.search(mark, text, re.MULTILINE):
            continue
        for parameter in _parse(text, style):
            description = " ".join((parameter.description or "").split())
            for name in parameter.arg_name.split(","):
                if description:
                    found.setdefault(name.strip().lstrip("*"), description)
    return found


def _parse(text: str, style: str) -> list[Any]:
    import docstring_parser

    try:
        return list(docstring_parser.parse(text, docstring_parser.DocstringStyle[style]).params)
    except docstring_parser.ParseError:
        return []


# -- Which values options may have. A wrong one would act as another, or fail only in a client.


class OptionRule:
    """What an option may be, and what to write instead. A secret is not shown."""

    __slots__ = ("fits", "fix", "is_secret")

    def __init__(self, fits: Callable[[Any], bool], fix: Callable[[str, Any], str], *, is_secret: bool = False) -> None:
        self.fits, self.fix, self.is_secret = fits, fix, is_secret


def make_choice_option_rule(*choices: Any) -> OptionRule:
    def is_choice(value: Any) -> bool:
        # By identity: 1 equals True.
        return any(value is choice or (choice.__class__ is str and value == choice) for choice in choices)

    return OptionRule(is_choice, lambda name, value: f"use one of {', '.join(map(repr, choices))}")


def is_list_like(value: Any) -> bool:
    return not isinstance(value, str) and hasattr(value, "__iter__")


TEXT_OPTION_RULE: Final = OptionRule(
    lambda value: isinstance(value, str), lambda name, value: f'write {name}="{value}"'
)
LIST_OPTION_RULE: Final = OptionRule(is_list_like, lambda name, value: f"write {name}=[{value!r}]")
TEXTS_OPTION_RULE: Final = OptionRule(
    lambda value: is_list_like(value) and all(isinstance(each, str) for each in value),
    lambda name, value: f'write {name}=["…"]' if is_list_like(value) else f"write {name}=[{value!r}]",
)
OBJECT_OPTION_RULE: Final = OptionRule(is_mapping, lambda name, value: f'write {name}={{"…": …}}')


def find_invalid_option(given: Mapping[str, Any], rules: Mapping[str, OptionRule]) -> tuple[str, str] | None:
    """The first option with a value that is not possible, as it is written, and its fix. None is what was not given."""
    for name, value in given.items():
        rule = rules.get(name) if value is not None else None
        if rule is not None and not rule.fits(value):
            return f"{name}={'…' if rule.is_secret else repr(value)}", rule.fix(name, value)
    return None
