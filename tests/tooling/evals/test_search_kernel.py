"""Several servers behind one kernel, with tool search on: what a model can find, and what search loses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from defserve.cli import main
from tests.tooling.evals.scripted_endpoint import Asked, Reply, scripted_endpoint

pytestmark = pytest.mark.usefixtures("forked")

SERVER = """
from defserve import Server, safe

server = Server("{name}")

{tools}
if __name__ == "__main__":
    server.run()
"""
TOOL = '''
@server.tool
@safe
def {name}({argument}: str) -> str:
    """{about}

    Args:
        {argument}: which one
    """
    return "done " + {argument}
'''
TOOLS = {
    "mail": {
        "send_letter": ("text", "Send a letter by post."),
        "read_inbox": ("folder", "Read the inbox of a person."),
    },
    "books": {"find_books": ("title", "Find books by title or author."), "lend": ("title", "Lend a book to a person.")},
}
SUITE = """
runs: 2
cases:
  - {name: found and called, prompt: Please write to my aunt, expect: {mail_send_letter: {text: {contains: aunt}}}}
  - {name: lost by search, prompt: I want to borrow Solaris, expect: books_lend}
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    entries = ['[kernel]\nlevel = "L3"\ndefault_policy = "opt-out"\npermissions = "auto_approve"\n']
    for name, tools in reversed(TOOLS.items()):
        text = "\n".join(TOOL.format(name=tool, argument=a, about=about) for tool, (a, about) in tools.items())
        (tmp_path / f"{name}.py").write_text(SERVER.format(name=name, tools=text), encoding="utf-8")
        entries.append(
            f'[[servers]]\nid = "{name}"\nprefix = "{name}"\ncommand = "{sys.executable}"\nargs = ["{name}.py"]\n'
        )
    # What a server says of its tools is not believed; the operator says it.
    entries.append('[servers.mgp.tools."*"]\nrisk = "safe"\npermissions = []\n')
    (tmp_path / "mgp.toml").write_text("\n".join(entries), encoding="utf-8")
    (tmp_path / "office.eval.yaml").write_text(SUITE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def search_then_call(asked: Asked) -> Reply:
    """First it searches; then it calls what it found, through the search's own tool."""
    if "aunt" in asked.prompt:
        if not asked.results:
            return Reply(calls=[("mgp_tools_discover", {"query": "send a letter"})])
        if len(asked.results) == 1:
            # It is loaded into the list by being used, so the next request has more tools.
            return Reply(calls=[("mgp_tools_call", {"name": "mail_read_inbox", "arguments": {"folder": "all"}})])
        assert "mail_read_inbox" in asked.tools
        return Reply(calls=[("mgp_tools_call", {"name": "mail_send_letter", "arguments": {"text": "Dear aunt"}})])
    if not asked.results:
        return Reply(calls=[("mgp_tools_discover", {"query": "inbox folder"})])
    return Reply("There is no such tool.")


def test_a_suite_over_several_servers_shows_what_search_loses(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_endpoint(search_then_call) as endpoint:
        words = ["eval", "mgp.toml", "office.eval.yaml", "--model", "chat:m", "--tools", "real", "--json"]
        words += ["--era", "handshake"]  # without a session, nothing stays loaded
        code = main([*words, "--url", endpoint.url])
        shown = capsys.readouterr()
        assert shown.out, shown.err
        report = json.loads(shown.out)
        listed = endpoint.asked[0].tools
    assert code == 1, report
    assert "mgp_tools_discover" in listed and "mail_send_letter" not in listed
    assert {case["name"]: case["verdict"] for case in report["cases"]} == {
        "found and called": "pass",
        "lost by search": "fail",
    }
    assert report["lost_by_search"] == ["lost by search"]
    code, again = main([*words, "--replay"]), capsys.readouterr()
    assert code == 1, again.err
    assert json.loads(again.out or "{}").get("matrix") == report["matrix"], again.err
