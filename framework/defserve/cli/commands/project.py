"""`defserve new`, `add` and `migrate`: create a project, add parts to it, or rewrite one of another framework."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from defserve.cli.content import WRITABLE_FOLDER_FIX, explain_write_errors
from defserve.cli.parser import RESULT_JSON_FLAG, CommandArgument, CommandParser, make_flag
from defserve.cli.screen import ProgressDisplay, show_stdout
from defserve.cli.screen_blocks import DiffBlock, JsonBlock, ScreenBlock, StyledLine
from defserve.errors import UsageError
from defserve.tooling.project_parts import (
    PART_MAKERS,
    PartRequest,
    apply_edits,
    find_project_server,
    make_part,
    plan_edits,
)
from defserve.tooling.project_template import (
    DERIVED_ANSWERS,
    CreatedProject,
    TemplateQuestion,
    TemplateQuestions,
    create_project,
    load_template_questions,
)

if TYPE_CHECKING:
    from defserve.tooling.migrate.migration import Migration

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


def run_new(argv: list[str]) -> int:
    asked = load_template_questions()
    options = parse(argv, asked)
    given = collect_answers(options)
    if not options.yes and sys.stdin.isatty():
        given = ask(asked, given)
    elif not options.yes and "project_name" not in given:
        raise UsageError("no name is given, and there is no terminal to ask for it", fix="defserve new NAME --yes")
    with explain_write_errors(WRITABLE_FOLDER_FIX):
        project = create_project(given, Path(options.output))
    if options.json:
        files = sorted(map(str, project.files))
        show_stdout(JsonBlock({"folder": str(project.folder), "files": files, "answers": dict(project.answers)}))
    else:
        show_stdout(*report_created_project(project, find_default_answers(project.answers, given)))
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
    return parser.parse_options(
        argv,
        CommandArgument("--output", default=".", metavar="DIR", help="where to create its folder (default: here)"),
        make_flag("--yes", "-y", help="don't ask; use the defaults"),
        RESULT_JSON_FLAG,
    )


def collect_answers(options: Namespace) -> dict[str, str]:
    """The answers of the command line."""
    if options.name and options.project_name:
        raise UsageError(
            "the name is given twice", fix=f"leave out {options.name!r} or --name {options.project_name!r}"
        )
    found = {question: getattr(options, question) for question, _ in OPTIONS.values()}
    found["project_name"] = options.name or options.project_name
    return {question: answer for question, answer in found.items() if answer is not None}


def ask(asked: TemplateQuestions, given: Mapping[str, str], read: Read = sys.stdin.readline) -> dict[str, str]:
    """Ask the person at the terminal for every answer that is not given. Questions go to stderr."""
    asked.complete(given)  # raises before anybody types
    answers = dict(given)
    for question in asked:
        if question.name not in (*given, *DERIVED_ANSWERS):
            answers[question.name] = _ask_one(asked, question, answers, read)
    return answers


def _ask_one(asked: TemplateQuestions, question: TemplateQuestion, answers: Mapping[str, str], read: Read) -> str:
    default = asked.complete(answers)[question.name]
    names = list(question.choices)
    for number, about in enumerate(question.choices.values(), 1):
        _print_stderr(f"  {number}. {about}\n")
    while True:
        _print_stderr(f"{question.prompt} [{default}] ")
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
            _print_stderr(f"{error}\n")
        else:
            return answer


def find_default_answers(answers: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """The personal answers that nobody gave: option and answer."""
    named = {question: option for option, (question, _) in OPTIONS.items() if question in PERSONAL}
    return [f"{option} {shlex.quote(answers[name])}" for name, option in named.items() if name not in given]


def report_created_project(project: CreatedProject, guesses: Sequence[str] = ()) -> Iterator[ScreenBlock]:
    """What was created, and what to type next."""
    slug, package = project.answers["project_slug"], project.answers["package_name"]
    posix = os.name == "posix"
    activate = ". .venv/bin/activate" if posix else r".venv\Scripts\activate"
    made = f" from {project.answers['body']!r}: {len(project.files)} files."
    yield StyledLine(("Created ", "good"), (f"{project.folder}{os.sep}", "title"), made)
    yield ""
    yield StyledLine(("Next:", "heading"))
    commands = [f"cd {shlex.quote(str(project.folder))}", f"python -m venv .venv && {activate}"]
    if checkout := _checkout():
        commands.append(f"pip install {shlex.quote(checkout)}")
    commands += [
        "pip install -e '.[dev]'" if posix else 'pip install -e ".[dev]"',
        "pytest",
        f"defserve list -m {package}",
    ]
    yield from (StyledLine((f"  {command}", "name")) for command in commands)
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


def _print_stderr(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


# -- `defserve add`: add a tool, resource, prompt or feature set, with its test, to the current project.


ADD_EXAMPLES: Final = """  defserve add tool get_weather --description "The weather in a place."
  defserve add resource report --uri 'weather://reports/{day}'
  defserve add prompt summarise
  defserve add feature-set weather.alerts --dry-run
