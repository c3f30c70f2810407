"""What people type into the search field, and the pages that answer it. The search itself is asked, in Node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.conformance.suite_install import node

from .places import SITE

# Question to pages, any of which will do. By newcomers, who look at the first results.
BY_NEWCOMERS: Final = {
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


# Written by somebody who knew the subject and not the pages; the first result has to be the one.
BY_USERS: Final = {
    "how to return json from a tool": "tools learn/results-and-errors",
    "connect to cursor": "packaging learn/first-server compatibility",
    "tool description from docstring": "tools learn/tools",
    "limit who can call a tool": "permissions learn/permissions authentication",
    "rename parameters of an imported tool": "transforms",
    "google login": "authentication learn/authentication cookbook/oauth",
    "my tool takes too long": "background-tasks limits-and-errors tools troubleshooting",
    "progress bar": "context-and-dependencies tools learn/context-and-dependencies cookbook/long_import",
    "save state per session": "state cookbook/per_user",
    "server crashes on start": "troubleshooting",
    "port already in use": "troubleshooting transports",
    "run two servers on one port": "kernel mounting cookbook/kernel",
    "call a tool from python": "client",
    "use with langchain": "compatibility client",
    "streamable http vs sse": "transports",
    "debug messages between client and server": "inspector",
    "see the raw json-rpc traffic": "inspector",
    "convert rest api to mcp": "openapi cookbook/openapi fastapi",
    "existing fastapi app": "fastapi cookbook/fastapi_app transports",
    "github oauth": "authentication learn/authentication cookbook/oauth",
    "restrict file access to a folder": "security cookbook/files",
    "prevent ssrf": "security security-model",
    "prompt injection": "security security-model",
    "where do I put secrets": "deployment packaging authentication",
    "open telemetry": "operations",
    "grafana dashboard": "operations",
    "scale to several machines": "deployment",
    "aws lambda": "cookbook/serverless deployment",
    "systemd service": "deployment learn/deployment",
    "benchmarks against fastmcp": "benchmarks comparison",
    "upgrade from mcp sdk 1": "migrating migration",
    "what is MGP": "protocols",
    "mcpl hooks": "hooks protocols",
    "slack bot": "channels cookbook/chat",
    "human has to approve an action": "cookbook/approvals cookbook/confirm security topics elicitation",
    "autocomplete arguments": "resources-and-prompts learn/resources-and-prompts",
    "binary files": "resources-and-prompts tools learn/resources-and-prompts",
    "subscribe to resource changes": "resources-and-prompts events",
    "validation error": "limits-and-errors tools troubleshooting learn/tools learn/results-and-errors",
    "enum parameter": "tools learn/tools",
    "date and decimal types": "tools learn/tools",
    "test with fake user answers": "testing learn/testing learn/elicitation",
    "snapshot test of tool schemas": "testing",
    "github actions ci": "testing project-templates linting packaging",
    "create new project": "project-templates",
    "publish to mcp registry": "packaging",
    "tab completion in bash": "cli",
    "watch files and restart": "dev-server",
    "token usage of tool definitions": "linting search inspector",
    "custom middleware": "mounting",
}


class QuestionSet(NamedTuple):
    """Questions, how many of the first results may be the page, and how many questions have to lead to theirs."""

    questions: Mapping[str, str]
    top: int
    enough: int


SETS: Final = (QuestionSet(BY_NEWCOMERS, top=3, enough=70), QuestionSet(BY_USERS, top=1, enough=45))


def missed(asked_for: QuestionSet, site: Path = SITE) -> dict[str, list[str]]:
    """The questions whose pages are not among the first results, with those that are."""
    wanted = asked_for.questions
    found = {question: results[: asked_for.top] for question, results in asked(list(wanted), site).items()}
    return {question: pages for question, pages in found.items() if not set(wanted[question].split()) & set(pages)}


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
