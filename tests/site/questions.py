"""What newcomers type into the search field, and the pages that answer it. The search itself is asked, in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from tests.conformance.suite_install import node

from .places import SITE

# How many of the first results may be the page.
TOP: Final = 3
# How many questions have to lead to their page.
ENOUGH: Final = 68

# Question to pages, any of which will do.
QUESTIONS: Final = {
    "first server": "tutorial",
    "install": "tutorial",
    "how do I add a tool": "tools",
    "optional arguments": "tools",
    "return an image": "tools cookbook/picture",
    "database connection in a tool": "tools cookbook/sqlite",
    "async or threads": "tools",
    "serve files as resources": "resources-and-prompts",
    "prompt templates": "resources-and-prompts",
    "ask the user a question": "elicitation",
    "elicitation": "elicitation",
    "sampling": "elicitation",
    "long running job": "background-tasks",
    "show progress": "tools cookbook/long_import",
    "keep data between calls": "state",
    "undo": "state cookbook/undo",
    "send notifications to clients": "events",
    "html view": "apps",
    "too many tools": "search",
    "combine two servers": "mounting kernel",
    "rename a tool": "transforms",
    "import swagger": "openapi",
    "mount in fastapi": "transports",
    "fastapi": "fastapi",
    "migrate from fastmcp": "migrating",
    "reload on change": "dev-server",
    "write a test": "testing",
    "pytest fixture": "testing",
    "inspector": "inspector",
    "claude desktop": "packaging",
    "publish to pypi": "packaging",
    "lint my tools": "linting",
    "docker": "deployment cookbook/container",
    "nginx": "deployment cookbook/nginx",
    "prometheus metrics": "operations",
    "health check": "operations",
    "api key": "authentication",
    "oauth login": "authentication cookbook/oauth",
    "confirm dangerous tool": "security",
    "run shell commands safely": "security cookbook/shell",
    "timeout": "limits-and-errors",
    "error message": "troubleshooting",
    "which clients work": "compatibility",
    "run many servers behind one": "kernel",
    "getting started": "tutorial",
    "hello world example": "tutorial",
    "structured output": "tools",
    "raise an error to the model": "tools limits-and-errors",
    "pydantic model arguments": "tools",
    "stream partial results": "tools",
    "cancel a running call": "background-tasks tools limits-and-errors",
    "sqlite": "state cookbook/sqlite custom-store",
    "redis": "state deployment",
    "rate limit": "limits-and-errors authentication security",
    "cors": "transports",
    "https certificate": "deployment transports",
    "run behind a proxy": "deployment cookbook/nginx",
    "kubernetes": "deployment",
    "logging": "operations",
    "audit log": "security",
    "jwt": "authentication",
    "per user data": "cookbook/per_user",
    "websocket": "transports",
    "vs code": "packaging",
    "skills": "skills",
    "sandbox": "code-mode security cookbook/code_runner",
    "memory server": "cookbook/memory hooks",
    "mock the clock in tests": "cookbook/clock testing",
    "unit test without network": "testing",
    "multiple workers": "deployment transports",
    "difference to fastmcp": "comparison migration",
    "is it fast": "benchmarks comparison",
}


def missed(site: Path = SITE) -> dict[str, list[str]]:
    """The questions whose pages are not among the first results, with those that are."""
    found = {question: results[:TOP] for question, results in asked(list(QUESTIONS), site).items()}
    return {question: pages for question, pages in found.items() if not set(QUESTIONS[question].split()) & set(pages)}


def asked(questions: list[str], site: Path = SITE) -> dict[str, list[str]]:
    """The pages that the search of a built site gives, each once, the best first."""
    command = [str(node()), str(Path(__file__).with_name("search.mjs")), str(site)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return {
        question: list(dict.fromkeys(each.partition("#")[0].removesuffix(".html") for each in addresses))
        for question, addresses in found.items()
    }