"""


def run_add(argv: list[str]) -> int:
    parser = CommandParser("defserve add", "Add a part and its test to the server of a project.", ADD_EXAMPLES)
    options = parser.parse_options(
        argv,
        CommandArgument("kind", choices=list(PART_MAKERS), metavar="KIND", help=", ".join(PART_MAKERS)),
        CommandArgument(
            "name", metavar="NAME", help="the name of the function; for a feature set, words with dots between them"
        ),
        CommandArgument(
            "--description", default="", metavar="TEXT", help="what it does; models use this to choose a tool"
        ),
        CommandArgument("--uri", default="", help="the URI of the resource; {names} in it become parameters"),
        CommandArgument(
            "--server", metavar="FILE", help="path/server.py or path/server.py:name, if pyproject.toml does not name it"
        ),
        make_flag("--dry-run", help="show the changes, but do not make them"),
        RESULT_JSON_FLAG,
    )
    if options.uri and options.kind != "resource":
        parser.error("only a resource has a --uri")
    home = find_project_server(Path.cwd(), options.server)
    request = PartRequest(
        options.kind, options.name, home.variable, home.distribution, options.description, options.uri
    )
    edits = plan_edits(home, make_part(request))
    if not options.dry_run:
        with explain_write_errors("check the permissions of the project, or use --dry-run to see the changes alone"):
            apply_edits(edits)
    if options.json:
        show_stdout(
            JsonBlock(
                [
                    {"path": os.path.relpath(edit.path), "is_new": not edit.before, "diff": diff_texts(*edit)}
                    for edit in edits
                ]
            )
        )
    elif options.dry_run:
        show_stdout(DiffBlock("".join(diff_texts(*edit) for edit in edits)))
    else:
        for edit in edits:
            show_stdout(StyledLine((f"{'Changed' if edit.before else 'Created'} ", "good"), os.path.relpath(edit.path)))
        show_stdout("", "Next: write what it does, then run `pytest`.")
    return 0


def diff_texts(path: Path, before: str, after: str) -> str:
    """What changes in a file, as a unified diff."""
    from difflib import unified_diff

    name = os.path.relpath(path)
    return "".join(unified_diff(before.splitlines(True), after.splitlines(True), name, name))


# -- `defserve migrate`: rewrite a server of FastMCP or the official SDK to defserve.


ABOUT: Final = "Rewrite a server of FastMCP or the official SDK. Without --write, show what would change."
MIGRATE_EXAMPLES: Final = """  defserve migrate server.py
  defserve migrate server.py --write
  defserve migrate src/shop --diff > shop.patch
