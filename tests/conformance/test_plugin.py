"""The recorder tells the truth about what was claimed and how it went."""

from __future__ import annotations

import json

import pytest

CLAIMING = """
import pytest

@pytest.fixture
def breaks_afterwards():
    yield
    raise RuntimeError

@pytest.mark.req("MCP-1")
def test_passes(): ...

@pytest.mark.req("MCP-1", "MCP-2.1")
def test_fails(): assert False

@pytest.mark.req("MCP-2.2")
def test_skips(): pytest.skip()

@pytest.mark.req("MCP-2.3")
def test_breaks_afterwards(breaks_afterwards): ...

@pytest.mark.req("MCP-3.1")
@pytest.mark.xfail
def test_is_expected_to_fail(): assert False
"""


def run(pytester: pytest.Pytester, source: str) -> tuple[pytest.RunResult, dict[str, dict[str, str]]]:
    pytester.makeini("[pytest]\nmarkers = req(*ids): claims")
    pytester.makepyfile(source)
    report = pytester.path / "report.json"
    # The other plugins of this run stay out: only the recorder is under test.
    result = pytester.runpytest_inprocess(
        "-p", "tests.conformance.plugin", "-p", "no:defserve", "--requirements-report", str(report)
    )
    outcomes: dict[str, dict[str, str]] = json.loads(report.read_text()) if report.exists() else {}
    return result, {id: {name.split("::")[1]: how for name, how in tests.items()} for id, tests in outcomes.items()}


@pytest.mark.slow
def test_each_claim_gets_the_outcome_of_its_tests(pytester: pytest.Pytester) -> None:
    _, outcomes = run(pytester, CLAIMING)
    assert outcomes == {
        "MCP-1": {"test_passes": "passed", "test_fails": "failed"},
        "MCP-2.1": {"test_fails": "failed"},
        "MCP-2.2": {"test_skips": "skipped"},
        "MCP-2.3": {"test_breaks_afterwards": "failed"},
        "MCP-3.1": {"test_is_expected_to_fail": "skipped"},
    }


@pytest.mark.slow
def test_claiming_a_requirement_that_does_not_exist_stops_the_run(pytester: pytest.Pytester) -> None:
    result, outcomes = run(pytester, "import pytest\n@pytest.mark.req('MCP-0.0')\ndef test_it(): ...")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_it claims unknown requirements: 'MCP-0.0'" in str(result.stderr)
    assert outcomes == {}
