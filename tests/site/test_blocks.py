"""What the pages show besides Python can be typed or pasted too: commands with their options, and settings."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import yaml

from defserve.cli import COMMANDS
from defserve.server.command_line import add_serving_options, add_workers_option
from tests.reference import actions, parser_of
from tests.rows import for_each_row

from .places import DOCS, ROOT

# The reference shows signatures, and is written from the parsers that commands are compared with here.
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if page.name != "reference.md"),
]
BLOCK = re.compile(
    r"^(?P<in>[ \t]*)(?P<fence>`{3,})(?P<language>[^\s`]*)[^\n`]*\n(?P<text>.*?)^[ \t]*(?P=fence)$", re.M | re.S
)
WORD = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")

SHELL = {"", "sh", "bash", "console"}
# Run by tests/test_docs.py, or of a language that nothing here can read.
OTHERS = {
    "python",
    "py",
    "text",
    "markdown",
    "nginx",
    "html",
    "js",
    "javascript",
    "docker",
    "dockerfile",
    "sql",
    "diff",
    "http",
}


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    return [block for block in all_blocks() if block.language in languages]


@cache
def all_blocks() -> list[Block]:
    return [
        Block(page.relative_to(ROOT).as_posix(), found["language"].lower(), found["text"])
        for page in PAGES
        for found in BLOCK.finditer(page.read_text("utf-8"))
    ]


def read_ini(text: str) -> None:
    configparser.ConfigParser(strict=False, interpolation=None).read_string(text)


READERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "yml": lambda text: list(yaml.safe_load_all(text)),
    "ini": read_ini,
}


def test_each_block_is_in_a_language_that_is_known_here():
    known = {*SHELL, *OTHERS, *READERS}
    assert {(block.page, block.language) for block in all_blocks() if block.language not in known} == set()


@for_each_row("block", blocks(*READERS))
def test_settings_can_be_read(block: Block):
    READERS[block.language](block.text)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_shell_understands_what_is_to_be_typed():
    text = "\n".join(block.text for block in blocks("sh", "bash"))
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# -- commands of ours ----------------------------------------------------------------------------------

# A command ends where the next one of the line begins, or its comment.
COMMAND = re.compile(r"(?:^|[\s/`(])defserve (?P<rest>[a-z][^\n|;&#]*)")
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])")


def typed() -> Iterator[tuple[str, str]]:
    """The page, and what it says after `defserve`, in blocks and in words that are set as code."""
    for block in blocks(*SHELL):
        for line in block.text.replace("\\\n", " ").splitlines():
            yield from ((block.page, found["rest"]) for found in COMMAND.finditer(line) if _is_command(line, found))
    for page in PAGES:
        prose = BLOCK.sub("", page.read_text("utf-8"))
        name = page.relative_to(ROOT).as_posix()
        yield from ((name, word.removeprefix("defserve ")) for word in WORD.findall(prose) if word[:9] == "defserve ")


def _is_command(line: str, found: re.Match[str]) -> bool:
    """Not a sentence that a command prints."""
    before = line[: found.start()].strip()
    return not before or before.startswith(("$", "sudo")) or before.endswith(("&&", "exec", "=", "("))


# Mistakes that a page shows, with what is said about them.
WRONG = {"lst shelf.py", "list shelf.py --jsn"}


@cache
def parser(command: str, *words: str) -> ArgumentParser:
    home, _ = COMMANDS[command]
    module, _, function = home.rpartition(".")
    return parser_of(getattr(import_module(module), function), *words)


def options(words: list[str]) -> set[str]:
    """What a command line may be given; where it stops before an action, what any of its actions may be."""
    known, depth = parser(words[0]), 1
    while len(words) > depth and words[depth] in actions(known):
        depth += 1
        known = parser(*words[:depth])
    below = [parser(*words[:depth], action) for action in actions(known)] if depth == 1 else []
    return {option for each in (known, *below) for option in each._option_string_actions}


def problem(said: str) -> str | None:
    """What is wrong with a command line of ours."""
    line = said.split("#")[0]
    words = line.split()
    if line.strip() in WRONG or not words[0].islower() or words[0].endswith(":"):
        return None
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]}"
    # What follows a lone -- is for another program, and what is quoted is a value.
    told = re.split(r"\s--(?:\s|$)", re.sub(r"'[^']*'|\"[^\"]*\"", "", line))[0]
    unknown = [flag for flag in FLAG.findall(told) if flag not in options(words)]
    return f"{words[0]} has no option {', '.join(unknown)}" if unknown else None


def test_every_command_of_ours_exists_with_its_options():
    found = list(typed())
    assert len(found) > 100
    assert [f"{page}: defserve {said}: {problem(said)}" for page, said in found if problem(said)] == []


def test_a_command_or_option_that_is_not_there_is_noticed():
    assert problem("lst server.py") and problem("list server.py --colour-of-the-sky")
    assert problem('call server.py add a=1 --json \'{"x": "--none"}\'') is None


# A server as it is started: a file, the command of a package, or a module of it.
STARTED = re.compile(r"(?:^|[\s$/])(?:python3? [\w./-]+\.py|[a-z]+-mcp|python3? -m [a-z]+_mcp)(?P<rest>\s[^\n|;&#`]*)")


def test_every_option_of_a_server_that_is_started_exists():
    server = ArgumentParser()
    add_serving_options(server)
    add_workers_option(server)
    lines = [(block.page, line) for block in blocks(*SHELL) for line in block.text.replace("\\\n", " ").splitlines()]
    ours = [(page, line) for page, line in lines if "defserve " not in line]
    found = [(page, started["rest"]) for page, line in ours for started in STARTED.finditer(line)]
    assert len(found) > 5
    told = [(page, flag) for page, rest in found for flag in FLAG.findall(re.sub(r"'[^']*'|\"[^\"]*\"", "", rest))]
    assert [(page, flag) for page, flag in told if flag not in server._option_string_actions] == []


def test_every_target_of_make_exists():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = [(block.page, line) for block in blocks(*SHELL) for line in block.text.splitlines()]
    words = [(page.name, word) for page in PAGES for word in WORD.findall(page.read_text("utf-8"))]
    named = [
        (page, made[1]) for page, line in (*lines, *words) if (made := re.match(r"(?:\$ )?make ([a-z0-9-]+)", line))
    ]
    assert [(page, target) for page, target in named if target not in targets] == []


def test_every_extra_that_is_to_be_installed_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        for named in re.findall(r"defserve\[([\w,]+)\]", page.read_text("utf-8")):
            assert set(named.split(",")) <= set(extras), f"{page.name}: defserve[{named}]"


def test_every_module_of_the_tests_that_a_page_runs_exists():
    for page in PAGES:
        for module in re.findall(r"python -m (tests\.[\w.]*\w)", page.read_text("utf-8")):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name}: {module}"
