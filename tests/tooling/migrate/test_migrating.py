"""Servers of other frameworks, rewritten: they run, answer as before, and keep what was written around them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import libcst
import pytest

from defserve import Server, ToolError, UsageError
from defserve.cli import main, screen
from defserve.cli.screen import ProgressDisplay
from defserve.tooling.migrate import rewriting
from defserve.tooling.migrate.migration import migrate, migrate_files
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


def test_a_file_that_would_not_compile_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite_wrongly(*_: object) -> libcst.BaseExpression:
        return libcst.Await(libcst.Name("outside"))

    monkeypatch.setattr(rewriting, "rewrite_run", rewrite_wrongly)
    program = f"{HEAD}mcp.run()\n"
    assert migrate(program).text == program
    assert "would be no valid Python" in migrate(program).notes[0].text


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
        (
            'mcp.run(transport="http", port=int(os.environ.get("PORT", "80")))',
            "mcp.run(on=f\"http://127.0.0.1:{int(os.environ.get('PORT', '80'))}/mcp\")",
        ),
        (
            'mcp.run(transport="http", host=hosts["it\'s"], port=ports[\'a\'])',
            'mcp.run(on="http://{}:{}/mcp".format(hosts["it\'s"], ports[\'a\']))',
        ),
        (
            'mcp.run(transport="http", host=f"{a}", path="/{x}")',
            'mcp.run(on="http://{}:8000/{{x}}".format(f"{a}"))',
        ),
        ('mcp.run(transport="http", host="::1")', 'mcp.run(on="http://[::1]:8000/mcp")'),
        ("mcp.run(transport=None)", "mcp.run()"),
        ("asyncio.run(mcp.run_http_async(port=9))", 'mcp.run(on="http://127.0.0.1:9/mcp")'),
        ("asyncio.run(mcp.run_sse_async())", 'mcp.run(on="http://127.0.0.1:8000/sse", legacy_sse=True)'),
        ('mcp.run(transport="http", port=PORT)', 'mcp.run(on=f"http://127.0.0.1:{PORT}/mcp")'),
        ('mcp.run(transport="sse")', 'mcp.run(on="http://127.0.0.1:8000/sse", legacy_sse=True)'),
        (
            "mcp.run(transport=kind, port=9)",
            'mcp.run(on="stdio:" if kind == "stdio" else "http://127.0.0.1:9/mcp")',
        ),
        ("asyncio.run(mcp.run_async())", "mcp.run()"),
        ("anyio.run(mcp.run_async)", "mcp.run()"),
        ("app = mcp.http_app()", "app = mcp.asgi()"),
        ('mcp.mount("p", child)', 'mcp.mount(child, prefix="p")'),
        ('await mcp.import_server(child, prefix="p")', 'mcp.mount(child, prefix="p")'),
        ("mcp.add_tool(function)", "mcp.add_tool(function)"),
        (
            'from fastmcp.tools import Tool\nmcp.add_tool(Tool.from_function(f, name="x"))',
            'mcp.add_tool(f, name="x")',
        ),
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
        ("from fastmcp import Client\nClient(mcp)", 3, "Client is not rewritten"),
        ("from fastmcp.server.middleware import Middleware\nclass M(Middleware): ...", 3, "around"),
        ("async def f(ctx: Context):\n    r = await ctx.elicit('Who?', str)", 4, "ctx.elicit is not rewritten"),
        ("async def f(ctx: Context):\n    await ctx.set_state('a', 1)", 4, "ctx.set_state is not rewritten"),
        ("async def f(ctx: Context):\n    await ctx.info('a', logger_name='x')", 4, "only the text"),
        ("@mcp.custom_route('/x', methods=['GET'])\nasync def f(r): ...", 3, "mcp.custom_route is not rewritten"),
        ('mcp.run(transport="http", host="0.0.0.0")', 3, "on 0.0.0.0 the server does not start: add allowed_hosts=["),
        ('mcp.run("http", host=os.getenv("HOST"))', 3, 'if os.getenv("HOST") is not an address of this machine alone'),
        ("app = mcp.http_app()", 3, "answers only as localhost"),
        ("from shop import price\nmcp.tool(price)", 4, "what price returns is not known here"),
        ("mcp.run(transport=kind)", 3, "the transport is chosen when it runs"),
        ("mcp.run(**options)", 3, "the options of run are not written out"),
        ("other = FastMCP('o', auth=verifier)", 3, "the option auth= of the server may protect something"),
        ("mcp.run('http', middleware=[refuse])", 3, "the option middleware= of run may protect something"),
        ("@mcp.tool\ndef f(a: int):\n    raise ValueError('a')", 5, "models do not read the text of ValueError"),
        ("@mcp.tool(enabled=False)\ndef f(): ...", 3, "the option enabled= of a tool may protect something"),
        ("@mcp.tool\ndef f() -> bytes: ...", 4, "return File(data=…, name=…)"),
        ("@mcp.resource('a://b')\ndef f() -> list[str]: ...", 4, "each text of the list is sent by itself"),
    ],
)
def test_what_cannot_be_rewritten_is_reported_with_its_line(written: str, line: int, note: str) -> None:
    notes = migrate(f"{HEAD}{written}\n").notes
    assert any(found.line == line and note in found.text for found in notes), notes


@for_each_row(
    "written",
    [
        "FastMCP('m', auth=Verifier())",
        "FastMCP('m', token_verifier=Verifier())",
        "FastMCP('m', middleware=[Verifier()])",
        "FastMCP('m', include_tags={'public'})",
        "FastMCP('m', exclude_tags={'secret'})",
        "FastMCP('m', transport_security=Verifier())",
        "mcp.tool(enabled=False)(f)",
        "mcp.tool(auth=Verifier())(f)",
        "mcp.tool(exclude_args=['user'])(f)",
        "mcp.run('http', middleware=[Verifier()])",
        "mcp.http_app(middleware=[Verifier()])",
        "mcp.add_middleware(Verifier())",
    ],
)
def test_what_protects_stays_and_the_server_does_not_start_until_it_is_translated(written: str) -> None:
    before = f"{HEAD}class Verifier:\n    async def verify_token(self, token): ...\n\ndef f(user: str = ''): ...\n\n"
    text, notes = migrate(f"{before}{written}\n")
    assert any(note.line == 8 for note in notes)
    with pytest.raises((UsageError, AttributeError)):
        exec(compile(text, "m.py", "exec"), {"__name__": "m"})


@for_each_row(
    "written",
    ["FastMCP('m', auth=None)", "mcp.tool(enabled=True)(f)", "mcp.http_app(allowed_hosts=['tools.example.com'])"],
)
def test_what_protects_nothing_or_has_a_counterpart_is_not_reported(written: str) -> None:
    text, notes = migrate(f"{HEAD}def f(): ...\n\n{written}\n")
    assert notes == []
    exec(compile(text, "m.py", "exec"), {"__name__": "m"})


@for_each_row(
    "written wanted",
    [
        ("@mcp.tool\ndef f() -> int: ...", "@mcp.tool(structured=True)\ndef f() -> int"),
        ("@mcp.tool()\ndef f() -> float: ...", "@mcp.tool(structured=True)\ndef f() -> float"),
        ("@mcp.tool(name='g')\ndef f() -> bool | None: ...", "@mcp.tool(name='g', structured=True)\n"),
        ("@mcp.tool(output_schema=None)\ndef f() -> int: ...", "@mcp.tool(structured=False)\n"),
        ("@mcp.tool(structured_output=False)\ndef f() -> int: ...", "@mcp.tool(structured=False)\n"),
        ("@mcp.tool\ndef f() -> str: ...", "@mcp.tool\ndef f() -> str"),
        ("def f() -> int: ...\nmcp.tool(f)", "\nmcp.tool(f, structured=True)\n"),
        ("def f() -> int: ...\nmcp.tool(name='g')(f)", "\nmcp.tool(name='g', structured=True)(f)\n"),
        ("def f() -> int: ...\nmcp.add_tool(f)", "\nmcp.add_tool(f, structured=True)\n"),
        ("def f() -> str: ...\nmcp.tool(f)", "\nmcp.tool(f)\n"),
        ("class C:\n    def f(self) -> bool: ...\nmcp.tool(C().f)", "\nmcp.tool(C().f, structured=True)\n"),
        ("@mcp.resource('a://b')\ndef f() -> int: ...", "@mcp.resource('a://b')\ndef f() -> int"),
    ],
)
def test_numbers_and_truth_values_stay_structured_content(written: str, wanted: str) -> None:
    text, notes = migrate(f"{HEAD}{written}\n")
    assert wanted in text and notes == []


@for_each_row(
    "written wanted",
    [
        ("ToolResult(content='a', structured_content={'b': 1})", "ToolResult('a', data={'b': 1})"),
        ("ToolResult('a')", "ToolResult('a')"),
        ("ToolResult(structured_content={'b': 1})", "{'b': 1}"),
    ],
)
def test_a_result_with_text_beside_its_data_stays_one(written: str, wanted: str) -> None:
    before = "from fastmcp import FastMCP\nfrom fastmcp.tools import ToolResult\nmcp = FastMCP('m')\n"
    text, notes = migrate(f"{before}\n@mcp.tool\ndef f() -> ToolResult:\n    return {written}\n")
    assert text.startswith("from defserve import Server, ToolResult\n") and f"    return {wanted}\n" in text
    assert notes == []


@for_each_row(
    "written wanted",
    [
        ("import mcp.types as types\nx = types.Root\n", "import mcp.types as types\nx = types.Root\n"),
        ("from mcp import types\nx = types.Root\n", "from mcp import types\nx = types.Root\n"),
        ("import fastmcp\nx = fastmcp.__version__\n", "import fastmcp\nx = fastmcp.__version__\n"),
        ("from mcp.server.stdio import stdio_server\nstdio_server()\n", "from mcp.server.stdio import stdio_server\n"),
        ('from mcp import types\ndef f(a: "list[types.Root]"): ...\n', "from mcp import types\n"),
        ("import os; import mcp\nx = mcp.Tool\n", "import os; import mcp\n"),
    ],
)
def test_an_import_that_is_still_used_stays_and_is_reported(written: str, wanted: str) -> None:
    text, notes = migrate(f"from fastmcp import FastMCP\n{written}mcp_server = FastMCP('m')\n")
    assert text.startswith(f"from defserve import Server\n{wanted}")
    assert "has no counterpart" in notes[0].text or "is not rewritten" in notes[0].text


@for_each_row(
    "written wanted",
    [
        ("import asyncio\nimport os\n{}asyncio.run(mcp.run_async())\n", "import os\n"),
        ("import os\n\nfrom typing import Optional, Any\n{}def f(c: Optional[Context]): ...\n", "typing import Any\n"),
        ("# why\nimport anyio\n{}anyio.run(mcp.run_async)\n", "# why\n"),
        ("import asyncio\n{}asyncio.run(mcp.run_async())\nasyncio.sleep\n", "import asyncio\n"),
        ("import asyncio\n{}asyncio.run(mcp.run_async())\n__all__ = ['asyncio']\n", "import asyncio\n"),
        ("import asyncio  # for x\n{}asyncio.run(mcp.run_async())\n", "import asyncio  # for x\n"),
        ("import asyncio\n{}", "import asyncio\n"),
    ],
)
def test_an_import_that_the_migration_has_made_unused_goes_and_others_stay(written: str, wanted: str) -> None:
    before = migrate(written.format(HEAD)).text.partition("from defserve")[0]
    assert before.endswith(wanted) and before.count("asyncio") == wanted.count("asyncio"), before


def test_an_import_in_a_function_that_is_made_unused_goes_too() -> None:
    written = f"{HEAD}def main():\n    import asyncio\n\n    asyncio.run(mcp.run_async())\n"
    assert "asyncio" not in migrate(written).text


def test_each_line_that_still_uses_an_import_is_reported() -> None:
    text = "from fastmcp import FastMCP\nimport mcp.types as types\n\nmcp = FastMCP('m')\na = types.Root\n"
    assert [note.line for note in migrate(f"{text}\n\ndef f():\n    return types.ImageContent()\n").notes] == [5, 9]


@for_each_row(
    "written wanted",
    [
        (
            "try:\n    from fastmcp import FastMCP\nexcept ImportError:\n    from mcp.server.fastmcp import FastMCP\n",
            "from defserve import Server\n",
        ),
        (
            "try:\n    from fastmcp import FastMCP\n    FOUND = True\nexcept ImportError:\n    FOUND = False\n",
            "from defserve import Server\ntry:\n    FOUND = True\nexcept ImportError:\n    FOUND = False\n",
        ),
        (
            "try: from fastmcp import FastMCP\nexcept ImportError: raise\nelse:\n    FOUND = True\n",
            "from defserve import Server\nFOUND = True\n",
        ),
        (
            "if TYPE_CHECKING:\n    from fastmcp import Context\nfrom fastmcp import FastMCP\n",
            "from defserve import Server\n",
        ),
        (
            "if NEW:\n    from fastmcp import FastMCP\nelse:\n    from mcp.server.fastmcp import FastMCP\n",
            "from defserve import Server\nif NEW:\n    pass\nelse:\n    pass\n",
        ),
        ("import os\n\ndef f():\n    import fastmcp\n    return fastmcp.FastMCP()\nfrom fastmcp import FastMCP\n",
         'import os\nfrom defserve import Server\n\ndef f():\n    return Server("server")\n'),
        ("import os; from fastmcp import FastMCP\n", "from defserve import Server\nimport os\n"),
        ("from .mcp import a\nfrom fastmcp import FastMCP\n", "from .mcp import a\nfrom defserve import Server\n"),
    ],
)  # fmt: skip
def test_our_import_stands_in_the_module_wherever_theirs_stood(written: str, wanted: str) -> None:
    head = '"""About."""\nfrom __future__ import annotations\n'
    text = migrate(f"{head}{written}server = FastMCP('m')\n").text
    assert text == f"{head}{wanted}server = Server('m')\n"


def test_annotations_in_quotes_are_rewritten() -> None:
    text = migrate(
        "from fastmcp import Context, FastMCP\nfrom mcp import types\n\nmcp = FastMCP('m')\n\n@mcp.tool\n"
        "async def f(ctx: 'Context', kind: Literal['a']) -> 'list[types.TextContent | types.ImageContent]':\n"
        "    await ctx.info('a')\n"
    ).text
    assert "import types" not in text
    assert "f(ctx: Context, kind: Literal['a']) -> 'list[Text | Image]':\n    ctx.log.info('a')" in text


LOW_LEVEL = """from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
app = Server("m")
@app.list_tools()
async def tools() -> list[types.Tool]:
    return [types.Tool(name="a", inputSchema={"type": "object"})]
