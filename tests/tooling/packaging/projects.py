"""A small project to package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "weather-mcp"
version = "1.2.0"
description = "The weather"
readme = "README.md"
requires-python = ">=3.11"
authors = [{ name = "Ann" }]
urls = { Repository = "https://github.com/ann/weather-mcp" }

[project.scripts]
weather-mcp = "weather_mcp:server.main"

[project.entry-points."defserve.servers"]
weather-mcp = "weather_mcp:server"

[tool.hatch.build.targets.wheel]
packages = ["src/weather_mcp"]
"""
SERVER = '''
from defserve import Server

server = Server("weather", "1.2.0")

@server.tool
def forecast(city: str, days: int = 1) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return "rain"
'''
README = "# Weather\n\n<!-- mcp-name: io.github.ann/weather-mcp -->\n"


def write_project(folder: Path) -> Path:
    write(folder, {"pyproject.toml": PYPROJECT, "README.md": README, "src/weather_mcp/__init__.py": SERVER})
    return folder


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def change(path: Path, **members: Any) -> None:
    """Change members of a JSON document."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))
