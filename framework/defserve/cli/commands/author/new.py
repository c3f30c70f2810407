"""`defserve new`: create a project that can be published, from a few answers."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from defserve.cli.content.files import WRITABLE, writing
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Block, Data, Line
from defserve.cli.screen.screen import show
from defserve.errors import UsageError
from defserve.tooling.scaffold.creating import CreatedProject, create, questions
from defserve.tooling.scaffold.questions import DERIVED, TemplateQuestion, TemplateQuestions

EXAMPLES: Final = """  defserve new
  defserve new weather-mcp --template tools --author "Ada Lovelace" --yes
  defserve new notes --template stateful --licence Apache-2.0 --output ~/code
"""

# option -> (question of the template, help)
OPTIONS: Final = {
    "--name": ("project_name", "its name; the distribution and its command are named after it"),
    "--template": ("body", "what to start from"),
    "--description": ("description", "what it does, in one line"),
    "--author": ("author", "who writes it"),
    "--github-user": ("github_user", "your GitHub account; the registry name is io.github.USER/NAME"),
    "--licence": ("licence", "the licence"),
    "--package": ("package_name", "the import name, if it is not that of the distribution"),
}

# Answers without a default that suits everybody.
PERSONAL: Final = ("description", "author", "github_user", "licence")

Read = Callable[[], str]


def main(argv: list[str]) -> int:
    asked = questions()
    options = parse(argv, asked)
    given = answered(options)
    if not options.yes:
        given = ask(asked, given) if sys.stdin.isatty() else named(given)
    with writing(WRITABLE):
        project = create(given, Path(options.output))
    if options.json:
        files = sorted(map(str, project.files))
        show(Data({"folder": str(project.folder), "files": files, "answers": dict(project.answers)}))
    else:
        show(*report(project, made_up(project.answers, given)))
    return 0


def parse(argv: list[str], asked: TemplateQuestions) -> Namespace:
    bodies = "\n".join(f"  {line}" for line in asked.choices("body").values())
    parser = CommandParser(
        "defserve new", "Create a project: a server, its tests, and what it takes to publish it.", EXAMPLES
    )
    parser.epilog = f"templates:\n{bodies}\n\n{parser.epilog}"
    parser.add_argument("name", nargs="?", help="the same as --name")
    for option, (question, about) in OPTIONS.items():
        also = ("--license",) if option == "--licence" else ()
        choices = list(asked.choices(question)) or None
        parser.add_argument(option, *also, dest=question, choices=choices, metavar=option[2:].upper(), help=about)
    parser.add_argument("--output", default=".", metavar="DIR", help="where to create its folder (default: here)")
    parser.add_argument("--yes", "-y", action="store_true", help="ask nothing; use the defaults")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


def answered(options: Namespace) -> dict[str, str]:
    """The answers of the command line."""
    if options.name and options.project_name:
        raise UsageError(
            "the name is given twice", fix=f"leave out {options.name!r} or --name {options.project_name!r}"
        )
    found = {question: getattr(options, question) for question, _ in OPTIONS.values()}
    found["project_name"] = options.name or options.project_name
    return {question: answer for question, answer in found.items() if answer is not None}


def named(given: dict[str, str]) -> dict[str, str]:
    """Without a terminal nobody can be asked, so a name must be given."""
    if "project_name" not in given:
        raise UsageError("no name is given, and there is no terminal to ask for it", fix="defserve new NAME --yes")
    return given


def ask(asked: TemplateQuestions, given: Mapping[str, str], read: Read = sys.stdin.readline) -> dict[str, str]:
    """Ask the person at the terminal for every answer that is not given. Questions go to stderr."""
    asked.complete(given)  # raises before anybody types
    answers = dict(given)
    for question in asked:
        if question.name not in (*given, *DERIVED):
            answers[question.name] = _ask_one(asked, question, answers, read)
    return answers


def _ask_one(asked: TemplateQuestions, question: TemplateQuestion, answers: Mapping[str, str], read: Read) -> str:
    default = asked.complete(answers)[question.name]
    names = list(question.choices)
    for number, about in enumerate(question.choices.values(), 1):
        _say(f"  {number}. {about}\n")
    while True:
        _say(f"{question.prompt} [{default}] ")
        line = read()
        if not line:
            raise UsageError("the questions were not answered", fix="defserve new NAME --yes asks nothing")
        answer = line.strip() or default
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            answer = names[int(answer) - 1]
        try:
            # All answers, because other names are derived from a name.
            asked.complete({**answers, question.name: answer})
        except UsageError as error:
            _say(f"{error}\n")
        else:
            return answer


def made_up(answers: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """The personal answers that nobody gave: option and answer."""
    named = {question: option for option, (question, _) in OPTIONS.items() if question in PERSONAL}
    return [f"{option} {shlex.quote(answers[name])}" for name, option in named.items() if name not in given]


def report(project: CreatedProject, guesses: Sequence[str] = ()) -> Iterator[Block]:
    """What was created, and what to type next."""
    slug, package = project.answers["project_slug"], project.answers["package_name"]
    posix = os.name == "posix"
    activate = ". .venv/bin/activate" if posix else r".venv\Scripts\activate"
    made = f" from {project.answers['body']!r}: {len(project.files)} files."
    yield Line(("Created ", "good"), (f"{project.folder}{os.sep}", "title"), made)
    yield ""
    yield Line(("Next:", "heading"))
    commands = [f"cd {shlex.quote(str(project.folder))}", f"python -m venv .venv && {activate}"]
    if checkout := _checkout():
        commands.append(f"pip install {shlex.quote(checkout)}")
    commands += [
        "pip install -e '.[dev]'" if posix else 'pip install -e ".[dev]"',
        "pytest",
        f"defserve list -m {package}",
    ]
    yield from (Line((f"  {command}", "name")) for command in commands)
    if guesses:
        yield f"\nThese are defaults; edit them before you publish:\n  {', '.join(guesses)}"
    yield f"\n`defserve add tool NAME` adds to it. `{slug}` is the command that it installs. README.md has the rest."


def _checkout() -> str | None:
    """The folder that defserve was installed from, if it was one: a new environment would not find it in an index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("defserve").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url = urlsplit(str(origin.get("url", "")))
    return url2pathname(url.path) if url.scheme == "file" else None


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