@app.call_tool()
async def call(name: str, arguments: dict) -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
    return [types.TextContent(type="text", text=name)]
async def main():
    async with stdio_server() as (read, write):
        await app.run(read, write, app.create_initialization_options())
"""


def test_the_types_of_the_sdk_in_a_signature_become_ours() -> None:
    text, notes = migrate(f'{LOW_LEVEL}if __name__ == "__main__":\n    asyncio.run(main())\n')
    assert notes == [] and "types" not in text
    assert "arguments: dict) -> list[Text | Image | Embedded]:" in text
    assert isinstance(steps.loaded("low", text.replace("app", "server")), Server)


def test_a_main_that_waits_for_more_than_serving_is_left() -> None:
    waits = LOW_LEVEL.replace("main():\n", "main():\n    await connect()\n")
    text, notes = migrate(waits)
    assert text == waits
    assert [note.line for note in notes] == [12] and "do it in Server(lifespan=…)" in notes[0].text


def test_a_main_that_serves_on_stdio_becomes_a_plain_function_and_keeps_what_else_it_does() -> None:
    written = LOW_LEVEL.replace("main():\n", "main():\n    print('up')  # first\n")
    text, notes = migrate(f"import asyncio\n{written}entry = lambda: asyncio.run(main())\n")
    assert text.endswith("def main():\n    print('up')  # first\n    app.run()\nentry = lambda: main()\n")
    assert notes == [] and "asyncio" not in text


ASYNC_MAIN = """import asyncio
from fastmcp import FastMCP
mcp = FastMCP("shop")
async def main() -> None:
    print("up")
    if PORT:
        await mcp.run_async(transport="http", port=9000)
    else:
        await mcp.run_stdio_async()
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_an_async_main_that_only_serves_becomes_a_plain_one() -> None:
    text, notes = migrate(ASYNC_MAIN)
    assert notes == []
    assert text == (
        'from defserve import Server\nmcp = Server("shop")\ndef main() -> None:\n    print("up")\n    if PORT:\n'
        '        mcp.run(on="http://127.0.0.1:9000/mcp")\n    else:\n        mcp.run()\n'
        'if __name__ == "__main__":\n    main()\n'
    )
    assert migrate(ASYNC_MAIN.replace("asyncio.run(main())", "anyio.run(main)")).text.endswith("    main()\n")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('    print("up")', "    await connect()"),
        ('    print("up")', "    async with connect(): pass"),
        ('    print("up")', "    asyncio.create_task(main())"),
        ('    print("up")', "    asyncio.get_running_loop().add_signal_handler(15, stop)"),
        ('    print("up")', "    async def later(): await sleep(1)\n    asyncio.create_task(later())"),
        ("    asyncio.run(main())", "    loop.run_until_complete(main())"),
    ],
)
def test_an_async_main_that_needs_its_loop_stays_and_is_reported(was: str, now: str) -> None:
    text, notes = migrate(ASYNC_MAIN.replace(was, now))
    assert "async def main()" in text
    assert {note.text for note in notes} == {
        "server.run() blocks: call it outside of an event loop, in a plain `def` that is called without asyncio.run;"
        " what is awaited before goes into Server(lifespan=…)"
    }


