"""What newcomers type into the search field, and the page that answers it."""

from __future__ import annotations

from typing import Final

# How many of the first results may be the page.
TOP: Final = 3
# How many questions have to lead to their page.
ENOUGH: Final = 42

QUESTIONS: Final = {
    "first server": "tutorial",
    "install": "tutorial",
    "how do I add a tool": "tools",
    "optional arguments": "tools",
    "return an image": "tools",
    "database connection in a tool": "tools",
    "async or threads": "tools",
    "serve files as resources": "resources-and-prompts",
    "prompt templates": "resources-and-prompts",
    "ask the user a question": "asking",
    "elicitation": "asking",
    "sampling": "asking",
    "long running job": "tasks",
    "progress": "tools",
    "keep data between calls": "state",
    "undo": "state",
    "send notifications to clients": "events",
    "html view": "apps",
    "too many tools": "search",
    "combine two servers": "composing",
    "rename a tool": "transforms",
    "import swagger": "openapi",
    "mount in fastapi": "serving",
    "fastapi": "fastapi",
    "migrate from fastmcp": "migrating",
    "reload on change": "developing",
    "write a test": "testing",
    "pytest fixture": "testing",
    "inspector": "inspector",
    "claude desktop": "shipping",
    "publish to pypi": "shipping",
    "lint my tools": "checking",
    "docker": "deployment",
    "nginx": "deployment",
    "prometheus metrics": "operations",
    "health check": "operations",
    "api key": "auth",
    "oauth login": "auth",
    "confirm dangerous tool": "security",
    "run shell commands safely": "security",
    "timeout": "limits-and-errors",
    "error message": "troubleshooting",
    "which clients work": "compatibility",
    "run many servers behind one": "kernel",
}
