"""Servers of other frameworks, rewritten: they run, answer as before, and keep what was written around them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from defserve import Server, UsageError
from defserve.cli import main
from defserve.tooling.migrate.migrating import migrate
from tests.rows import for_each_row
from tests.tooling.migrate import steps

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _modules_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in steps.STEPS:
        monkeypatch.setitem(sys.modules, program, None)


@pytest.mark.slow
@for_each_row("program", steps.STEPS)
async def test_a_migrated_program_answers_as_before(program: str) -> None:
    migration = migrate(steps.source(program), program)
    assert "fastmcp" not in migration.text.replace("mcp.server.fastmcp", "").lower() or program == "sdk_one"
    assert "import mcp" not in migration.text and "from mcp" not in migration.text
    server = steps.loaded(program, migration.text)
    assert isinstance(server, Server)
    async with server.connect() as client:
        for step in steps.STEPS[program][1]:
            if step.verb == "read":
                said = await client.read_text(step.name)
            elif step.verb == "prompt":
                found = await client.prompt(step.name, **step.arguments)
                said = "\n".join(f"{one['role']}: {one['content']['text']}" for one in found["messages"])
            else:
                said = steps.together((await client.call_raw(step.name, step.arguments))["content"])
            assert steps.agrees(said, step.said), (step, said)


@pytest.mark.slow
@for_each_row("program", steps.STEPS)
def test_comments_strings_and_layout_stay(program: str) -> None:
    before, after = steps.source(program), migrate(steps.source(program), program).text
    comments = [line.partition("#")[2] for line in before.splitlines() if "#" in line]
    assert all(comment in after for comment in comments)
    untouched = [line for line in before.splitlines() if line.startswith(("class ", "    return ", '    """'))]
    kept = [line for line in untouched if "TextContent" not in line and "Depends" not in line]
    assert kept and [line for line in kept if line not in after and "types." not in line and "Tool" not in line] == []


@pytest.mark.slow
def test_a_program_with_nothing_left_to_do_has_no_notes() -> None:
    assert migrate(steps.source("calculator")).notes == []
    assert [note.text for note in migrate(steps.source("notes")).notes] == [
        "the option tags= of a resource is left out: it has no counterpart",
        "the option tags= of a prompt is left out: it has no counterpart",
    ]


@for_each_row(
    "written wanted",
    [
        ("mcp.run()", "mcp.run()"),
        ('mcp.run(transport="stdio")', "mcp.run()"),
        ('mcp.run("http")', 'mcp.run(on="http://127.0.0.1:8000/mcp")'),
        ('mcp.run(transport="http", host="0.0.0.0", port=80, path="x")', 'mcp.run(on="http://0.0.0.0:80/x")'),
        ('mcp.run(transport="http", port=PORT)', 'mcp.run(on=f"http://127.0.0.1:{PORT}/mcp")'),
        ('mcp.run(transport="sse")', 'mcp.run(on="http://127.0.0.1:8000/sse", legacy_sse=True)'),
        ("asyncio.run(mcp.run_async())", "mcp.run()"),
        ("anyio.run(mcp.run_async)", "mcp.run()"),
        ("app = mcp.http_app()", "app = mcp.asgi()"),
        ('mcp.mount("p", child)', 'mcp.mount(child, prefix="p")'),
        ('await mcp.import_server(child, prefix="p")', 'mcp.mount(child, prefix="p")'),
        ("mcp.add_tool(function)", "mcp.add_tool(function)"),
        ('@mcp.tool("x", task=True, tags={"a"})\ndef f(): ...', '@mcp.tool(name="x", task="optional", tags=["a"])'),
        ('@mcp.resource(uri="a://b", mime_type="x/y")\ndef f(): ...', '@mcp.resource("a://b", mime_type="x/y")'),
    ],
)
def test_calls_are_rewritten(written: str, wanted: str) -> None:
    text = migrate(f'from fastmcp import FastMCP\n\nmcp = FastMCP("m")\nchild = FastMCP("c")\n{written}\n').text
    assert text.startswith('from defserve import Server\n\nmcp = Server("m")\nchild = Server("c")\n')
    assert wanted in text


