"""The JSON Schema of mgp.toml, for editors. It comes from the same table as the reader."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

from defserve.kernel.config.settings import FILE_SETTINGS, SERVER_SETTINGS

NAME: Final = "mgp.schema.json"


def schema() -> dict[str, Any]:
    """The schema, made from the table of settings."""
    whole = FILE_SETTINGS.schema()
    servers = {"description": SERVER_SETTINGS.about, "type": "array", "items": SERVER_SETTINGS.schema()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "mgp.toml",
        **whole,
        "properties": {**whole["properties"], "servers": servers},
    }


def read_shipped_schema() -> str:
    """The schema as the file that comes with the package."""
    return files("defserve.kernel.config").joinpath(NAME).read_text(encoding="utf-8")


def format_schema() -> str:
    """The text that the shipped file must have."""
    return json.dumps(schema(), indent=2) + "\n"
