"""The schemas as the document writes them: what a reference means, which fields an object has, what extends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from defserve.errors import UsageError
from defserve.openapi.documents.references import References
from defserve.openapi.schemas.dialect import CONSTRAINING
from defserve.wire.jsonvalue import JsonSchema, is_array, is_object

DEEPEST: Final = 24


class RawSchemas:
    """Answers questions about schemas that have not been converted."""

    def __init__(self, references: References) -> None:
        self._references = references
        # 3.0 ignores what is written beside `$ref`.
        self._takes_siblings = not str(references.root.get("openapi")).startswith("3.0")
        self._subtypes: dict[str, list[str]] | None = None

    def target(self, ref: str) -> Any:
        try:
            return self._references.at(ref)
        except UsageError:
            return {}  # one bad reference must not cost the whole document

    def combined(self, schema: JsonSchema) -> JsonSchema:
        """A schema that has keywords beside `$ref`, with `allOf` for both. Any other as it is."""
        if not self._takes_siblings or "$ref" not in schema or schema.keys().isdisjoint(CONSTRAINING):
            return schema
        parts = schema.get("allOf")
        own = {name: value for name, value in schema.items() if name != "$ref"}
        return {**own, "allOf": [{"$ref": schema["$ref"]}, *(parts if is_array(parts) else ())]}

    def followed(self, schema: Any) -> Any:
        """What a schema refers to, or itself if it is no reference."""
        *_, last = self._chain(schema)
        return last

    def says(self, schema: Any, word: str) -> bool:
        """Whether a schema, or what it refers to, says that it is `readOnly` or `writeOnly`."""
        return any(is_object(each) and each.get(word) is True for each in self._chain(schema))

    def _chain(self, schema: Any) -> Iterator[Any]:
        yield schema
        for _ in range(DEEPEST):
            if not is_object(schema) or not isinstance(ref := schema.get("$ref"), str):
                break
            schema = self.target(ref)
            yield schema

    def properties(self, schema: Any) -> dict[str, Any]:
        """The fields of an object, each without a reference."""
        found: dict[str, Any] = {}
        pending: list[Any] = [schema]
        for _ in range(DEEPEST):
            if not pending:
                break
            here = pending.pop()
            here = self.followed(self.combined(here) if is_object(here) else here)
            if is_object(here):
                pending += parts if is_array(parts := here.get("allOf")) else ()
                fields = here.get("properties")
                found |= {name: self.followed(each) for name, each in fields.items()} if is_object(fields) else {}
        return found

    def subtypes(self, ref: str) -> list[str]:
        """References to the named schemas that extend this one by `allOf`."""
        if self._subtypes is None:
            self._subtypes = {}
            components: Any = self._references.root.get("components")
            named: Any = components.get("schemas") if is_object(components) else None
            for name, schema in named.items() if is_object(named) else ():
                parts = schema.get("allOf") if is_object(schema) else None
                for part in parts if is_array(parts) else ():
                    if is_object(part) and isinstance(base := part.get("$ref"), str):
                        own = str(name).replace("~", "~0").replace("/", "~1")
                        self._subtypes.setdefault(base, []).append(f"#/components/schemas/{own}")
        return self._subtypes.get(ref, [])