"""


class Migrated(NamedTuple):
    """One file, as it was and as it is now."""

    path: Path
    before: str
    migration: Migration

    @property
    def diff(self) -> str:
        return diff_texts(self.path, self.before, self.migration.text)


def run_migrate(argv: list[str]) -> int:
    options = CommandParser("defserve migrate", ABOUT, MIGRATE_EXAMPLES).parse_options(
        argv,
        CommandArgument("files", nargs="+", metavar="FILE", help="a Python file, or a folder of them"),
        make_flag("--write", help="change the files"),
        make_flag("--diff", help="print only the differences"),
        RESULT_JSON_FLAG,
    )
    done = _migrate([Path(name) for name in options.files])
    if options.write:
        with explain_write_errors("check its permissions; without --write the changes are shown alone"):
            _write(done)
    if options.json:
        show_stdout(
            JsonBlock(
                [
                    {
                        "path": os.path.relpath(each.path),
                        "diff": each.diff,
                        "notes": [{"line": note.line, "text": note.text} for note in each.migration.notes],
                    }
                    for each in done
                ]
            )
        )
        return 0
    for each in done:
        if options.diff or not options.write:
            show_stdout(DiffBlock(each.diff))
        if not options.diff:
            show_stdout(*_report(each, written=options.write))
    if not (options.diff or options.write) and any(each.diff for each in done):
        # The names of files are copied into a shell.
        words = " ".join(shlex.quote(f"./{name}" if name.startswith("-") else name) for name in options.files)
        show_stdout("", f"Next: `defserve migrate {words} --write`, then `defserve check` with the file of the server.")
    return 0


def _migrate(named: list[Path]) -> list[Migrated]:
    """Every named file, and of a named folder the files that are servers, or that cannot be read as Python."""
    from defserve.tooling.migrate.migration import (
        INVALID_PYTHON_FIX,
        INVALID_PYTHON_PROBLEM,
        NOTHING_TO_MIGRATE,
        migrate_files,
    )

    found = [path for folder in named if folder.is_dir() for path in sorted(folder.rglob("*.py"))]
    files = [path for path in named if not path.is_dir()]
    sources = {path: _read_source(path) for path in (*files, *found)}
    with ProgressDisplay("Migrating") as work:

        def show_file(step: int, steps: int, path: Path) -> None:
            if work.is_drawn:
                work.show_progress(step, steps, f"Migrating {path.name}")

        migrations = migrate_files(sources, show_file)
    done = {path: Migrated(path, sources[path], each) for path, each in migrations.items()}
    for path in files:
        if bad := [note for note in done[path].migration.notes if note.text == INVALID_PYTHON_PROBLEM]:
            raise UsageError(f"{path}:{bad[0].line}: {INVALID_PYTHON_PROBLEM}", fix=INVALID_PYTHON_FIX)
    return [
        each
        for path, each in done.items()
        if path in files or not any(note.text == NOTHING_TO_MIGRATE for note in each.migration.notes)
    ]


def _read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", fix="name a Python file") from None


def _write(done: list[Migrated]) -> None:
    for each in done:
        if each.migration.text != each.before:
            each.path.write_text(each.migration.text, encoding="utf-8")


def _report(each: Migrated, *, written: bool) -> list[ScreenBlock]:
    from defserve.tooling.migrate.migration import NOTHING_TO_MIGRATE

    name, notes = os.path.relpath(each.path), each.migration.notes
    if any(note.text == NOTHING_TO_MIGRATE for note in notes):
        return [f"{name}: nothing to change: {NOTHING_TO_MIGRATE}"]
    if each.migration.text == each.before:
        lines: list[ScreenBlock] = [f"{name}: nothing to change"]
    else:
        lines = [StyledLine(("Changed ", "good"), name)] if written else []
    if notes:
        lines += ["", f"Left to do by hand ({len(notes)}), by the lines of the file as it was:"]
        lines += [StyledLine((f"  {name}:{note.line}", "good"), f"  {note.text}") for note in notes]
    return lines
