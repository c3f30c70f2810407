from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from defserve.base.version import VERSION
from defserve.cli import COMMANDS, main
from tests.cli.goldens import FOLDER
from tests.cli.running import Run

SHELF = str(FOLDER / "shelf.py")


def test_help_names_every_command_and_shows_examples(defserve: Run):
    code, out, _ = defserve("--help")
    assert code == 0
    assert all(name in out and about in out for name, (_, about) in COMMANDS.items())
    assert "defserve call server.py add a=1 b=2" in out


def test_no_command_at_all_shows_the_help_and_is_wrong(defserve: Run):
    assert defserve()[:2] == (1, defserve("-h").out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(defserve: Run, command: str):
    code, out, _ = defserve(command, "--help")
    assert code == 0
    assert f"usage: defserve {command}" in out
    assert "examples:\n  defserve " in out


def test_the_version_is_ours(defserve: Run):
    assert defserve("--version") == (0, f"defserve {VERSION}\n", "")


def test_help_groups_the_commands_by_what_one_wants_to_do(defserve: Run):
    blocks = [block.splitlines() for block in defserve("--help").out.split("\n\n")[2:-2]]
    groups = {block[0]: [line.split()[0] for line in block[1:]] for block in blocks}
    assert list(groups) == ["build:", "run:", "look:", "secure:", "ship:", "operate:", "help:"]
    assert [name for names in groups.values() for name in names] == list(COMMANDS)
    assert groups["secure:"] == ["keys", "why", "login", "logout", "dev-issuer", "audit"]


def test_an_unknown_command_is_wrong_usage(defserve: Run):
    code, _, err = defserve("xyzzy")
    assert code == 1
    assert "there is no command 'xyzzy'" in err and "run, dev, install, uninstall" in err


# As the script `defserve` does. Ctrl-C comes when a module is about to be imported.
INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
{start}
"""
STARTS = {
    "the script": "from defserve.__main__ import main; sys.exit(main())",
    "the module": "import runpy; runpy.run_module('defserve', run_name='__main__')",
}


@pytest.mark.parametrize("module", ["defserve.cli", "defserve.cli.exits", "defserve.errors"])
@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_while_modules_are_imported_ends_a_command_quietly(start: str, module: str):
    code = INTERRUPTED.format(start=STARTS[start])
    ended = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("word", ["server.py", "src/server.py:catalogue", "http://127.0.0.1:8000/mcp"])
def test_a_server_without_a_command_is_told_which_commands_take_it(defserve: Run, word: str):
    assert f"defserve list {word} shows what it offers" in defserve(word).err


def test_help_can_be_asked_for_by_the_word_and_the_version_by_its_short_option(defserve: Run):
    assert defserve("help") == defserve("--help")
    assert defserve("help", "list") == defserve("list", "--help")
    assert defserve("-V") == defserve("--version")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["call", SHELF, "x", "--timeout", "-1"], "--timeout: '-1' is not a number of seconds"),
        (["call", SHELF, "x", "--timeout", "nan"], "--timeout: 'nan' is not a number of seconds"),
        (["dev", SHELF, "--grace", "-1"], "--grace: '-1' is not a number of seconds"),
        (["eval", SHELF, "x", "--answer-timeout", "soon"], "--answer-timeout: 'soon' is not a number of seconds"),
        (["dev", SHELF, "--port", "abc"], "--port: 'abc' is not a whole number"),
        (["eval", SHELF, "x", "--temperature", "hot"], "--temperature: 'hot' is not a number"),
        (
            ["keys", "create", "ada", "--expires"],
            "--expires needs a value\n  fix: write --expires VALUE, or --expires=VALUE if the value begins with a dash",
        ),
    ],
)
def test_a_value_that_is_no_number_is_refused_in_plain_words(defserve: Run, argv: list[str], complaint: str):
    code, _, err = defserve(*argv)
    assert code == 1 and complaint in err


def test_a_command_that_is_misspelt_is_met_with_a_suggestion(defserve: Run):
    assert defserve("lsit") == (1, "", "error: there is no command 'lsit'\n  fix: did you mean 'list'?\n")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["list", "--bogus", "x"], "defserve list has no option --bogus"),
        (["list"], "no server is given"),
        (["list", "tests.testing.toy:server", "more"], "one server at a time"),
        (["list", "--"], "nothing follows `--`"),
        (["run", "https://example.org/mcp"], "is an address"),
        (["list", "ftp://example.org/mcp"], "use http://, https://, ws:// or wss://"),
        (["list", "http://127.0.0.1:1/", "-H", "nonsense"], "'nonsense' is not a header"),
        (["list", "nowhere.py"], "there is no file"),
        (["list", "-m", "nowhere"], "no module 'nowhere'"),
        (["list", "tests.testing.toy", "--era", "stone"], "there is no protocol version 'stone'"),
        (["list", "tests.testing.toy", "--era", "stone"], "; without one, it is negotiated"),
        (["call", "tests.testing.toy", "add", "--args", "{a:1}"], """fix: write --args '{"key": "value"}'"""),
        (["call", "tests.testing.toy"], "no tool is given"),
        (["call", "tests.testing.toy", "a=1"], "no tool is given"),
        (["call", "tests.testing.toy", "add", "a"], "'a' is not an argument"),
        (["call", "tests.testing.toy", "add", "a:=x"], "a: 'x' is not JSON"),
        (["call", "tests.testing.toy", "add", "--json", "[]"], "--args must be an object"),
        (["run"], "run needs one server"),
        (["dev"], "dev needs one server"),
        (["kernel", "status"], "has no action 'status'\n  fix: did you mean 'ps'?"),
        (["audit"], "defserve audit needs ACTION\n  fix: give one of verify, show, export"),
        (["state", "rollback"], "defserve state rollback needs STORE and CHECKPOINT"),
        (["run", "x.py", "-m", "y"], "run needs one server"),
        (["run", "x.py", "--log-level", "loud"], "--log-level cannot be 'loud'"),
    ],
)
def test_wrong_usage_is_explained_on_stderr(defserve: Run, argv: list[str], complaint: str):
    code, out, err = defserve(*argv)
    assert (code, out) == (1, "")
    assert complaint in err and "fix: " in err


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["lsit"], "list"),
        (["list", "x", "--jsn"], "--json"),
        (["list", SHELF, "--era", "handshke"], "handshake"),
        (["run", "x.py", "--log-level", "inf"], "info"),
        (["run", SHELF, "--on", "htp://127.0.0.1:8000/mcp"], "http"),
        (["call", SHELF, "cove"], "cover"),
        (["keys", "creat"], "create"),
        (["keys", "create", "bob", "--allow", "ToolInvok(x)"], "ToolInvoke(TOOL)"),
        (["kernel", "resart", "x"], "restart"),
        (["kernel", "import", "cursr"], "cursor"),
        (["state", "shw"], "show"),
        (["export", "x", "--format", "catlog"], "catalog"),
        (["install", "x.py", "--client", "cursr"], "cursor"),
        (["new", "x", "--template", "tols"], "tools"),
        (["add", "tol", "x"], "tool"),
        (["check", SHELF, "--ignore", "vage-name"], "vague-name"),
        (["completion", "zhs"], "zsh"),
        (["gateway", "--confg", "x"], "--config"),
        (["topic", "--tokn", "x"], "--token"),
        (["list", "wether"], "weather"),
        (["list", ".mcp.json:wether"], "weather"),
        (["test", "wether"], "weather"),
        (["uninstall", "wether"], "weather"),
    ],
)
def test_every_slip_of_the_finger_is_met_with_a_suggestion(defserve: Run, folder: Path, argv: list[str], meant: str):
    Path(".mcp.json").write_text('{"mcpServers": {"weather": {"command": "true"}}}')
    code, out, err = defserve(*argv)
    assert code and out == ""
    assert f"fix: did you mean {meant!r}?" in err


def test_a_server_that_cannot_be_started_is_unreachable(defserve: Run):
    code, _, err = defserve("list", "--", "no-such-command-here")
    assert code == 4
    assert "cannot start 'no-such-command-here'" in err and "\n  fix: give its full path, or put it on PATH" in err


def test_a_server_that_dies_is_unreachable_and_its_last_words_are_shown(defserve: Run):
    code, _, err = defserve("call", "add", "--", sys.executable, "-c", "import sys; sys.exit('no database')")
    assert code == 4
    assert "exited with code 1" in err and "no database" in err


def test_a_file_that_forgets_to_serve_is_told_so(defserve: Run):
    code, _, err = defserve("list", "--", sys.executable, "-c", "made = True")
    assert code == 4
    assert "exited with code 0: it ended without serving; does the file end with server.main()?" in err


def test_a_server_that_is_silent_is_unreachable(defserve: Run):
    waits = "import sys; sys.stdin.read()"
    code, _, err = defserve("list", "--era", "stateless", "--timeout", "0.05", "--", sys.executable, "-c", waits)
    assert code == 4
    assert "no answer to server/discover within 0.05 s" in err
    assert "\n  fix: -v shows what it writes to stderr; --timeout waits longer" in err


@pytest.mark.parametrize(
    ("command", "on", "option"),
    [
        (command, on, option)
        for command, on in (
            (["run", "x.py"], "http://127.0.0.1:8000/mcp"),
            (["dev", "x.py"], "http://127.0.0.1:8000/mcp"),
            (["gateway", "--config", "x.toml"], "ws://127.0.0.1:8100/ws"),
        )
        for option in ("--port", "--host=0.0.0.0", "--transport", "-t")
        if (command[0], option) != ("dev", "--port")  # the port of its inspector
    ],
)
def test_what_is_part_of_the_address_is_said(defserve: Run, command: list[str], on: str, option: str):
    code, _, err = defserve(*command, option)
    name, _, host = option.partition("=")
    meant = on.replace("127.0.0.1", host or "127.0.0.1")
    assert (code, err) == (1, f"error: defserve {command[0]} has no option {name}\n  fix: write --on {meant}\n")


def test_who_wants_to_reload_is_sent_to_dev(defserve: Run):
    code, _, err = defserve("run", "x.py", "--reload")
    assert code == 1 and "fix: write defserve dev; it reloads" in err


def test_the_module_is_the_command():
    argv = [sys.executable, "-m", "defserve", "--version"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"defserve {VERSION}\n"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_failure():
    argv = [sys.executable, "-m", "defserve", "list", "tests.testing.toy"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full, as Linux has it")
@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["doctor"]])
def test_output_that_has_no_room_is_told(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    with monkeypatch.context() as patched, suppress(OSError), open("/dev/full", "w") as full:
        patched.setattr(sys, "stdout", full)
        assert main(argv) == 1
    assert capfd.readouterr().err == "error: the output cannot be written: No space left on device\n"


def test_a_terminal_that_lacks_a_character_gets_its_code(monkeypatch: pytest.MonkeyPatch):
    shown = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(shown, "latin-1"))
    monkeypatch.setattr("defserve.cli.VERSION", "café → ✓")
    assert main(["--version"]) == 0
    assert shown.getvalue() == "defserve café \\u2192 \\u2713\n".encode("latin-1")


@pytest.mark.skipif(os.name != "posix", reason="names of files that are no text")
@pytest.mark.parametrize(
    "argv", [["install", "calc\udcff.py"], ["new", "calc-mcp", "--yes", "--description", "\udcff"]]
)
def test_what_cannot_be_written_as_utf_8_is_told_without_a_traceback(defserve: Run, folder: Path, argv: list[str]):
    with suppress(OSError):
        Path("calc\udcff.py").write_text("from defserve import Server\nserver = Server('calc')\n")
    code, _, err = defserve(*argv)
    assert (code, err) == (1, f"error: {argv[-1]!r} is not UTF-8\n  fix: give it, or name the file, in UTF-8\n")


def test_running_a_server_imports_no_client(folder: Path):
    Path("calc.py").write_text(
        "class Server:\n"
        "    def connect(self): ...\n"
        "    def run(self, on):\n"
        "        import json, sys\n"
        "        print(json.dumps([m for m in sys.modules if m.startswith(('defserve', 'asyncio', 'anyio'))]))\n"
        "server = Server()\n"
    )
    argv = [sys.executable, "-m", "defserve", "run", "calc.py"]
    loaded = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert "defserve.cli.commands.run" in loaded
    assert not {"asyncio", "anyio", "defserve.client.client", "defserve.cli.commands.inspect"} & set(loaded)


def unreadable(*_: object) -> int:
    raise PermissionError(errno.EACCES, "Permission denied", "secrets.toml")


def test_a_file_that_no_command_thought_of_is_told_without_a_traceback(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.cli.commands.completion.run_version", lambda _: os.listdir("/nowhere"))
    monkeypatch.setattr("defserve.client.targets.find_author_line", lambda _: "")
    code, out, err = defserve("version")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot use /nowhere: No such file or directory\n  fix: ")


def test_an_author_whose_code_cannot_open_a_file_sees_the_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.cli.commands.completion.run_version", unreadable)
    with pytest.raises(PermissionError):
        main(["version"])


@pytest.mark.parametrize("command", [["list"], ["inspect"], ["check"], ["export", "--format", "catalog"]])
def test_a_file_that_calls_main_without_a_guard_can_be_looked_at(
    defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
):
    Path("mine.py").write_text("from defserve import Server\nserver = Server('a', '1')\nserver.main()\n")
    monkeypatch.setattr(sys, "argv", ["defserve", *command, "mine.py"])
    assert defserve(*command, "mine.py").code == 0


def test_verbose_shows_the_traceback_of_a_file_that_fails(defserve: Run, folder: Path):
    Path("mine.py").write_text("import json\njson.loads('{')\n")
    code, _, err = defserve("list", "mine.py")
    assert code == 1 and err.startswith("error: mine.py:2: running mine.py failed: JSONDecodeError: ")
    code, _, err = defserve("list", "mine.py", "-v")
    assert code == 1 and err.startswith("Traceback (most recent call last):\n") and "in raw_decode" in err
    assert "\nerror: mine.py:2: running mine.py failed: JSONDecodeError: " in err


@pytest.mark.parametrize(
    ("code", "fix"),
    [("os.environ['JWT_KEY']", "\n  fix: set the environment variable JWT_KEY\n"), ("{}['a']", "'a'\n")],
)
def test_a_variable_that_a_server_needs_and_is_not_set_is_named(defserve: Run, folder: Path, code: str, fix: str):
    (folder / "needs.py").write_text(f"import os\n{code}\n")
    result, _, err = defserve("list", "needs.py")
    assert (result, err.startswith("error: needs.py:2: running needs.py failed: KeyError"), err.endswith(fix)) == (
        1,
        True,
        True,
    ), err


def test_verbose_shows_no_traceback_of_a_mistake_on_the_command_line(defserve: Run, folder: Path):
    code, _, err = defserve("list", "nothing.py", "-v")
    assert code == 1 and err.startswith("error: there is no file")


def test_a_file_that_ends_the_program_is_not_silent(defserve: Run, folder: Path):
    Path("mine.py").write_text("import sys\nsys.exit(3)\n")
    code, _, err = defserve("list", "mine.py")
    assert code == 1 and err.startswith("error: mine.py:2: mine.py ended the program while it was loaded (exit 3)\n")


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(sys, name, None)
    assert main(["list", SHELF]) == 0
    assert main(["list", "nothing.py"]) == 1
    assert main(["--version"]) == 0
    assert getattr(sys, name) is None


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_shell_may_close_all_streams():
    command = f'exec "{sys.executable}" -m defserve list "{SHELF}" <&- >&- 2>&-'
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0