def test_an_async_main_that_another_file_runs_stays() -> None:
    package = "import asyncio\nfrom . import server\ndef main(): asyncio.run(server.main())\n"
    done = migrate_files({Path("shop/server.py"): ASYNC_MAIN, Path("shop/__init__.py"): package})
    assert "async def main()" in done[Path("shop/server.py")].text


REGISTERED = """from fastmcp import FastMCP
mcp = FastMCP("shop")
def price(item, *, tax=0.2):
    raise KeyError(item)
class Shop:
    def stock(self, item): return 3
    def other(self, item): return 3
def about(name): return name
mcp.tool()(price)
mcp.add_tool(Shop().stock)
mcp.resource("shop://{name}")(about)
"""


def test_functions_registered_by_a_call_are_rewritten_like_decorated_ones() -> None:
    text, notes = migrate(REGISTERED)
    assert "def price(item: Any, *, tax: Any = 0.2):" in text and "def about(name: str):" in text
    assert "def stock(self, item: Any): return 3\n    def other(self, item): return 3" in text
    assert (4, "models do not read the text of KeyError here: raise ToolError for what they should read") in notes


def test_a_function_of_another_file_is_rewritten_if_a_call_registers_it_and_its_name_is_used_once() -> None:
    app = "from fastmcp import FastMCP\nfrom .a import price, name\nm = FastMCP('x')\nm.tool(price)\nm.tool(name)\n"
    files = {"app": app, "a": "def price(item): ...\ndef name(item): ...\n", "b": "def name(item): ...\n"}
    done = migrate_files({Path(f"shop/{name}.py"): text for name, text in files.items()})
    assert done[Path("shop/a.py")].text == ("from typing import Any\ndef price(item: Any): ...\ndef name(item): ...\n")
    assert done[Path("shop/b.py")].text == files["b"]


