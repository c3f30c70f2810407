"""What commands show of a server: content blocks, files saved from it, signatures, and checked settings files.

Pictures, sounds and other bytes are saved to new files, and their names are printed. No file is ever overwritten, and
no name leaves the folder: servers choose only words of it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from defserve.cli.exits import EXIT_FAILURE, EXIT_OK
from defserve.cli.screen import show_stdout
from defserve.cli.screen_blocks import (
    DocumentBlock,
    JsonBlock,
    RecordsBlock,
    ScreenBlock,
    StyledLine,
    StyledText,
    get_plain_text,
    is_tabular,
)
from defserve.core.json_values import is_array, is_object, read_required_names
from defserve.errors import UsageError

MEDIA: Final = ("image", "audio")
MARKDOWN: Final = "text/markdown"
MAX_LOOKED_AT: Final = 20_000
# A heading between empty lines, and the line below the head of a table.
MARKDOWN_MARKS: Final = (
    re.compile(r"(?:\A|\n[ \t]*\n)#{1,6} [^\n]+(?:\n[ \t]*\n|\n?\Z)"),
    re.compile(r"^\|?[^|\n]+\|[^\n]*\n\|?[ ]*:?-{3,}:?[ ]*\|[-:| ]*$", re.MULTILINE),
)
FENCE: Final = re.compile(r"^```", re.MULTILINE)
LIST_ITEM: Final = re.compile(r"^(?:[-*+]|\d{1,3}\.) \S", re.MULTILINE)
INLINE_MARK: Final = re.compile(r"\*\*[^\s*][^*\n]*\*\*|\[[^\]\n]+\]\(\S+\)")
TYPES: Final = frozenset(("text", "resource", "resource_link", *MEDIA))


def is_content_list(value: Any) -> bool:
    """Whether a value is a list of content blocks."""
    return is_array(value) and bool(value) and all(is_object(each) and each.get("type") in TYPES for each in value)


def render_content(blocks: Iterable[Any], name: str, folder: str = ".") -> Iterator[ScreenBlock]:
    """Content blocks, in their order. What is saved is named after `name` or its own URI."""
    for block in blocks:
        kind = block.get("type") if is_object(block) else None
        if kind == "text":
            yield render_text(str(block.get("text", "")))
        elif kind in MEDIA:
            yield save_base64(block.get("data"), str(block.get("mimeType", "")), name, folder)
        elif kind == "resource" and is_object(resource := block.get("resource")):
            yield render_resource(resource, folder)
        elif kind == "resource_link":
            title = str(block.get("title") or block.get("name") or "")
            yield StyledLine((str(block.get("uri", "")), "title"), f"  {title}" if title else "")
        else:
            yield StyledLine(f"(content of an unknown type: {kind})")


def render_value(value: Any) -> ScreenBlock:
    """What a tool gives back: a text, a table of objects, or any other JSON."""
    if isinstance(value, str):
        return render_text(value)
    return RecordsBlock(value) if is_tabular(value) else JsonBlock(value)


def render_text(text: str) -> DocumentBlock:
    """A text without a media type. What is clearly Markdown is drawn as such."""
    return DocumentBlock(text, MARKDOWN if looks_like_markdown(text) else "text/plain")


def looks_like_markdown(text: str) -> bool:
    """Whether a text has marks that nobody writes by chance. One that only might be Markdown keeps its lines."""
    begin = text[:MAX_LOOKED_AT]
    return (
        any(mark.search(begin) for mark in MARKDOWN_MARKS)
        or len(FENCE.findall(begin)) >= 2
        or (LIST_ITEM.search(begin) is not None and INLINE_MARK.search(begin) is not None)
    )


def list_media_blocks(result: Mapping[str, Any]) -> list[Any]:
    """The blocks of a result that hold bytes: a value that is printed instead of the content does not show them."""
    content: Any = result.get("content")
    return [block for block in content if is_object(block) and _has_bytes(block)] if is_array(content) else []


def render_resource(resource: Mapping[str, Any], folder: str = ".") -> ScreenBlock:
    """The content of a resource."""
    kind = str(resource.get("mimeType", ""))
    if "blob" in resource:
        return save_base64(resource["blob"], kind, str(resource.get("uri", "")), folder)
    return DocumentBlock(str(resource.get("text", "")), kind)


def save_base64(data: Any, kind: str, name: str, folder: str) -> StyledLine:
    """Save base64 and say where it is."""
    held = decode_base64(data)
    if held is None:
        return StyledLine(("broken:", "error"), f" {kind or 'content'} that is not base64")
    path = save(held, name, kind, folder)
    return StyledLine("saved ", (str(path), "title"), f" ({kind or 'bytes'}, {len(held):,} bytes)")


def decode_base64(data: Any) -> bytes | None:
    try:
        return base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError):
        return None


def _has_bytes(block: Mapping[str, Any]) -> bool:
    resource = block.get("resource")
    return block.get("type") in MEDIA or (is_object(resource) and "blob" in resource)


# -- Bytes of a server, saved to a new file; and how a file that cannot be written is told.


ENDINGS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "video/mp4": ".mp4",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/csv": ".csv",
}
MAX_STEM_LENGTH: Final = 60
WRITABLE_FOLDER_FIX: Final = "add --output DIR with a folder that you can write"


@contextmanager
def explain_write_errors(fix: str) -> Generator[None]:
    """A file that the block cannot write is told with `fix`, as a UsageError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise UsageError(f"cannot write {error.filename}: {error.strerror}", fix=fix) from None


