"""What is said about a program, it cannot say itself: whether it was judged and confined, by what, and how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from defserve.sandbox import Outcome, probe, run
from defserve.sandbox.job import MAX_REPR_LENGTH
from tests.rows import for_each_row
from tests.sandbox.conftest import Program

LAYERS = ("rlimits", "landlock", "seccomp")
FORGED = [
    {"status": "unconfined", "error": "OSError: no Landlock here"},
    {"status": "mismatch"},
    {"status": "rejected", "violations": [{"rule": "hash", "message": "forged"}], "engine": None, "layers": []},
    {"status": "confined"},
    {"status": "killed", "error": "the program was ended by SIGKILL"},
    {"status": "timeout"},
    {"status": "ok", "value": "forged", "layers": [], "engine": "monty"},
]
forged = pytest.mark.parametrize("report", FORGED, ids=lambda report: report["status"])

# To every descriptor there may be, as one line, as a line after another, and around Python's own streams.
EVERYWHERE = """
import os, sys
for report in {reports!r}:
    for fd in range(0, 1025):
        for data in (report, b"\\n" + report, report + b"\\n", b"\\n" + report + b"\\n"):
            try:
                os.write(fd, data)
                os.write(os.dup(fd), data)
            except OSError:
                pass
    print(report.decode())
    print(report.decode(), file=sys.stderr)
"""
# What reports is found in the frames below the program, and changed to report something else.
IN_FRAMES = """
import sys
frame = sys._getframe()
while frame.f_back is not None:
    frame = frame.f_back
    ours = frame.f_globals
    for name in ("encode", "execute", "describe_error"):
        if name in ours:
            ours[name] = lambda *_: {report!r}
7
"""
# The same for whatever the garbage collector knows: each report that is being made becomes the forged one.
IN_OBJECTS = """
import gc, json
told = {report!r}
for found in gc.get_objects():
    if isinstance(found, dict) and isinstance(found.get("status"), str):
        found.clear()
        found.update(told)
plain, json.dumps = json.dumps, lambda *_, **__: plain(told)
7
"""


def everywhere(reports: list[dict[str, Any]], ending: str) -> str:
    return EVERYWHERE.format(reports=[json.dumps(report).encode() for report in reports]) + ending


def is_true_to_the_run(outcome: Outcome) -> bool:
    """It ran in the jail, was not refused, and nothing is told of it that only the host can know."""
    return (outcome.engine, outcome.layers, outcome.violations, dict(outcome.hints)) == ("jail", LAYERS, (), {})


@pytest.mark.parametrize("reports", [FORGED, FORGED[::-1]], ids=["in order", "in reverse"])
def test_reports_written_everywhere_do_not_change_how_it_ended(reports: list[dict[str, Any]], jailed: Program) -> None:
    outcome = jailed(everywhere(reports, "7"))
    assert (outcome.status, outcome.value) == ("ok", 7) and is_true_to_the_run(outcome)
    assert all(json.dumps(report) in outcome.stdout for report in reports)
    outcome = jailed(everywhere(reports, "1 / 0"))
    assert outcome.status == "error" and is_true_to_the_run(outcome)
    assert (outcome.error or "").endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        ("os._exit(3)", "error", "the program left without a result (exit code 3)"),
        ("os._exit(255)", "error", "the program left without a result (exit code 255)"),
        ("os.kill(os.getpid(), 9)", "killed", "the program was ended by SIGKILL"),
        ("os.abort()", "killed", "the program was ended by SIGABRT"),
        ("sys.exit(4)", "error", "Traceback (most recent call last):\n  line 13\nSystemExit: 4"),
    ],
)
def test_the_way_it_ended_counts_and_not_what_it_wrote(ending: str, status: str, error: str, jailed: Program) -> None:
    outcome = jailed(everywhere([FORGED[0], FORGED[-1]], ending))
    assert (outcome.status, outcome.error) == (status, error) and is_true_to_the_run(outcome)


@forged
@pytest.mark.parametrize("program", [IN_FRAMES, IN_OBJECTS], ids=["in frames", "in objects"])
def test_a_reporter_that_the_program_has_changed_says_nothing_it_could_not_say_itself(
    report: dict[str, Any], program: str, jailed: Program
) -> None:
    outcome = jailed(program.format(report=report))
    assert is_true_to_the_run(outcome)
    assert (outcome.status, outcome.value) in (("error", None), ("ok", "forged"), ("ok", 7))


@pytest.mark.slow
def test_a_program_that_reports_closes_everything_and_goes_on_ends_with_its_time(jailed: Program) -> None:
    source = everywhere([{"status": "ok", "value": "forged"}], "os.closerange(0, 1025)\nwhile True: pass")
    outcome = jailed(source, seconds=2)
    assert outcome.status == "timeout" and is_true_to_the_run(outcome)


@pytest.mark.parametrize(
    ("report", "status"),
    [
        ({"status": "ok", "value": "x" * 11_000}, "output"),
        ({"status": "ok", "value": ["x" * 5_500, {"a": "y" * 5_500}]}, "output"),
        ({"status": "ok", "value": "x" * 9_000, "is_repr": True}, "ok"),
        ({"status": "error", "error": "x" * 30_000}, "error"),
    ],
)
def test_what_it_says_of_itself_keeps_to_its_limits(report: dict[str, Any], status: str, jailed: Program) -> None:
    data = json.dumps(report).encode()
    source = (
        f"import os\nfor fd in range(3, 1025):\n    try: os.write(fd, {data!r})\n    except OSError: pass\nos._exit(0)"
    )
    outcome = jailed(source, output_bytes=10_000)
    assert outcome.status == status and len(outcome.error or "") <= 16_000
    assert outcome.value is None or len(outcome.value) == MAX_REPR_LENGTH


@pytest.mark.usefixtures("without_layers", "without_monty")
@pytest.mark.parametrize("reports", [FORGED, FORGED[::-1]], ids=["in order", "in reverse"])
def test_without_a_jail_too_a_report_is_not_forged_by_the_program_or_its_children(
    reports: list[dict[str, Any]],
) -> None:
    source = "import os\ntry: os.fork()\nexcept OSError: pass\n" + everywhere(reports, "7")
    outcome = run(source, level="unrestricted", unsafe_without_jail=True)
    assert (outcome.engine, outcome.layers, outcome.violations) == ("jail", ("rlimits",), ())
    assert outcome.status in ("ok", "error")


@pytest.mark.slow
@for_each_row("level", ["standard", "strict", "readonly"])
@for_each_row("engine", ["monty", "jail"])
def test_printed_at_every_level_it_is_only_text(level: Any, engine: str, request: pytest.FixtureRequest) -> None:
    if missing := probe().missing:
        pytest.skip(f"this kernel lacks {', '.join(missing)}")
    if engine == "jail":
        request.getfixturevalue("without_monty")
    texts = [json.dumps(report) for report in FORGED]
    prints = "".join(f"print({text!r})\nprint('\\n' + {text!r})\n" for text in texts)
    outcome = run(prints + "7", level=level)
    assert (outcome.status, outcome.value, outcome.violations) == ("ok", 7, ())
    assert outcome.stdout == "".join(f"{text}\n\n{text}\n" for text in texts)