@pytest.mark.parametrize("content", ["from mcp.types import TextContent", "from mcp import types"])
def test_what_a_client_of_theirs_reads_stays_theirs(content: str) -> None:
    kind = "types.TextContent" if "import types" in content else "TextContent"
    written = (
        f"from mcp import ClientSession\n{content}\n"
        f"async def test_it(session: ClientSession):\n    assert (await session.read()) == [{kind}(text='a')]\n"
    )
    text, notes = migrate(written)
    assert text == written
    assert any("their client reads it" in note.text for note in notes)
    assert "Text('a')" in migrate(f"from fastmcp import FastMCP\n{written}").text


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            "@mcp.tool(version='2')\ndef f() -> str: ...",
            "of two with one name keep one, or give each a name of its own",
        ),
        ("@mcp.tool(serializer=dump)\ndef f() -> str: ...", "return the text itself"),
        ("FastMCP('x', providers=[p])", "call server.mount(child) for each"),
        ("from fastmcp.server.auth.providers.github import GitHubProvider\nGitHubProvider", "OAuthProxy("),
        ("from mcp.types import PromptMessage\nPromptMessage", "write User("),
    ],
)
def test_a_note_on_what_is_not_rewritten_says_what_to_write(written: str, told: str) -> None:
    notes = migrate(f"from fastmcp import FastMCP\nmcp = FastMCP('shop')\n{written}\n").notes
    assert [told in note.text for note in notes] == [True]


