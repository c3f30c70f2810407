"""Frozen dataclasses that cost a start nothing: their methods are written once, here.

`@dataclass` writes six methods for each class as text and compiles them. For the eight classes that every server
imports that is a tenth of the time until its first answer.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from inspect import Signature


class _SignatureOf:
    """What `inspect.signature` finds: the fields."""

    def __get__(self, made: object, cls: Any) -> Signature:
        from inspect import Parameter, Signature

        kind, absent = Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty
        parameters = [
            Parameter(one.name, kind, default=absent if one.default is MISSING else one.default, annotation=one.type)
            for one in fields(cls)
        ]
        return Signature(parameters, return_annotation=None)


@dataclass_transform(frozen_default=True)
class FrozenDataclass:
    """The base of a frozen dataclass, without `@dataclass`. `fields` and `replace` work as for any other.

    No default may be mutable. A subclass of a subclass is one, too.
    """

    __signature__ = _SignatureOf()
    __match_args__: tuple[str, ...]
    _defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        made: Any = dataclass(init=False, repr=False, eq=False)(cls)
        cls._defaults = {one.name: one.default for one in fields(made) if one.default is not MISSING}

    def __init__(self, *given: Any, **named: Any) -> None:
        names = self.__match_args__
        values = {**self._defaults, **dict(zip(names, given, strict=False)), **named}
        is_clear = len(given) <= len(names) and named.keys().isdisjoint(names[: len(given)])
        if not is_clear or values.keys() != {*names}:
            from inspect import signature

            signature(type(self)).bind(*given, **named)  # raises what is wrong, in Python's words
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        return (
            f"{type(self).__qualname__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.__match_args__)})"
        )

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self.__match_args__))
