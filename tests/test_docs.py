"""What the README and the docs show can be pasted and works: each section is a test module of its own."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from defserve import Limits, Server
from defserve.auth import api_keys
from defserve.cli import main
from defserve.client.extension import ClientExtension
from defserve.client.known_clients import KNOWN_CLIENTS, LaunchCommand
from defserve.extending import Extension
from defserve.protocols.mcp.asking import server_secret
from defserve.server.command_line import add_serving_options, add_workers_option
from defserve.server.decorators import WebFields
from defserve.server.metrics import Metrics
from defserve.server.options import ServerFields
from defserve.server.web import CHALLENGE_VARIABLE
from defserve.server.workers.supervisor import RESTARTS, UP
from defserve.stores import identity
from defserve.stores.audit import log_file
from tests.imports import PACKAGE
from tests.rows import for_each_row

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Whose blocks are run here; tests/test_learn.py follows the pages of Learn.
GUIDES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PAGES = [*GUIDES, *sorted((DOCS / "learn").glob("*.md"))]
FILE_NAME = re.compile(r"# (\w+\.py)\n")

# The pages' tests write the snapshots they compare with.
SETTINGS = "[pytest]\naddopts = -p defserve.testing.plugin --strict-markers --update-schemas\nfilterwarnings = error\n"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def modules(page: Path) -> dict[str, str]:
    """File name to code: of blocks that begin with a name, and of the rest of each section."""
    found: dict[str, str] = {}
    for number, section in enumerate(re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)):
        for block in blocks(section):
            named = FILE_NAME.match(block)
            name = named[1] if named else f"test_section_{number}.py"
            found[name] = f"{found.get(name, '')}{block}\n\n"
    return found


def shown_files(page: Path) -> dict[str, str]:
    """Path to text: of Markdown blocks that say which file they are."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"^```markdown (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def runs() -> dict[str, list[Path]]:
    """The pages that run in one process, by a name for it: those whose files have names of their own run alone."""
    pages = list(filter(modules, GUIDES))
    alone = [page for page in pages if not all(name.startswith("test_section_") for name in modules(page))]
    return {"others": [page for page in pages if page not in alone]} | {page.stem: [page] for page in alone}


@pytest.mark.slow
@pytest.mark.parametrize("pages", runs().values(), ids=runs())
def test_each_python_block_runs(pages: list[Path], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "framework"))
    pytester.makeini(SETTINGS)
    code = {
        name if len(pages) == 1 else name.replace("test_section", f"test_{page.stem.replace('-', '_')}"): text
        for page in pages
        for name, text in modules(page).items()
    }
    for name, text in [*code.items(), *(file for page in pages for file in shown_files(page).items())]:
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(text, encoding="utf-8")
    shown = "".join(code.values()).count("\ndef test_")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *code)
    assert result.ret == (pytest.ExitCode.OK if shown else pytest.ExitCode.NO_TESTS_COLLECTED), result.stdout.str()
    assert result.parseoutcomes().get("passed", 0) >= shown


def test_the_first_call_of_the_readme_prints_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    readme = text_of("README.md")
    server = tmp_path / "calc.py"
    server.write_text(blocks(readme)[0], encoding="utf-8")
    (line,) = re.findall(r"^defserve (call calc\.py .*?) +# (.*)$", readme, re.MULTILINE)
    command, said = line[0].replace("calc.py", str(server)), line[1]
    assert main(command.split()) == 0
    assert capsys.readouterr().out == f"{said}\n"


def missing_files(text: str) -> list[str]:
    """The modules that a page names and that aren't there: from a root, or from a folder named before in its line."""
    missing: list[str] = []
    for line in text.splitlines():
        folders = [ROOT, PACKAGE]
        for name in re.findall(r"`([\w./-]+(?:\.py|/))`", line):
            found = next((path for folder in reversed(folders) if (path := folder / name).exists()), None)
            if found is not None:
                folders += [found] if found.is_dir() else [found.parent]
            elif name.endswith(".py"):
                missing.append(name)
    return missing


def test_every_module_that_the_map_names_is_there():
    assert missing_files(text_of("ARCHITECTURE.md")) == []


def test_a_module_that_is_gone_is_noticed_on_the_map():
    line = "| evals | `tooling/evals/judging.py`; `improving.py`; `statistics.py` |"
    assert missing_files(line) == ["statistics.py"]
    assert missing_files("`improving.py`, `core/no_such_module.py`") == ["improving.py", "core/no_such_module.py"]


def test_every_limit_is_in_the_table():
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| \S", text_of("docs/limits-and-errors.md"), re.MULTILINE)
    assert rows == [(field.name, str(field.default)) for field in dataclasses.fields(Limits)]


def test_every_contribution_of_the_plug_is_in_the_table():
    table = text_of("docs/extending.md").partition("## Every contribution")[2]
    first_cells = "".join(re.findall(r"^\| (`[^|]*)", table, re.MULTILINE))
    contributions = {name for name in vars(Extension) if not name.startswith("_")} - {"name"}
    assert set(re.findall(r"`(\w+)[`(]", first_cells)) == contributions