def test_a_low_level_server_whose_tools_are_not_listed_is_left_alone_and_reported() -> None:
    unlisted = LOW_LEVEL.replace("@app.list_tools()", "")
    text, notes = migrate(unlisted)
    assert text == unlisted
    assert [note.text for note in notes] == [
        "the list of tools is not known: write a function for each, with @server.tool(schema=…), and migrate again"
    ]


def test_a_version_that_only_the_options_of_run_have_is_reported() -> None:
    options = 'InitializationOptions(server_name="m", server_version="1.0")'
    text, notes = migrate(LOW_LEVEL.replace("app.create_initialization_options()", options))
    assert "InitializationOptions" not in text
    assert [tuple(note) for note in notes] == [
        (13, 'the version is left out with its line: write Server(…, version="1.0")')
    ]


IN_A_FUNCTION = """\
import mcp.server.stdio
from mcp import McpError, types
from mcp.server.lowlevel import Server
from mcp.types import ErrorData

def make(shop: str) -> Server:
    server = Server("prices")
    SCHEMAS = {"price": {"type": "object", "properties": {"item": {"type": "string"}}}, "shop": {"type": "object"}}

    @server.list_prompts()
    async def prompts(): return []

    @server.get_prompt()
    async def prompt(name, arguments): ...

    @server.list_tools()
    async def tools() -> list[types.Tool]:
        return [types.Tool(name=name, description="A.", inputSchema=schema) for name, schema in SCHEMAS.items()]

    # for all
    @server.call_tool()
    async def call(name: str, arguments: dict) -> list[types.TextContent]:
        if name == "shop":
            raise McpError(ErrorData(code=-1, message="no " + shop))
        return [types.TextContent(type="text", text=arguments["item"] + ": 2.5")]

    return server

class Runner:
    async def serve(self, shop):
        server = make(shop)
        # on stdio
        options = server.create_initialization_options()
        async with mcp.server.stdio.stdio_server() as streams:
            await server.run(streams[0], streams[1], options)
"""


async def test_a_low_level_server_inside_a_function_answers_as_before() -> None:
    main = "from .app import Runner\nasync def main():\n    await Runner().serve('tea')\nasyncio.run(main())\n"
    done = migrate_files({Path("shop/app.py"): IN_A_FUNCTION, Path("shop/__main__.py"): f"import asyncio\n{main}"})
    text, notes = done[Path("shop/app.py")]
    assert notes == [] and "mcp" not in text and "asyncio" not in text
    assert text.endswith("        server = make(shop)\n        # on stdio\n        server.run()\n")
    assert done[Path("shop/__main__.py")].text == (
        "from .app import Runner\ndef main():\n    Runner().serve('tea')\nmain()\n"
    )
    names: dict[str, Any] = {}
    exec(text, names)
    async with names["make"]("tea").connect() as client:
        assert [(tool["name"], tool["description"]) for tool in await client.tools()] == [
            ("price", "A."),
            ("shop", "A."),
        ]
        assert await client.call("price", item="cup") == "cup: 2.5"
        with pytest.raises(ToolError, match="no tea"):
            await client.call("shop")


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (
            "types.ImageContent(type='image', data=base64.b64encode(png).decode(), mimeType='image/png')",
            "Image(data=png, mime_type='image/png')",
        ),
        ("types.AudioContent(type='audio', data=text, mimeType=kind)", "Audio(data=b64decode(text), mime_type=kind)"),
        ("types.ResourceLink(type='resource_link', uri=AnyUrl(u), name='a')", "Link(uri=u, name='a')"),
        (
            "types.EmbeddedResource(type='resource', resource=types.TextResourceContents(uri=u, text=t))",
            "Embedded(uri=u, text=t)",
        ),
        ("types.PromptMessage(role='user', content=types.TextContent(type='text', text=t))", "User(t)"),
        (
            "types.CallToolResult(content=[types.TextContent(type='text', text=t)], structuredContent=d)",
            "ToolResult(content=[Text(t)], data=d)",
        ),
    ],
)
def test_content_of_the_sdk_is_made_of_what_ours_is_made_of(written: str, wanted: str) -> None:
    text, notes = migrate(f"from mcp import types\nfrom mcp.server.fastmcp import FastMCP\na = {written}\n")
    assert f"a = {wanted}\n" in text.replace("ToolResult([", "ToolResult(content=[") and notes == []


