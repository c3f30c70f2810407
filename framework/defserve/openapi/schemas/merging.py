"""`allOf` of objects as one object. Models fill that in without mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from defserve.wire.jsonvalue import JsonSchema, as_list, is_object

_SAID: Final = ("description", "default", "title")


def merged(parts: Sequence[JsonSchema]) -> JsonSchema | None:
    """One schema that takes what all parts take; None if they cannot be written as one."""
    made: JsonSchema = {}
    for part in parts:
        if "$ref" in part or "allOf" in part:
            return None
        for name, value in part.items():
            if name == "properties" and is_object(known := made.get(name)):
                made[name] = {**known, **{key: _narrower(known.get(key), given) for key, given in value.items()}}
            elif name == "required" and name in made:
                made[name] = [*dict.fromkeys((*made[name], *value))]
            elif name == "additionalProperties":
                # Each part alone may forbid what the others add: together they would take nothing.
                if is_object(value):
                    made[name] = value
            elif name == "type" and name in made:
                common = [kind for kind in as_list(made[name]) if kind in as_list(value)]
                if not common:
                    return None
                made[name] = common if len(common) > 1 else common[0]
            elif name in made and name not in _SAID and made[name] != value:
                return None
            else:
                made[name] = value
    return made


def _narrower(known: Any, given: Any) -> Any:
    """A property that two parts describe: one object of both, or else the later one refines the other."""
    if not is_object(known) or known == given or "$ref" in known or "$ref" in given:
        return given
    return merged((known, given)) or {**known, **given}
