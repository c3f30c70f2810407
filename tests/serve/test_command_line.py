from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.server.command_line import parse_server_arguments

FRAMEWORK = str(Path(__file__).parents[2] / "framework")
SERVER = """
from defserve import Server, ToolError
server = Server("logged")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

@server.tool
def fail() -> None:
    raise ToolError("no")

server.main()
"""
MESSAGES = [
    {"id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}},
    {"id": 2, "method": "tools/call", "params": {"name": "fail"}},
    {"id": 3, "method": "tools/call", "params": {"name": "secret\nname"}},
]
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def served(folder: Path, *options: str) -> tuple[list[dict[str, object]], list[str]]:
    """What a server answers to the messages, and the lines it writes to stderr."""
    (folder / "server.py").write_text(SERVER)
    lines = [json.dumps({"jsonrpc": "2.0", **each, "params": {**each["params"], "_meta": meta()}}) for each in MESSAGES]
    done = subprocess.run(
        [sys.executable, "server.py", *options],
        input="".join(f"{line}\n" for line in lines),
        env={"PYTHONPATH": FRAMEWORK},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


def meta() -> dict[str, object]:
    return {**META, "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


def test_only_what_was_given_is_passed_on():
    def parsed(*arguments: str) -> dict[str, object]:
        return parse_server_arguments(arguments, "x", lambda: "1")

    assert parsed() == {"on": "stdio:"}
    assert parsed("--log-level", "info", "--log-json", "--metrics") == {
        "on": "stdio:",
        "log_level": "info",
        "log_json": True,
        "metrics": True,
    }
    assert parsed("--page") == {"on": "stdio:", "page": True}
    assert parsed("--no-page") == {"on": "stdio:", "page": False}
    assert parsed("--no-card") == {"on": "stdio:", "card": False}
    assert parsed("--openai-challenge", "tok") == {"on": "stdio:", "openai_challenge": "tok"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "8000"], " has no option --port\n  fix: write --on http://host:port/path\n"),
        (["--log-level", "loud"], "error: --log-level cannot be 'loud'"),
    ],
)
def test_mistakes_are_told_as_the_command_tells_them(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as left:
        parse_server_arguments(arguments, "x", lambda: "1")
    said = capsys.readouterr().err
    assert left.value.code == 1 and complaint in said and "\n  fix: " in said


@pytest.mark.slow
def test_without_options_nothing_is_logged(tmp_path: Path):
    answers, lines = served(tmp_path, "--on", "stdio:")
    assert len(answers) == len(MESSAGES) and lines == []


@pytest.mark.slow
def test_every_request_is_a_line_with_its_outcome_duration_and_trace(tmp_path: Path):
    answers, lines = served(tmp_path, "--log-level", "info")
    assert len(answers) == len(MESSAGES) == len(lines)
    told = sorted(line.split("defserve.requests: ")[1] for line in lines)
    assert [line.split(" ms ")[0].rpartition(" ")[0] for line in told] == [
        "tools/call add ok",
        "tools/call error (invalid_params)",
        "tools/call fail error (tool_error)",
    ]
    assert all(line.endswith(f"trace={TRACE}") for line in told)


@pytest.mark.slow
def test_the_log_as_json_lines(tmp_path: Path):
    _, lines = served(tmp_path, "--log-json")
    found = {(line["method"], line.get("name")): line for line in map(json.loads, lines)}
    added = found["tools/call", "add"]
    assert added["level"] == "info" and added["logger"] == "defserve.requests"
    assert added["outcome"] == "ok" and added["trace_id"] == TRACE and added["duration_ms"] >= 0
    assert found["tools/call", "fail"]["error_type"] == "tool_error"


@pytest.mark.slow
def test_from_warning_on_requests_are_not_logged(tmp_path: Path):
    assert served(tmp_path, "--log-level", "warning")[1] == []
