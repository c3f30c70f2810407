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
ENOUGH: Final = 70

# Question to pages, any of which will do.
QUESTIONS: Final = {
    "first server": "learn/first-server",
    "install": "learn/first-server",
    "how do I add a tool": "tools learn/tools",
    "optional arguments": "tools learn/tools",
    "return an image": "tools cookbook/picture learn/results-and-errors",
    "database connection in a tool": "tools context-and-dependencies cookbook/sqlite learn/context-and-dependencies",
    "async or threads": "tools learn/tools",
    "serve files as resources": "resources-and-prompts learn/resources-and-prompts",
    "prompt templates": "resources-and-prompts learn/resources-and-prompts",
    "ask the user a question": "elicitation learn/elicitation",
    "elicitation": "elicitation learn/elicitation",
    "sampling": "elicitation learn/elicitation",
    "long running job": "background-tasks",
    "show progress": "tools context-and-dependencies cookbook/long_import learn/context-and-dependencies",
    "keep data between calls": "state",
    "undo": "state cookbook/undo",
    "send notifications to clients": "events",
    "html view": "apps",
    "too many tools": "search",
    "combine two servers": "mounting kernel cookbook/kernel",
    "rename a tool": "transforms",
    "import swagger": "openapi",
    "mount in fastapi": "transports",
    "fastapi": "fastapi",
    "migrate from fastmcp": "migrating",
    "reload on change": "dev-server",
    "write a test": "testing learn/testing",
    "pytest fixture": "testing learn/testing",
    "inspector": "inspector",
    "claude desktop": "packaging",
    "publish to pypi": "packaging",
    "lint my tools": "linting",
    "docker": "deployment cookbook/container learn/deployment",
    "nginx": "deployment cookbook/nginx learn/deployment",
    "prometheus metrics": "operations",
    "health check": "operations deployment learn/deployment",
    "api key": "authentication learn/authentication",
    "oauth login": "authentication cookbook/oauth learn/authentication",
    "confirm dangerous tool": "security permissions learn/permissions",
    "dependency injection": "context-and-dependencies learn/context-and-dependencies",
    "who may call a tool": "permissions learn/permissions authentication",
    "run shell commands safely": "security cookbook/shell",
    "timeout": "limits-and-errors",
    "error message": "troubleshooting",
    "which clients work": "compatibility",
    "run many servers behind one": "kernel",
    "getting started": "learn/first-server",
    "hello world example": "learn/first-server",
    "structured output": "tools learn/results-and-errors",
    "raise an error to the model": "tools limits-and-errors learn/results-and-errors",
    "pydantic model arguments": "tools learn/tools",
    "stream partial results": "tools",
    "cancel a running call": "background-tasks tools limits-and-errors",
    "sqlite": "state cookbook/sqlite custom-store",
    "redis": "state deployment learn/deployment",
    "rate limit": "limits-and-errors authentication security learn/authentication",
    "cors": "transports",
    "https certificate": "deployment transports learn/deployment",
    "run behind a proxy": "deployment cookbook/nginx learn/deployment",
    "kubernetes": "deployment",
    "logging": "operations",
    "audit log": "security",
    "jwt": "authentication learn/authentication",
    "per user data": "cookbook/per_user",
    "websocket": "transports",
    "vs code": "packaging",
    "skills": "skills",
    "sandbox": "code-mode security cookbook/code_runner",
    "memory server": "cookbook/memory hooks",
    "mock the clock in tests": "cookbook/clock testing learn/testing",
    "unit test without network": "testing learn/testing",
    "multiple workers": "deployment transports learn/deployment",
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