def test_a_result_that_is_an_error_is_raised_unless_the_program_would_catch_it() -> None:
    failed = "return types.CallToolResult(content=[types.TextContent(type='text', text=t)], isError=True)"
    head = "from mcp import types\nfrom mcp.server.fastmcp import FastMCP\nmcp = FastMCP('x')\n@mcp.tool()\n"
    body = f"def f(t: str) -> types.CallToolResult:\n    try: {failed}\n    except Exception:\n        {failed}\n"
    text, notes = migrate(head + body)
    assert (
        text.endswith("    except Exception:\n        raise ToolError(t)\n") and "def f(t: str) -> ToolResult:" in text
    )
    assert [note.line for note in notes] == [6] and "or raise ToolError(text) if it is an error" in notes[0].text


async def test_a_plain_class_that_tools_return_gets_a_json_form() -> None:
    written = (
        "from mcp.server.fastmcp import FastMCP\nmcp = FastMCP('x')\n"
        "class Item:\n    name: str\n    def __init__(self, name): self.name = name\n"
        "class Other:\n    name: str = ''\n"
        "@mcp.tool()\ndef f() -> list[Item]: return [Item('tea')]\n"
        "@mcp.tool()\ndef g() -> Item: return Item('tea')\n"
    )
    text, notes = migrate(written)
    assert notes == [] and "@dataclass(init=False, repr=False, eq=False)\nclass Item:" in text
    assert text.count("@dataclass") == 1
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)
    async with names["mcp"].connect() as client:
        assert await client.call("g") == {"name": "tea"}


def test_tools_of_a_low_level_server_keep_their_annotations_and_other_names_of_the_program() -> None:
    written = LOW_LEVEL.replace("name=", "annotations=types.ToolAnnotations(readOnlyHint=True), name=", 1)
    text, notes = migrate(written + "def _a(): ...\n")
    assert notes == [] and '"readOnlyHint": True' in text and "async def _a_(**arguments: Any)" in text


@pytest.mark.parametrize(
    ("made", "line", "why"),
    [
        (
            "app = Server('m', on_list_tools=names, on_call_tool=call)",
            5,
            "made with on_list_tools, on_call_tool: write",
        ),
        ("class App(Server): pass", 5, "App extends a low-level server: write"),
        ("def make():\n    return Server('m', on_call_tool=call)", 6, "made with on_call_tool: write"),
        (
            "app = Server('m')\n@app.list_resources()\nasync def f(): return some()",
            7,
            "write a function for each with @s",
        ),
        ("app = Server('m')\napp.call_tool()(call)", 6, "call_tool is not a decorator here"),
    ],
)
def test_a_low_level_server_of_another_shape_is_left_alone(made: str, line: int, why: str) -> None:
    head = "from mcp import types\nfrom mcp.server import Server\nasync def names(ctx, params): ...\n"
    written = f"{head}async def call(ctx, params): return types.CallToolResult(content=[])\n{made}\n"
    text, notes = migrate(written)
    assert text == written
    assert [note.line for note in notes] == [line] and why in notes[0].text


def test_other_files_stay_if_their_low_level_server_is_left() -> None:
    server = "from mcp.server import Server\ndef make():\n    return Server('x', on_call_tool=run)\n"
    part = "from mcp.types import TextContent\ndef run():\n    return [TextContent(type='text', text='a')]\n"
    done = migrate_files({Path("app/server.py"): server, Path("app/tools.py"): part})
    assert [migration.text for migration in done.values()] == [server, part]
    assert "like the low-level server of this project" in done[Path("app/tools.py")].notes[0].text
    assert "Text(" in migrate(part).text


def test_a_low_level_server_that_runs_beside_other_tasks_is_left_and_reported() -> None:
    written = f"import asyncio\n{LOW_LEVEL}async def both():\n    await asyncio.gather(main(), other())\n"
    text, notes = migrate(written)
    assert text == written
    assert [tuple(note) for note in notes] == [(16, "main starts a loop of its own: run it by itself")]
    other = "import asyncio\nfrom app import main\nasync def both():\n    await asyncio.gather(main(), other())\n"
    done = migrate_files({Path("app.py"): LOW_LEVEL, Path("both.py"): other})
    assert [each.text for each in done.values()] == [LOW_LEVEL, other]
    assert [note.line for note in done[Path("both.py")].notes] == [4]


def test_handlers_in_another_file_than_their_low_level_server_are_rewritten_with_it() -> None:
    app = "from mcp.server import Server\napp = Server('m')\n"
    tools = LOW_LEVEL.replace("mcp.server import Server\n", ".app import app\n").replace('app = Server("m")\n', "")
    done = migrate_files({Path("shop/app.py"): app, Path("shop/tools.py"): tools})
    assert done[Path("shop/app.py")].text == "from defserve import Server\napp = Server('m')\n"
    assert '@app.tool(name="a", schema=' in done[Path("shop/tools.py")].text
    assert "list_tools" not in done[Path("shop/tools.py")].text


