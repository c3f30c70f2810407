"""A reader who types what the Learn pages say sees what they show: files and commands, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificate import self_signed
from tests.examples.nginx import needs_nginx
from tests.reader import PORT, Reader, follow
from tests.rows import for_each_row
from tests.tooling.scaffold.packages import ROOT, Environment

FOLDER = ROOT / "docs" / "learn"
# In the order of the navigation. Each page builds on the files of the pages before it.
PAGES = [
    "first-server",
    "tools",
    "results-and-errors",
    "resources-and-prompts",
    "context-and-dependencies",
    "testing",
    "elicitation",
    "authentication",
    "permissions",
    "deployment",
]

# Commands of the reader's environment. Its pip gets by without an index: what a wheel depends on is there already.
COMMANDS = {
    "defserve": "from defserve.cli import main; sys.exit(main())",
    "pytest": "import pytest; sys.exit(pytest.main())",
    "pip": "import subprocess; sys.exit(subprocess.call([{python!r}, '-m', 'pip', '--python', sys.executable,"
    " '--disable-pip-version-check', *sys.argv[1:], '--no-deps', '--no-index', '--no-compile']))",
}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    environment = Environment(tmp_path / "env", borrows=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "defserve.pth").write_text(str(ROOT / "framework"), encoding="utf-8")
    for name, code in COMMANDS.items():
        script = environment.bin / name
        script.write_text(f"#!{environment.python}\nimport sys; {code.format(python=sys.executable)}\n", "utf-8")
        script.chmod(0o755)
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    settings = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": "",
        "NO_COLOR": "1",
        # Looking for plugins takes longer than the tests.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p defserve.testing.plugin -p no:cacheprovider",
    }
    with Reader(tmp_path / "work", environment.environ | settings) as reader:
        yield reader


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


needs_bash = pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="commands are for bash")


def test_every_learn_page_is_followed() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


@for_each_row("page", PAGES)
def test_a_learn_page_is_short_and_needs_no_other_protocol(page: str) -> None:
    text = text_of(page)
    assert 300 <= len(text.split()) <= 650
    assert re.findall(r"\b(?:MGP|MCPL|MCPx)\b", text, re.IGNORECASE) == []
    assert "\n**Next:** " in text and "\n**More:** " in text


# Fifty processes, one after another.
@pytest.mark.e2e
@needs_bash
def test_the_learn_pages_come_true(reader: Reader):
    for page in PAGES:
        try:
            follow(text_of(page), reader)
        except AssertionError as error:
            error.add_note(f"on docs/learn/{page}.md")
            raise


@pytest.mark.e2e
@needs_bash
@needs_nginx
def test_the_service_runs_behind_the_proxy(reader: Reader, tmp_path: Path):
    """The command of the unit, on this machine, and nginx with its settings, at a socket file instead of port 443."""
    blocks = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", text_of("deployment"), re.MULTILINE | re.DOTALL)
    files: dict[str, str] = dict(blocks)
    (reader.folder / "notes.py").write_text(files["notes.py"])
    unit = re.search(r"^ExecStart=\S+/notes-mcp (.*)$", files["notes-mcp.service"], re.M)
    assert unit
    assert reader.starts(f"defserve run notes.py {unit[1]}") == "serving on http://127.0.0.1:8000/mcp\n"
    certificate, socket = self_signed(tmp_path, "notes.example.com"), tmp_path / "s"
    here = {
        "listen 443 ssl;": f"listen unix:{socket} ssl;",
        "/etc/ssl/notes.example.com.pem": str(certificate),
        "/etc/ssl/notes.example.com.key": str(certificate),
    }
    site = PORT.sub(reader.port, files["notes.conf"])
    for there, instead in here.items():
        assert there in site
        site = site.replace(there, instead)
    user = "user root;" if os.geteuid() == 0 else ""
    config = tmp_path / "nginx.conf"
    config.write_text(f"daemon off; pid {tmp_path}/pid; {user} events {{}} http {{ access_log off; {site} }}")
    with subprocess.Popen(["nginx", "-e", str(tmp_path / "log"), "-p", str(tmp_path), "-c", str(config)]) as process:
        try:
            retry = "curl -s --retry 20 --retry-delay 1 --retry-all-errors"
            ask = f"{retry} --unix-socket {socket} --cacert {certificate} https://notes.example.com"
            assert reader.types(f"{ask}/readyz").strip() == "healthy"
            # The server asks for a token, and nginx keeps the metrics to itself.
            status = "-o /dev/null -w '%{http_code}'"
            assert reader.types(f"{ask.replace(retry, 'curl -s')}/mcp {status}").strip() == "401"
            assert reader.types(f"{ask.replace(retry, 'curl -s')}/metrics {status}").strip() == "403"
        finally:
            process.terminate()
            process.wait(10)
