"""Somebody installs a release from an index into an empty environment, and follows the README and the Learn pages."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.base.version import VERSION
from tests.reader import Reader, follow
from tests.test_learn import PAGES, text_of

from .artifacts import ROOT

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="the pages' commands are for bash"),
]


@pytest.fixture
def reader(tmp_path: Path, index: str) -> Iterator[Reader]:
    """At a shell in an empty folder, whose pip knows one index."""
    for folder in ("home", "work", "python"):
        (tmp_path / folder).mkdir()
    (tmp_path / "python" / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    places = [tmp_path / "work" / ".venv" / "bin", tmp_path / "python", "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {
        "PATH": os.pathsep.join(map(str, places)),
        "HOME": str(tmp_path / "home"),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    with Reader(tmp_path / "work", environment) as reader:
        yield reader


def released(command: str) -> str:
    """A command that installs a checkout, as it is typed once there is a release."""
    checkout = r"/path/to/defserve|(?<=install )\.(?=$| )|(?<=install \")\.(?=\[)"
    return re.sub(rf'"?(?:{checkout})((?:\[[\w,]+\])?)"?', r'"defserve\1"', command)


def test_the_wheel_installs_and_is_whole(reader: Reader) -> None:
    reader.types("python3 -m venv .venv")
    said = reader.types("pip install defserve && pip check && defserve version")
    assert "No broken requirements found." in said and VERSION in said.splitlines()[-1], said
    where = reader.types("cd / && python -c 'import defserve; print(defserve.__file__)'")
    assert "site-packages" in where, where


def test_the_sdist_installs_too(reader: Reader) -> None:
    reader.types("python3 -m venv .venv")
    said = reader.types("pip install --no-binary defserve defserve && defserve version")
    assert VERSION in said.splitlines()[-1], said


def test_the_learn_pages_come_true_with_a_release(reader: Reader) -> None:
    for page in PAGES:
        follow(text_of(page), reader, released)


# What the words beside a command of the README say has to be done before it.
BEFORE = {"defserve package": "cd weather-mcp", "defserve install weather-mcp": "pip install dist/*.whl"}
# For those who have a checkout.
CHECKOUT = ("make ", "git ")
KEEPS_RUNNING = ("--web", "--on ")
STARTED = ("serving on ", "The inspector runs ")


def test_the_readme_comes_true_with_a_release(reader: Reader) -> None:
    reader.types("python3 -m venv .venv")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S):
        named = re.match(r"# (\w+\.py)\n", block)
        if language == "python" and named:
            (reader.folder / named[1]).write_text(block, encoding="utf-8")
        if language in ("", "sh", "bash", "console"):
            for line in filter(None, block.splitlines()):
                _done(reader, re.split(r"\s+# ", line.removeprefix("$ "))[0])


def _done(reader: Reader, command: str) -> None:
    if command.startswith(CHECKOUT):
        return
    for words, before in BEFORE.items():
        if command.startswith(words):
            reader.types(before)
    if any(option in command for option in KEEPS_RUNNING):
        said = reader.starts(command)
        assert said.startswith(STARTED), f"$ {command}\n{said}"
        return
    said = reader.types(f"{released(command)}; echo exit=$?")
    assert said.rstrip().endswith("exit=0"), f"$ {command}\n{said}"


def test_commands_for_a_checkout_become_those_for_a_release() -> None:
    assert released("pip install .") == 'pip install "defserve"'
    assert released('pip install ".[http]"') == 'pip install "defserve[http]"'
    assert (
        released('pip install "/path/to/defserve[http,client]" pytest') == 'pip install "defserve[http,client]" pytest'
    )
    assert released("pip install -e '.[dev]'") == "pip install -e '.[dev]'"