def test_subclasses_of_servers_are_servers_in_every_file() -> None:
    base = (
        "from fastmcp import FastMCP\n"
        "class Base(FastMCP):\n"
        "    def __init__(self, name: str) -> None:\n"
        "        super().__init__(name=name, debug=True)\n"
        "        self.tool(self.price, tags={'a'})\n"
        "    def price(self) -> float: ...\n"
        "class Passing(FastMCP):\n"
        "    def __init__(self, **options):\n"
        "        super().__init__(**options)\n"
    )
    shop = "from .base import Base\nclass Shop(Base): pass\n"
    app = "from .shop import Shop\nmcp = Shop('x')\n@mcp.tool(tags={'a'})\ndef f() -> int: ...\nmcp.run('http')\n"
    plain = "from fastmcp import FastMCP\nclass Plain(FastMCP[int]): pass\nmcp = Plain(name='x', debug=True)\n"
    sources = {"base": base, "shop": shop, "app": app, "plain": plain}
    done = migrate_files({Path(f"shop/{name}.py"): text for name, text in sources.items()})
    texts = {path.stem: migration.text for path, migration in done.items()}
    assert "super().__init__(name)\n        self.tool(self.price, tags=['a'], structured=True)" in texts["base"]
    assert "super().__init__(**options)" in texts["base"]
    assert "@mcp.tool(tags=['a'], structured=True)" in texts["app"] and 'run(on="http://' in texts["app"]
    assert texts["plain"].endswith("class Plain(Server): pass\nmcp = Plain('x')\n")


def test_self_is_the_server_in_its_own_class_and_not_in_a_class_inside_it() -> None:
    run = "self.run(transport='stdio')\n"
    written = (
        "from fastmcp import FastMCP\n"
        "class Shop(FastMCP):\n"
        f"    def before(self): {run}"
        "    class Job:\n"
        f"        def start(self): {run}"
        "    class Other(FastMCP):\n"
        f"        def start(self): {run}"
        f"    def after(self): {run}"
    )
    ran = [line.partition(": ")[2] for line in migrate(written).text.splitlines() if "run" in line]
    assert ran == ["self.run()", run.strip(), "self.run()", "self.run()"]


def test_only_what_a_file_imports_is_a_server_of_another_file() -> None:
    shop = "from fastmcp import FastMCP\nclass Shop(FastMCP): pass\n"
    app = (
        "from shop import Shop as Store\nimport shop\n"
        "class Small(shop.Shop): pass\n"
        "one, two = Store('x', debug=True), Small(name='y', debug=True)\n"
    )
    other = (
        "from sales import Base\nclass Shop(Base):\n"
        "    def __init__(self):\n        super().__init__('x', port=3)\n        self.run(transport='stdio')\n"
        "shop = Shop('x', 3)\n"
    )
    done = migrate_files({Path("shop.py"): shop, Path("app.py"): app, Path("other.py"): other})
    assert "one, two = Store('x'), Small('y')\n" in done[Path("app.py")].text
    assert done[Path("other.py")].text == other


def test_a_constructor_of_the_program_itself_keeps_its_arguments() -> None:
    base = (
        "from fastmcp import FastMCP\nclass Base(FastMCP):\n"
        "    def __init__(self, name: str, price: int) -> None:\n        super().__init__(name, debug=True)\n"
        "class Same(Base): pass\nsame = Same('x', 5)\n"
    )
    shop = (
        "from base import Same\nclass Shop(Same):\n"
        "    def __init__(self) -> None:\n        super().__init__('shop', 4)\n"
        "class Again(Same): pass\nagain = Again('y', 5)\n"
    )
    done = migrate_files({Path("base.py"): base, Path("shop.py"): shop})
    assert "super().__init__(name)\n" in done[Path("base.py")].text
    assert done[Path("base.py")].text.endswith("same = Same('x', 5)\n") and done[Path("shop.py")].text == shop


def test_icons_and_annotations_of_the_sdk_become_ours() -> None:
    written = (
        "from mcp.types import Icon, ToolAnnotations\n"
        "icon = Icon(src='https://a.example/b.png', mimeType='image/png')\n"
        "def hints(a: bool) -> ToolAnnotations:\n    return ToolAnnotations(readOnlyHint=a)\n"
    )
    assert migrate(written) == (
        "from typing import Any\n\nfrom defserve import Icon\n"
        "icon = Icon(src='https://a.example/b.png', mime_type='image/png')\n"
        'def hints(a: bool) -> dict[str, Any]:\n    return {"readOnlyHint": a}\n',
        [],
    )


@for_each_row(
    "written line note",
    [
        ("from PIL import Image\nfrom fastmcp.utilities.types import Image as Picture\nPicture()", 3, "Image is also"),
        ("from fastmcp.exceptions import *", 3, "what * brings is not known"),
        ("proxy = FastMCP.as_proxy(x)", 3, "FastMCP.as_proxy is not rewritten"),
        ("mcp = FastMCP()\nmcp.middleware.append(guard)", 4, "mcp.middleware is not rewritten: write @server.around"),
        (
            "from fastmcp.utilities.types import Image\nImage('a').to_data_uri()",
            4,
            "to_data_uri is not rewritten: write f",
        ),
        ("class Shop(FastMCP):\n    def tool(self): ...", 3, "Shop is a server: check what it overrides"),
        (
            "from mcp.types import ToolAnnotations\nann = ToolAnnotations(readOnlyHint=True)\nprint(ann.readOnlyHint)",
            5,
            'readOnlyHint is not rewritten: the annotations of a tool are a dict, write .get("readOnlyHint")',
        ),
        ("if tool.annotations.destructive_hint: ...", 3, 'write .get("destructiveHint")'),
        ("asyncio.run(made().run_async())", 3, "made.run_async is left as it is: write run()"),
    ],
)
def test_what_would_break_is_reported(written: str, line: int, note: str) -> None:
    notes = migrate(f"{HEAD}{written}\n").notes
    assert any(found.line == line and note in found.text for found in notes), notes


