from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Run

SERVER = '''from defserve import Server
server = Server("notes", "1")

@server.resource("notes://today", mime_type="text/markdown")
def today() -> str:
    """Today."""
    return "# Today"

@server.resource("notes://dot", mime_type="image/png")
def dot() -> bytes:
    return b"\\x89PNG"

@server.resource("notes://of/{day}")
def of(day: str) -> str:
    return day

@server.resource("notes://page/{n}")
def page(n: int) -> str:
    return str(n)

@server.prompt
def rate(stars: int) -> str:
    return str(stars)

@server.prompt
def review(code: str, style: str = "kind") -> str:
    """Review code."""
    return f"Review {code}, be {style}."
'''

BROKEN = """from defserve import Server
server = Server("bad", "1")

@server.resource("bad://pump")
def pump() -> str:
    raise KeyError("pump")

@server.prompt
def broken() -> str:
    raise KeyError("pump")
"""


@pytest.fixture
def notes(folder: Path) -> str:
    (folder / "notes.py").write_text(SERVER)
    return "notes.py"


def test_a_text_is_printed(defserve: Run, notes: str):
    assert defserve("read", notes, "notes://today") == (0, "# Today\n", "")
    assert defserve("read", notes, "notes://of/monday").out == "monday\n"
    assert json.loads(defserve("read", notes, "notes://today", "--json").out) == [
        {"uri": "notes://today", "mimeType": "text/markdown", "text": "# Today"}
    ]


@pytest.mark.slow
def test_bytes_go_to_a_pipe_as_they_are(notes: str):
    argv = [sys.executable, "-m", "defserve", "read", notes, "notes://dot"]
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"\x89PNG"


def test_bytes_are_saved_where_a_terminal_would_show_them(
    defserve: Run, notes: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert defserve("read", notes, "notes://dot").out == "saved dot.png (image/png, 4 bytes)\n"
    assert (folder / "dot.png").read_bytes() == b"\x89PNG"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["notes.py", "notes://tody"], 1, "did you mean 'notes://today'?"),
        (["notes.py"], 1, "no URI is given"),
        (["notes.py:server"], 1, "fix: defserve read notes.py:server URI"),
        ([], 1, "no URI is given"),
        (["notes://today"], 1, "no server is given"),
        (["notes.py", "a://b", "c://d"], 1, "read needs one URI"),
        (["-m", "notes"], 1, "no URI is given"),
        (["notes.py", "notes://today", "--jsn"], 1, "did you mean '--json'?"),
    ],
)
def test_what_cannot_be_read_is_said(defserve: Run, notes: str, argv: list[str], code: int, said: str):
    outcome = defserve("read", *argv)
    assert (outcome.code, outcome.out) == (code, "") and said in outcome.err


def test_who_asks_a_server_without_resources_or_prompts_is_told_that_it_has_none(defserve: Run, folder: Path):
    (folder / "bare.py").write_text('from defserve import Server\n\nserver = Server("bare")\n')
    for command, what in (("read", "resources"), ("prompt", "prompts")):
        assert f"fix: it has no {what}\n" in defserve(command, "bare.py", "x").err


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name"), [("read", "bad://pump"), ("prompt", "broken")])
def test_a_traceback_has_the_authors_frames_and_all_with_verbose(folder: Path, command: str, name: str):
    (folder / "bad.py").write_text(BROKEN)
    program = [sys.executable, "-m", "defserve", command, "bad.py", name]
    short, long = (
        subprocess.run([*program, *more], cwd=folder, capture_output=True, text=True).stderr for more in ([], ["-v"])
    )
    assert "KeyError: 'pump'" in short and "(-v shows every frame)" in short
    assert (short.count('  File "'), long.count('  File "') > 1) == (1, True)


def test_a_prompt_is_filled_in(defserve: Run, notes: str):
    code, out, err = defserve("prompt", notes, "review", "code=x", "style=short")
    assert (code, err) == (0, "")
    assert out == "Review code.\n\nuser:\nReview x, be short.\n"
    said = json.loads(defserve("prompt", notes, "review", "code=x", "--json").out)
    assert said["messages"][0]["content"]["text"] == "Review x, be kind."


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["notes.py", "revew", "code=x"], "notes has no prompt 'revew'\n  fix: did you mean 'review'?"),
        (["notes.py", "review"], "error: code: missing\n  fix: give what it takes: review(code, style?)\n"),
        (["notes.py", "rate", "stars=x"], 'error: stars: expected integer, got "x"\n'),
        (["notes.py"], "no prompt is given"),
        (["notes.py", "review", "code"], "'code' is not an argument"),
        (["notes.py", "review", "--code", "x"], "write code=x"),
        (["notes.py", "review", "--jsn"], "did you mean '--json'? For an argument of the prompt, write jsn=…"),
    ],
)
def test_what_cannot_be_filled_in_is_said(defserve: Run, notes: str, argv: list[str], said: str):
    outcome = defserve("prompt", *argv)
    assert (outcome.code, outcome.out) == (1, "") and said in outcome.err


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_value_that_does_not_fit_is_not_taken_for_a_misspelt_name(defserve: Run, notes: str, era: str):
    told = defserve("read", notes, "notes://page/x", "--era", era)
    assert told == (1, "", 'error: n: expected integer, got "x"\n')
    told = defserve("prompt", notes, "rate", "stars=x", "--era", era)
    assert told == (1, "", 'error: stars: expected integer, got "x"\n')


PICTURES = f'''from defserve import Image, Server
server = Server("pictures", "1")

@server.tool
def plot(title: str) -> Image:
    return Image(data=__import__("base64").b64decode("{base64.b64encode(b"png").decode()}"), format="png")

@server.tool
def say(word: str) -> str:
    return word

async def helper() -> int:
    return 1

@server.tool
async def lazy() -> str:
    return f"it is {{helper()}}"
'''


def test_a_picture_is_saved_and_its_name_printed(defserve: Run, folder: Path):
    Path("pictures.py").write_text(PICTURES)
    Path("out").mkdir()
    assert defserve("call", "pictures.py", "plot", "title=x").out == "saved plot.png (image/png, 3 bytes)\n"
    assert defserve("call", "pictures.py", "plot", "title=x", "-o", "out").out.startswith("saved out")
    assert (folder / "out" / "plot.png").read_bytes() == b"png"
    (block,) = json.loads(defserve("call", "pictures.py", "plot", "title=x", "--json").out)
    assert block["type"] == "image"
    assert not (folder / "plot-2.png").exists()


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_result_that_was_not_awaited_is_a_failure(defserve: Run, folder: Path):
    Path("pictures.py").write_text(PICTURES)
    code, out, err = defserve("call", "pictures.py", "lazy")
    assert code == 5 and out.startswith("it is <coroutine object helper at ")
    assert "fix: await helper(…) in the tool" in err


def test_json_alone_is_about_the_result_and_with_an_object_about_the_arguments(defserve: Run, folder: Path):
    Path("pictures.py").write_text(PICTURES)
    assert defserve("call", "pictures.py", "say", "word=hi").out == "hi\n"
    assert defserve("call", "pictures.py", "say", "--json", "word=hi").out == '"hi"\n'
    for given in (["--json", '{"word": "hi"}'], ["--args", '{"word": "hi"}'], ['--json={"word": "hi"}']):
        assert defserve("call", "pictures.py", "say", *given).out == "hi\n"
        assert defserve("call", "pictures.py", "say", *given, "--json").out == '"hi"\n'
