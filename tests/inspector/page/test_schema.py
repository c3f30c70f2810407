"""How the page reads a schema for its forms, run by Node where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from defserve import inspector

NODE = shutil.which("node")
FORM = Path(inspector.__file__).parent / "page" / "parts" / "form"
SCRIPT = """
import { initial, kindOf, resolve, typeWords } from "./schema.mjs";
const given = JSON.parse(process.argv[1]).map(each => resolve(each, each));
console.log(JSON.stringify(given.map(each => [kindOf(each, each), typeWords(each, each), initial(each, each)])));
"""


def read_schemas(folder: Path, *schemas: object) -> list[list[Any]]:
    """The kind of field that each schema gets, its type in words, and what it starts with."""
    text = (FORM / "schema.js").read_text(encoding="utf-8")
    (folder / "schema.mjs").write_text(text, encoding="utf-8")
    command = [str(NODE), "--input-type=module", "-e", SCRIPT, json.dumps(schemas)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=50)
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_a_dictionary_gets_fields_to_add_members(tmp_path: Path):
    free = {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    named = {"type": "object", "properties": {"a": {}}}
    bare = {"type": "object", "additionalProperties": False}
    kinds = [kind for kind, *_ in read_schemas(tmp_path, free, {"type": "object"}, closed, named, bare)]
    assert kinds == ["map", "map", "object", "object", "map"]


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_a_list_says_of_what_in_the_plural(tmp_path: Path):
    def listed(items: object) -> dict[str, object]:
        return {"type": "array", "items": items}

    items = (
        {"type": "integer"},
        {"type": "object"},
        {"enum": ["a", "b"]},
        listed({"type": "number"}),
        {"title": "Address"},
    )
    assert [words for _, words, _ in read_schemas(tmp_path, *map(listed, items))] == [
        "list of integers",
        "list of objects",
        "list of choices",
        "list of lists of numbers",
        "list of Address",
    ]


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_names_that_every_object_has_mean_nothing_of_their_own(tmp_path: Path):
    formats = [{"type": "string", "format": name} for name in ("constructor", "__proto__", "toString")]
    named: Any = {"type": "object", "properties": {"__proto__": {"default": {"a": 1}}, "constructor": {"const": 5}}}
    found = read_schemas(tmp_path, *formats, {"$ref": "#/constructor/prototype"}, named)
    assert [kind for kind, *_ in found] == ["text", "text", "text", "any", "object"]
    assert [words for _, words, _ in found][:3] == ["constructor", "__proto__", "toString"]
    assert found[-1][2] == {"__proto__": {"a": 1}, "constructor": 5}


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_only_what_is_decoded_as_base64_is_a_file(tmp_path: Path):
    files = [{"type": "string", "contentEncoding": "base64"}, {"type": "string", "format": "base64"}]
    found = read_schemas(tmp_path, *files, {"type": "string", "format": "binary"})
    assert [kind for kind, *_ in found] == ["file", "file", "text"]