@for_each_row(
    "written wanted",
    [
        ("FastMCP(auth=None)", 'Server("m")'),
        ("FastMCP(\n    auth=None,\n)", 'Server(\n    "m",\n)'),
        ("FastMCP(\n    # a\n    auth=None,  # b\n    # c\n)", 'Server(\n    # a\n    "m",\n    # b\n    # c\n)'),
        ("FastMCP('a', debug=True,  # b\n  version='1')", "Server('a',  # b\n  version='1')"),
        ("FastMCP('a',  # b\n  debug=True)", "Server('a'  # b\n  )"),
        ("FastMCP('a',\n  debug=True)", "Server('a')"),
        ("mcp.run(\n  transport='stdio',\n)", "mcp.run()"),
        ("FastMCP(\n  debug=True, name='a'\n)", "Server(\n  name='a'\n)"),
        ("FastMCP('a', 'Do.',  # b\n)", "Server('a', instructions='Do.',  # b\n)"),
        ("mcp.tool(\n  # a\n  enabled=True\n)(f)", "mcp.tool(\n  # a\n)(f)"),
        ("mcp.run(\n  'http',  # a\n  port=9  # b\n)", 'mcp.run(\n  on="http://127.0.0.1:9/mcp"  # a\n  # b\n)'),
        ("mcp.run(\n  port=9,  # b\n  transport='http',\n)",
         'mcp.run(\n  # b\n  on="http://127.0.0.1:9/mcp",\n)'),
        ("mcp.run(\n  transport='sse',  # a\n)",
         'mcp.run(\n  on="http://127.0.0.1:8000/sse",  # a\n  legacy_sse=True,\n)'),
    ],
)  # fmt: skip
def test_a_call_stays_in_its_lines_with_its_comments(written: str, wanted: str) -> None:
    text, notes = migrate(f"{HEAD}def f() -> str: ...\nx = {written}\n", "m")
    assert text.endswith(f"\nx = {wanted}\n") and notes == []


def test_other_programs_are_left_alone() -> None:
    text = "import json\n\n\nclass FastMCP: ...\n"
    assert migrate(text).text == text and "nothing of FastMCP" in migrate(text).notes[0].text
    with pytest.raises(UsageError, match="server.py:1: this is not valid Python"):
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


def test_comments_of_the_tools_of_a_low_level_server_stay_with_them() -> None:
    listed = """    return [
        # first
        types.Tool(
            name="a",  # short
            inputSchema={"type": "object"},
        ),
        # second
        types.Tool(name="b", inputSchema={}),
    ]
@app.call_tool()"""
    before, after = LOW_LEVEL.split("    return [types.Tool"), LOW_LEVEL.partition("@app.call_tool()")[2]
    text, notes = migrate(f"{before[0]}{listed}{after}".replace("@app.list", "# all\n@app.list"))
    assert notes == []
    assert (
        """
# all
# first
@app.tool(
        name="a",  # short
        schema={"type": "object"},
    )
async def _a("""
        in text
    )
    assert '\n# second\n@app.tool(name="b", schema={})\nasync def _b(' in text


def test_a_person_at_a_terminal_sees_which_file_is_migrated_and_a_pipe_gets_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("from fastmcp import FastMCP\nmcp = FastMCP('x')\n")
    shown: list[tuple[float, float | None, str | None]] = []
    monkeypatch.setattr(ProgressDisplay, "show_progress", lambda _, *told: shown.append(told))
    assert main(["migrate", "a.py", "b.py"]) == 0
    assert shown == [] and capsys.readouterr().err == ""
    monkeypatch.setattr(screen, "can_draw", lambda _: True)
    assert main(["migrate", "a.py", "b.py", "--diff"]) == 0
    assert [(step, total) for step, total, _ in shown] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [text for _, _, text in shown] == ["Migrating a.py", "Migrating b.py"] * 2


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


@for_each_row(
    "written wanted",
    [
        (
            "from fastmcp.utilities.logging import get_logger\nlog = get_logger(__name__)\n",
            "from logging import getLogger\nlog = getLogger(__name__)\n",
        ),
        (
            "from contextlib import suppress\n"
            "from fastmcp.server.lifespan import lifespan\n@lifespan\nasync def f(server): yield {}\n",
            "from contextlib import suppress, asynccontextmanager\n"
            "@asynccontextmanager\nasync def f(server): yield {}\n",
        ),
    ],
)
def test_what_the_standard_library_has_comes_from_there(written: str, wanted: str) -> None:
    migration = migrate(written)
    assert (migration.text, migration.notes) == (wanted, [])