def save(data: bytes, name: str, kind: str, folder: str = ".") -> Path:
    """Write to a new file that is named after `name`, with a number if there is such a file. Raises UsageError.

    The folder is made if it is not there."""
    stem, ending = file_name(name, kind)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}", fix=WRITABLE_FOLDER_FIX) from None
    for number in count(1):
        path = Path(folder, f"{stem}{f'-{number}' if number > 1 else ''}{ending}")
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                file.write(data)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", fix=WRITABLE_FOLDER_FIX) from None
    raise AssertionError("unreachable")


def file_name(name: str, kind: str) -> tuple[str, str]:
    """A stem without anything that means something to a file system, and the ending of the media type."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2].partition("?")[0]).strip("-")
    ending = ENDINGS.get(kind.partition(";")[0].strip().lower(), ".bin")
    # `chart.png` of a URI ends with what the type adds.
    return stem.removesuffix(ending.replace(".", "-"))[:MAX_STEM_LENGTH] or "content", ending


# -- Tools, resources and prompts in one line each, written like the signature of a function.


DEFINITIONS: Final = "#/$defs/"
WORD: Final = re.compile(r"[\w.-]{1,100}", re.ASCII)
TOKEN_COST_NOTES: Final = {False: "in every request", True: "if all are listed; search may list fewer"}
"""When a list of tools costs its tokens, by whether the tools are searched."""


def format_item_lines(item: dict[str, Any], *more: StyledText) -> Iterator[StyledLine]:
    """An item for a terminal: its signature, and the first line of its description."""
    yield StyledLine("  ", *signature_parts(item), *more, hang=4)
    if about := get_first_description_line(item):
        yield StyledLine(f"      {about}", hang=0)


def format_signature(item: dict[str, Any]) -> str:
    """`add(a: integer, b: integer = 1)` for a tool, `hi(name, style?)` for a prompt, the URI of a resource."""
    return "".join(map(get_plain_text, signature_parts(item)))


def signature_parts(item: dict[str, Any]) -> list[StyledText]:
    """The same with styles."""
    if "uri" in item or "uriTemplate" in item:
        title = item.get("title") or item.get("name")
        return [(str(item.get("uri") or item.get("uriTemplate")), "title"), f"  {title}" if title else ""]
    given = _parameters(item["inputSchema"]) if "inputSchema" in item else _arguments(item.get("arguments") or [])
    parts: list[StyledText] = [(str(item["name"]), "title"), "("]
    for number, parameter in enumerate(given):
        parts += [", " if number else "", *parameter]
    return [*parts, ")"]


def _arguments(arguments: list[dict[str, Any]]) -> Iterator[list[StyledText]]:
    for argument in arguments:
        yield [str(argument["name"]), "" if argument.get("required") else ("?", "faint")]


def _parameters(schema: dict[str, Any]) -> Iterator[list[StyledText]]:
    required = read_required_names(schema)
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, property in properties.items():
        shown: list[StyledText] = [f"{name}: ", (type_name(property), "type")]
        if is_object(property) and "default" in property:
            yield [*shown, " = ", (json.dumps(property["default"], ensure_ascii=False), "default")]
        else:
            yield shown if name in required else [*shown, " = …"]


def format_object_example(name: str, schema: Any, root: dict[str, Any]) -> str:
    """`place:='{"street": …}'`, with the fields that an object needs; empty for anything else."""
    found = schema if is_object(schema) else {}
    if str(found.get("$ref")).startswith(DEFINITIONS):
        defined = root.get("$defs")
        found = defined.get(str(found["$ref"])[len(DEFINITIONS) :]) if is_object(defined) else None
    required = found.get("required") if is_object(found) else None
    fields = [str(field) for field in required] if is_array(required) else []
    # People copy the line into a shell, and the names are the server's.
    if not fields or not all(WORD.fullmatch(word) for word in (name, *fields)):
        return ""
    inside = ", ".join(f'"{field}": …' for field in fields)
    return f"{name}:='{{{inside}}}'"


def type_name(schema: Any) -> str:
    """A schema in a word or two."""
    known: dict[str, Any] = schema if is_object(schema) else {}
    if is_array(known.get("enum")):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in known["enum"])
    if "$ref" in known:
        return str(known["$ref"]).rpartition("/")[2]
    if known.get("type") == "array":
        item = type_name(known.get("items"))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if is_array(known.get("type")):
        return " | ".join(map(str, known["type"]))
    members: Any = known.get("anyOf") or known.get("oneOf")
    members = members if is_array(members) else []
    return " | ".join(map(type_name, members)) or str(known.get("type", "any"))


def get_first_description_line(item: Mapping[str, Any]) -> str:
    return str(item.get("description") or "").strip().partition("\n")[0]


# -- A file that is only checked, as JSON: `kernel --check --json`, `gateway --check --json`.


def print_file_check(options: Namespace, file: str, check: Callable[[], dict[str, Any]]) -> int:
    """Print whether a file is valid: with what `check` tells of it, or the problem that it raises. The exit code.

    Raises UsageError if the options do not ask for a check.
    """
    if not options.check:
        raise UsageError("--json goes with --check", fix="add --check, or leave --json out")
    try:
        told: dict[str, Any] = {"file": file, "valid": True, **check()}
    except UsageError as error:
        told = {"file": file, "valid": False, "problem": error.problem, "where": error.where, "fix": error.fix}
    show_stdout(JsonBlock(told))
    return EXIT_OK if told["valid"] else EXIT_FAILURE