def test_every_contribution_of_the_clients_plug_is_in_its_table():
    table = text_of("docs/extending.md").partition("## The other side")[2].partition("## Every contribution")[0]
    contributions = {name for name in vars(ClientExtension) if not name.startswith("_")} - {"name"}
    assert set(re.findall(r"^\| `(\w+)[`(]", table, re.MULTILINE)) == contributions


def test_the_client_settings_are_those_that_install_writes():
    settings = [json.loads(block) for block in blocks(text_of("README.md"), "json")]
    launch = LaunchCommand("/path/to/python", ("-m", "defserve", "run", "/path/to/calc.py"), {})
    written = json.dumps(KNOWN_CLIENTS["mcp-json"].entry(launch))
    assert settings == [{"mcpServers": {"calculator": json.loads(written)}}]


@for_each_row("page", PAGES, ids=str)
def test_each_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_on_the_map():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", text_of("docs/index.md")))
    assert linked - {"cookbook/index.md"} == {page.relative_to(DOCS).as_posix() for page in PAGES[1:]} - {"index.md"}


# -- what the page about deployment names, exists ------------------------------------------------------

DEPLOYMENT = "docs/deployment.md"
# Of a line in a block, or of a word in the text: a server or a command of ours, and what it is told.
TOLD = re.compile(r"(?:^|[ /])(shelf-mcp|defserve (?:keys |audit |state )?[a-z]+)(?= |$)(.*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def told(page: str) -> Iterator[tuple[str, str]]:
    """Who is given an option, and which; an option on its own is the server's."""
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)).replace("\\\n", "")
    words = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE))
    for text in (*fenced.splitlines(), *words):
        found = TOLD.search(f"shelf-mcp {text}" if text.startswith("--") else text)
        yield from ((found[1], flag) for flag in FLAG.findall(found[2])) if found else ()


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    def shown(command: str) -> str:
        if command == "shelf-mcp":
            parser = ArgumentParser()
            add_serving_options(parser)
            add_workers_option(parser)
            return parser.format_help()
        with suppress(SystemExit):
            main([*command.split()[1:], "--help"])
        return capsys.readouterr().out

    return shown


def test_every_option_of_the_deployment_page_exists(help_of: Callable[[str], str]):
    named = set(told(text_of(DEPLOYMENT)))
    assert {("shelf-mcp", "--allow-host"), ("defserve keys create", "--store"), ("defserve check", "--strict")} <= named
    assert [(command, flag) for command, flag in named if flag not in FLAG.findall(help_of(command))] == []


def test_every_setting_of_the_deployment_page_exists():
    page = text_of(DEPLOYMENT)
    settings = {*inspect.signature(Server).parameters, *ServerFields.__annotations__}
    assert set(re.findall(r"`Server\((\w+)=", page)) <= settings
    assert set(re.findall(r"`(allowed_\w+|trusted_\w+)`", page)) <= set(WebFields.__annotations__)
    limits = {field.name: field.default for field in dataclasses.fields(Limits)}
    assert set(re.findall(r"Limits\((\w+)=", page)) <= set(limits)
    for name, value in re.findall(r"`Limits\((\w+)=(\d+)\)`", page):
        assert float(value) == limits[name], f"the default of {name}"


def test_the_deployment_page_has_every_variable_and_no_metric_that_is_none():
    page = text_of(DEPLOYMENT)
    variables = {
        api_keys.VARIABLE,
        log_file.AUDIT_KEY_VARIABLE,
        server_secret.SECRET_VARIABLE,
        identity.NAMESPACE_VARIABLE,
        CHALLENGE_VARIABLE,
    }
    assert set(re.findall(r"DEFSERVE_\w+", page)) == variables
    shown = Metrics().text(Server("shelf").composition)
    for name in re.findall(r"defserve_[a-z_]+", page):
        assert name in (UP, RESTARTS) or f"# TYPE {name.removesuffix('_bucket')} " in shown


# -- llms.txt (llmstxt.org): a title, a summary, lists of links with a note each ---------------------------


def test_a_model_finds_every_page():
    text = text_of("llms.txt")
    assert re.match(r"# \w+\n\n> \S.*\n", text)
    entries = text.partition("\n## ")[2].splitlines()[1:]
    listed = [re.fullmatch(r"- \[[^]]+\]\(([\w./-]+)\): \S.*", line) for line in entries if line and line[:3] != "## "]
    links = [entry[1] if entry else "" for entry in listed]
    assert [link for link in links if not link or not (ROOT / link).exists()] == []
    assert {page.relative_to(ROOT).as_posix() for page in PAGES} <= set(links)