HEAD = 'from fastmcp import Context, FastMCP\nmcp = FastMCP("m")\n'


@for_each_row(
    "written line note",
    [
        ("from fastmcp import Client", 3, "Client has no counterpart"),
        ("from fastmcp.server.middleware import Middleware", 3, "around"),
        ("async def f(ctx: Context):\n    r = await ctx.elicit('Who?', str)", 4, "ctx.elicit has no counterpart"),
        ("async def f(ctx: Context):\n    await ctx.set_state('a', 1)", 4, "ctx.set_state has no counterpart"),
        ("async def f(ctx: Context):\n    await ctx.info('a', logger_name='x')", 4, "only the text"),
        ("@mcp.custom_route('/x', methods=['GET'])\nasync def f(r): ...", 3, "mcp.custom_route has no counterpart"),
        ("mcp.run(transport=kind)", 3, "the transport is not a plain text"),
        ("other = FastMCP('o', auth=verifier)", 3, "the option auth= of the server is left out"),
        ("@mcp.tool\ndef f(a: int):\n    raise ValueError('a')", 5, "models do not read the text of ValueError"),
        ("@mcp.tool(enabled=False)\ndef f(): ...", 3, "the option enabled= of a tool is left out"),
    ],
)
def test_what_cannot_be_rewritten_is_reported_with_its_line(written: str, line: int, note: str) -> None:
    notes = migrate(f"{HEAD}{written}\n").notes
    assert any(found.line == line and note in found.text for found in notes), notes


def test_other_programs_are_left_alone() -> None:
    text = "import json\n\n\nclass FastMCP: ...\n"
    assert migrate(text).text == text and "nothing of FastMCP" in migrate(text).notes[0].text
    with pytest.raises(UsageError, match="it is not Python"):
        migrate("def f(:\n")


def test_a_name_of_another_package_is_not_touched() -> None:
    text = "from fastmcp import FastMCP\nfrom PIL import Image\n\nmcp = FastMCP()\npicture = Image.new()\n"
    assert migrate(text, "shop").text == (
        'from defserve import Server\nfrom PIL import Image\n\nmcp = Server("shop")\npicture = Image.new()\n'
    )


@pytest.mark.slow
def test_the_command_shows_then_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "server.py"
    file.write_text(steps.source("notes"))
    assert main(["migrate", "server.py", "--diff"]) == 0
    assert '-mcp = FastMCP(name="Notes"' in (diff := capsys.readouterr().out) and "Left to do" not in diff
    assert file.read_text() == steps.source("notes")
    assert main(["migrate", "server.py"]) == 0
    assert "server.py:11  the option tags=" in capsys.readouterr().out
    assert main(["migrate", "server.py", "--json"]) == 0
    assert '"line": 11' in capsys.readouterr().out
    assert main(["migrate", "server.py", "--write"]) == 0
    assert "Changed server.py" in capsys.readouterr().out
    assert file.read_text() == migrate(steps.source("notes")).text
    assert main(["migrate", "server.py"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert main(["migrate", "gone.py"]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_migrated_program_is_served_by_its_own_main(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(migrate(steps.source("low_level")).text)
    hello = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":'
        '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
    )
    done = subprocess.run([sys.executable, str(file)], input=hello, capture_output=True, text=True, timeout=50)
    assert '"serverInfo":{"name":"prices"' in done.stdout.replace(" ", ""), done.stderr


@pytest.mark.parametrize("package", ["fastmcp"])
def test_the_programs_answer_so_in_their_own_framework(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not here: pip install {package}")
    for program, (needs, wanted) in steps.STEPS.items():
        if needs == package:
            said = steps.as_it_is(program)
            assert [steps.agrees(a, b.said) for a, b in zip(said, wanted, strict=True)] == [True] * len(wanted)
