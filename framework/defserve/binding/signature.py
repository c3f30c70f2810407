"""A function's signature, read once at registration: which parameters come from JSON, which are injected.

A signature that cannot work raises UsageError with file:line, function, parameter, reason and fix.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import typing
from collections.abc import Callable
from types import NoneType
from typing import Any

from defserve.binding.annotations import described, is_field, members, peel, spelled
from defserve.binding.docs import Docs
from defserve.binding.functions import body_of, docstring_of, flow_of, name_of, where
from defserve.binding.injection import Dependency, Depends, Flow, InjectedParameter, Provider
from defserve.errors import UsageError

empty: Any = inspect.Parameter.empty

FindProvider = Callable[[Any], Provider | None]

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Parameter:
    """A parameter that comes from the peer.

    `wire_name` is its name in JSON: an alias, or its own. `default` is `empty` when it is required. `fills`: validation
    puts in the default, because the function's own is a `Field(…)` or a mutable value that a call could change
    (pydantic copies it). `default_factory` then makes it, if there is one.
    """

    __slots__ = ("name", "annotation", "default", "wire_name", "fills", "default_factory", "_docs")

    def __init__(self, name: str, annotation: Any, default: Any = empty, docs: Docs | None = None) -> None:
        self.name, self.annotation, self.default, self._docs = name, annotation, default, docs
        self.wire_name, self.fills = name, False
        self.default_factory: Callable[[], Any] | None = None

    @property
    def required(self) -> bool:
        return self.default is empty and self.default_factory is None

    @property
    def description(self) -> str | None:
        """The description in the annotation, or else in the docstring."""
        _, metadata = peel(self.annotation)
        return described(metadata) or (self._docs.parameter(self.name) if self._docs else None)

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {spelled(self.annotation)})"


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
        flow: Flow,
        docs: Docs,
        takes_rest: bool = False,
    ) -> None:
        self.function, self.name, self.docs = function, name, docs
        self.parameters, self.injected, self.takes_rest = parameters, injected, takes_rest
        self.returns = returns
        self.flow: Flow = flow

    @property
    def where(self) -> str:
        return where(self.function)

    @property
    def description(self) -> str | None:
        return self.docs.description


def read(function: Callable[..., Any], find_provider: FindProvider, *, explicit: bool = False) -> Signature:
    """Read a function's signature. `find_provider` knows the injectable annotations.

    `explicit`: the author's own schema describes the arguments. Then parameters need no types, and `**kwargs` may take
    the rest. Raises UsageError for a function that could not be called from JSON.
    """
    return _Reader(function, find_provider, explicit=explicit).read()


def read_dependency(function: Callable[..., Any], find_provider: FindProvider) -> Dependency:
    """Read a function that stands in for a dependency. Raises UsageError for one that cannot be called as such."""
    return _Reader(function, find_provider).dependency(use_cache=True)


class _Reader:
    """One function on its way to a Signature. `chain` holds the dependencies that led here."""

    def __init__(
        self, function: Any, find_provider: FindProvider, chain: tuple[Any, ...] = (), *, explicit: bool = False
    ) -> None:
        self.function, self.name, self.find_provider = function, name_of(function), find_provider
        self.chain, self.explicit = chain, explicit

    def read(self) -> Signature:
        if self.name in ("", "<lambda>"):
            raise self.wrong("a lambda has no name a peer could call", fix="write a def")
        if isinstance(self.function, classmethod):
            raise self.wrong("it is an unbound classmethod", fix=f"register Class.{self.name} after the class body")
        raw = self.raw_parameters()
        self.refuse_unbound_method(raw)
        hints = self.hints()
        docs = Docs(docstring_of(self.function))
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
                raise self.wrong(f"parameter {parameter.name!r} has no type", fix=_typed(parameter.name))
            else:
                parameters.append(_ordinary(parameter.name, annotation, parameter.default, docs))
        returns = self.function if inspect.isclass(self.function) else hints.get("return", empty)
        return Signature(
            self.function,
            self.name,
            tuple(parameters),
            tuple(injected),
            returns,
            flow_of(self.function, returns),
            docs,
            takes_rest=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in raw),
        )

    def dependency(self, use_cache: bool) -> Dependency:
        """The plan of this function as a dependency of another."""
        hints = self.hints()
        direct: list[tuple[str, Provider]] = []
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
        flow = flow_of(self.function, hints.get("return"))
        return Dependency(self.function, flow, use_cache, tuple(direct), tuple(needs))

    def provider(self, parameter: inspect.Parameter, annotation: Any) -> Provider | Dependency | None:
        inner, metadata = peel(annotation)
        for item in (*metadata, parameter.default):
            if isinstance(item, Depends):
                return self.depends(item, inner, parameter.name)
        if annotation is empty:
            return None
        try:
            found = self.find_provider(annotation)
            if found is None and len(options := members(inner)) == 2 and type(None) in options:
                found = self.find_provider(options[options[0] is type(None)])
        except UsageError as error:
            raise self.wrong(f"parameter {parameter.name!r}: {error.problem}", fix=error.fix) from None
        return found

    def depends(self, depends: Depends, annotated: Any, parameter: str) -> Dependency:
        function = depends.function or annotated
        if not callable(function):
            raise self.wrong(
                f"parameter {parameter!r} depends on {function!r}, which is not callable",
                fix="write Depends(function), without calling the function",
            )
        chain = (*self.chain, self.function)
        if function in chain:
            names = " → ".join(name_of(link) for link in (*chain[chain.index(function) :], function))
            raise self.wrong(f"dependencies form a circle: {names}", fix="let one of them do without the other")
        return _Reader(function, self.find_provider, chain).dependency(depends.use_cache)

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
        target = inspect.unwrap(body_of(self.function), stop=lambda f: hasattr(f, "__signature__"))
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
        return UsageError(f"{self.name or 'function'}: {problem}", where=where(self.function), fix=fix)


def _typed(name: str) -> str:
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


def _ordinary(name: str, annotation: Any, default: Any, docs: Docs) -> Parameter:
    if is_field(default):
        annotation = typing.Annotated[annotation, default]
        default = empty
    parameter = Parameter(name, annotation, default, docs)
    parameter.fills = type(default).__hash__ is None
    for field in filter(is_field, peel(annotation)[1]):
        if isinstance(alias := field.validation_alias or field.alias, str):
            parameter.wire_name = alias
        if default is empty and not field.is_required():
            parameter.fills = True
            parameter.default_factory = field.default_factory
            parameter.default = empty if field.default_factory else field.default
    return parameter
