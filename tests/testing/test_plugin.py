from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAD = "import pytest\nfrom defserve.testing import Accept, Cancel, Decline\n"
SERVES = HEAD + 'pytestmark = pytest.mark.serves("tests.testing.toy:server")\n'


def run(suite: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    suite.makepyfile(test_it=code)
    return suite.runpytest_inprocess("-v", *args)


def test_a_test_runs_in_both_eras(suite: pytest.Pytester):
    result = run(suite, SERVES + "def test_add(client):\n    assert client.call('add', a=1, b=2) == 3")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_add?handshake? PASSED*", "*test_add?stateless? PASSED*"])


@pytest.mark.slow
def test_a_failure_points_at_the_line_of_the_test(suite: pytest.Pytester):
    result = run(
        suite,
        """
import pytest

@pytest.mark.serves("tests.testing.calculator:server")
def test_add(client):
    client.call("add", a="one")
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["test_it.py:5: ToolError"])
    result.stdout.no_fnmatch_line("*from_thread.py*")


def test_a_mark_narrows_the_eras(suite: pytest.Pytester):
    result = run(
        suite,
        SERVES
        + """
@pytest.mark.eras("stateless", "2025-06-18")
def test_version(client):
    assert client.version in ("2026-07-28", "2025-06-18")

@pytest.mark.eras("stateless")
class TestIt:
    def test_era(self, client):
        assert client.stateless
""",
    )
    result.assert_outcomes(passed=3)


def test_the_server_may_be_the_object_itself_and_take_options(suite: pytest.Pytester):
    result = run(
        suite,
        HEAD
        + """
from tests.testing.toy import server

@pytest.mark.serves(server, info={"name": "custom", "version": "1"})
def test_add(client):
    assert client.call("add", a=1, b=2) == 3
    assert client.server is server
""",
    )
    result.assert_outcomes(passed=2)


def test_a_server_fixture_needs_no_mark(suite: pytest.Pytester):
    result = run(
        suite,
        """
import pytest

@pytest.fixture
def server():
    from tests.testing.toy import ToyServer
    return ToyServer()

def test_add(client, server):
    assert client.call("add", a=1, b=2) == 3
    assert client.server is server
""",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    "module",
    [
        "from tests.testing.toy import server",
        "from tests.testing.toy import server as calc\nagain = calc",
        "from tests.testing.toy import ToyServer, server\nanother = ToyServer()",
    ],
    ids=["its name", "the only one", "its name before others"],
)
def test_the_server_of_the_tests_own_module_needs_no_mark(suite: pytest.Pytester, module: str):
    test = "def test_add(client): assert client.call('add', a=1, b=2) == 3"
    run(suite, f"{module}\n\n{test}").assert_outcomes(passed=2)


def test_of_several_servers_in_a_module_none_is_guessed(suite: pytest.Pytester):
    two = "from tests.testing.toy import ToyServer\none, other = ToyServer(), ToyServer()"
    result = run(suite, f"{two}\n\ndef test_add(client): client.tools()")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*does not know which server*has 2 of them*", "*pytest.mark.serves*"])


def test_a_client_without_a_server_is_told_what_to_do(suite: pytest.Pytester):
    result = run(suite, "def test_add(client): client.tools()")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*does not know which server*", "*pytest.mark.serves*"])


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("'nowhere_to_be_found:server'", "*no module 'nowhere_to_be_found'*"),
        ("'tests.testing.toy:sever'", "*has no 'sever'*"),
        ("42", "*is 'int', not a server*"),
    ],
)
def test_a_server_that_cannot_be_loaded_is_explained(suite: pytest.Pytester, target: str, complaint: str):
    result = run(suite, f"import pytest\n@pytest.mark.serves({target})\ndef test_add(client): client.tools()")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines([complaint])


def test_a_server_that_would_serve_when_it_is_imported_does_not(suite: pytest.Pytester):
    suite.makepyfile(
        serving="""
from defserve import Server

server = Server("serving", "1")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

server.run(log_level="wrong")  # fails if it runs
"""
    )
    test = "@pytest.mark.serves('serving.py')\n@pytest.mark.eras('stateless')\ndef test_add(client):\n"
    result = run(suite, f"{HEAD}{test}    assert client.call('add', a=1, b=2) == 3")
    result.assert_outcomes(passed=1)


def test_an_unknown_era_is_explained(suite: pytest.Pytester):
    result = run(suite, SERVES + "@pytest.mark.eras('stone')\ndef test_add(client): client.tools()")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is no era 'stone'*", "*handshake, stateless*"])


def test_a_client_of_the_authors_own_is_left_alone(suite: pytest.Pytester):
    result = run(
        suite, "import pytest\n@pytest.fixture\ndef client(): return 7\ndef test_it(client): assert client == 7"
    )
    result.assert_outcomes(passed=1)


def test_logs_and_progress_are_collected(suite: pytest.Pytester):
    result = run(
        suite,
        SERVES
        + """
def test_add(client):
    client.call("add", a=1, b=2)
    assert client.progress == [(1, None, None)]
    assert [log["data"] for log in client.logs] == ["adding"]
    assert client.wait_for("notifications/message")["data"] == "adding"
""",
    )
    result.assert_outcomes(passed=2)


def test_scripted_answers_reach_the_server(suite: pytest.Pytester):
    result = run(
        suite,
        SERVES
        + """
def test_greet(client):
    client.will_answer({"name": "Ann"}, Decline, Cancel, lambda message, schema: {"name": message})
    replies = [client.call("greet") for _ in range(4)]
    assert "Ann" in replies[0]
    assert "decline" in replies[1]
    assert "cancel" in replies[2]
    assert "Who?" in replies[3]

def test_url(client):
    client.will_answer(Accept)
    assert "accept" in client.call("sign_in")

def test_sample(client):
    client.will_sample("Roses are red")
    assert "Roses are red" in client.call("write")

def test_roots(client):
    client.has_roots("file:///x")
    assert "file:///x" in client.call("look")
""",
    )
    result.assert_outcomes(passed=8)


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ("greet", "*asked 'Who?', and the test has no answer for it*fix: client.will_answer({'name': ?})*"),
        ("sign_in", "*wants https://example.org opened*fix: client.will_answer(Accept)*"),
        ("write", "*asked a model*fix: client.will_sample(*"),
        ("look", "*asked for the client's roots*fix: client.has_roots(*"),
    ],
)
def test_a_question_without_an_answer_fails_the_test_and_says_how_to_give_one(
    suite: pytest.Pytester, tool: str, complaint: str
):
    result = run(suite, SERVES + f"def test_it(client): client.call({tool!r})")
    result.assert_outcomes(failed=2)
    question, fix = complaint.removesuffix("*").split("*fix")
    result.stdout.fnmatch_lines([f"E *{question}*", f"E *fix{fix}*"])


def test_an_answer_nobody_asked_for_fails_at_the_end(suite: pytest.Pytester):
    result = run(suite, SERVES + "def test_it(client):\n    client.will_answer({'a': 1})\n    client.tools()")
    result.assert_outcomes(passed=2, errors=2)
    said = ["*client.will_answer({'a': 1}) was never used*", "*fix: remove it, or find out why the tool did not ask*"]
    result.stdout.fnmatch_lines(said)


def test_a_failed_test_is_not_blamed_for_unused_answers_too(suite: pytest.Pytester):
    result = run(suite, SERVES + "def test_it(client):\n    client.will_answer({'a': 1})\n    assert False")
    result.assert_outcomes(failed=2)


def test_a_client_can_offer_less(suite: pytest.Pytester):
    result = run(
        suite,
        SERVES
        + """
from defserve.errors import PeerError, UsageError

@pytest.mark.eras("stateless")
def test_it(client):
    client.offers("sample")
    with pytest.raises(PeerError, match="did not offer"):
        client.call("greet")
    with pytest.raises(UsageError, match="too late"):
        client.offers()

def test_kinds(client):
    with pytest.raises(UsageError, match="ask, sample, roots"):
        client.offers("everything")
""",
    )
    result.assert_outcomes(passed=3)


SNAPSHOT = SERVES + "def test_schemas(schema_snapshot): schema_snapshot()"


def test_a_missing_snapshot_says_how_to_make_it(suite: pytest.Pytester):
    result = run(suite, SNAPSHOT)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*there is no snapshot*schemas/test_schemas.handshake.json*", "*--update-schemas*"])


@pytest.mark.slow
def test_a_snapshot_is_written_then_compared_then_its_difference_shown(suite: pytest.Pytester):
    run(suite, SNAPSHOT, "--update-schemas").assert_outcomes(passed=2)
    run(suite, SNAPSHOT).assert_outcomes(passed=2)
    file = suite.path / "schemas" / "test_schemas.stateless.json"
    file.write_text(file.read_text().replace('"add"', '"plus"'))
    result = run(suite, SNAPSHOT)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(['*-*"name": "plus"*', '*+*"name": "add"*', "*--update-schemas*"])


def test_a_snapshot_may_have_a_path_of_its_own(suite: pytest.Pytester):
    code = SERVES + "def test_schemas(schema_snapshot): schema_snapshot('tools.json')"
    run(suite, code, "--update-schemas").assert_outcomes(passed=2)
    assert (suite.path / "tools.json").exists()


@pytest.mark.slow
def test_starting_pytest_imports_nothing_of_ours_but_the_plugin():
    code = (
        "import json, sys, defserve.testing.plugin\n"
        "ours_or_heavy = ('defserve', 'anyio', 'pydantic', 'asyncio')\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith(ours_or_heavy))))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    below = ["base", "base.exports", "base.version", "testing", "testing.plugin"]
    assert json.loads(printed) == ["defserve", *(f"defserve.{name}" for name in below)]


def run_apart(suite: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    """In its own process: the network libraries cannot be imported twice in one."""
    suite.makepyfile(test_it=code)
    return suite.runpytest_subprocess("-v", *args)


OVER = """
import pytest

@pytest.mark.serves("tests.testing.calculator:server"{over})
def test_add(client):
    client.will_answer({{"name": "Ann"}})
    assert client.call("add", a=1) == 3
    assert client.call("greet") == "hello Ann"
    assert client.over in {expected}
"""


@pytest.mark.slow
def test_a_mark_says_what_the_server_is_reached_over(suite: pytest.Pytester):
    roads = ["memory", "stdio", "http", "ws"]
    tests = [OVER.format(over=f", over={road!r}", expected=[road]).replace("add(", f"{road}(") for road in roads]
    result = run_apart(suite, "\n".join(tests))
    result.assert_outcomes(passed=8)
    expected = [f"*test_{road}?{era}-{road}? PASSED*" for road in roads for era in ("handshake", "stateless")]
    result.stdout.fnmatch_lines(expected)


@pytest.mark.slow
def test_the_command_line_takes_a_whole_suite_to_other_roads(suite: pytest.Pytester):
    code = OVER.format(over="", expected=["http", "ws"])
    result = run_apart(suite, code, "--serve-over", "http", "--serve-over=ws")
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_a_mark_is_stronger_than_the_command_line(suite: pytest.Pytester):
    code = OVER.format(over=", over=('memory', 'ws')", expected=["memory", "ws"])
    result = run_apart(suite, code, "--serve-over=http")
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_a_road_that_does_not_exist_is_told(suite: pytest.Pytester):
    result = run(suite, OVER.format(over=", over='carrier pigeon'", expected=[]))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*carrier pigeon*memory, stdio, http, ws*"])


STORED = """
import pytest
from pathlib import Path
from pydantic import BaseModel
from defserve import Server, State

class Notes(BaseModel):
    texts: list[str] = []

def make() -> Server:
    server = Server("notes", store="sqlite:///notes.db")
    server.state(Notes)

    @server.tool
    def add(text: str, notes: State[Notes]) -> list[str]:
        notes.texts.append(text)
        return notes.texts

    return server

notes = make()
"""


@pytest.mark.slow
def test_a_test_stores_nothing_on_disk_and_finds_nothing_of_other_tests(suite: pytest.Pytester):
    suite.makepyfile(notes=STORED)
    code = """
import pytest
from pathlib import Path

@pytest.mark.serves("notes:notes", over=("memory", "http", "stdio"))
@pytest.mark.parametrize("turn", [1, 2])
def test_add(client, turn):
    assert client.call("add", text="a") == ["a"]
    assert client.call("add", text="b") == ["a", "b"]
    assert not Path("notes.db").exists()
"""
    run_apart(suite, code).assert_outcomes(passed=12)


def test_a_mark_asks_for_the_server_s_own_store(suite: pytest.Pytester):
    code = """
own = pytest.mark.serves(notes, own_store=True)

@own
def test_first(client):
    client.call("add", text="a")
    assert Path("notes.db").exists()

@own
def test_second(client):
    assert client.call("add", text="b")[:1] == ["a"]

@pytest.mark.serves(notes)
def test_in_memory(client):
    assert client.call("add", text="c") == ["c"]

@own
def test_too_late(client):
    pass
"""
    result = run(suite, STORED + code)
    result.assert_outcomes(passed=6, errors=2)
    result.stdout.fnmatch_lines(["*notes was tested with a store in memory before*", "*fix: write own_store=True*"])


def test_an_option_of_the_mark_that_does_not_exist_is_told(suite: pytest.Pytester):
    result = run(suite, OVER.format(over=", ovr='http'", expected=[]))
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*serves has no option 'ovr'*", "*fix: did you mean 'over'?*"])


def test_an_object_cannot_be_started_as_a_process(suite: pytest.Pytester):
    result = run(
        suite,
        """
import pytest
from tests.testing.calculator import server

@pytest.mark.serves(server, over="stdio")
def test_add(client):
    client.call("add", a=1)
""",
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*its own process*", "*fix: name it*"])


@pytest.mark.slow
def test_a_token_is_shown_where_somebody_asks_for_it(suite: pytest.Pytester):
    result = run_apart(
        suite,
        """
import pytest
from defserve import Server
from defserve.auth import StaticTokens

safe = Server("safe", auth=StaticTokens({"sesame": "ann"}))

@safe.tool
def open() -> str:
    return "open"

@pytest.mark.serves(safe, over=("memory", "http", "ws"), token="sesame")
def test_open(client):
    assert client.call("open") == "open"

@pytest.mark.serves(safe, over=("http", "ws"))
def test_closed(client):
    from defserve.errors import PeerError
    with pytest.raises(PeerError, match="401"):
        client.call("open")
""",
    )
    result.assert_outcomes(passed=10)


@pytest.mark.slow
def test_a_server_that_runs_is_tested_by_its_address(suite: pytest.Pytester):
    result = run_apart(
        suite,
        """
import pytest
from defserve.errors import PeerGone

@pytest.mark.serves("http://127.0.0.1:1/mcp")
def test_nobody_there(client):
    with pytest.raises(PeerGone, match="127.0.0.1:1"):
        client.tools()
""",
    )
    result.assert_outcomes(passed=2)
