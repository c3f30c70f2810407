"""The recorder tells the truth about what was claimed and how it went."""

from __future__ import annotations

import pytest

from tests.conformance.recorded_run import RecordedRun, Sources

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


Outcomes = dict[str, dict[str, str]]


def run(pytester: pytest.Pytester, source: str, *options: str) -> tuple[pytest.RunResult, Outcomes]:
    # As in pyproject.toml, a full run leaves out what takes long.
    pytester.makeini('[pytest]\nmarkers =\n  req(*ids): claims\n  slow: later\naddopts = "-m not slow"')
    pytester.makepyfile(source)
    path = pytester.path / "report.json"
    # The other plugins of this run stay out: only the recorder is under test.
    result = pytester.runpytest_inprocess(
        "-p", "tests.conformance.plugin", "-p", "no:defserve", "--requirements-report", str(path), *options
    )
    record = RecordedRun.load(path)
    outcomes = record.outcomes if record else {}
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
def test_only_a_full_run_begins_a_record_and_a_part_that_runs_again_renews_it(pytester: pytest.Pytester) -> None:
    claiming = "import pytest\npytestmark = pytest.mark.req('MCP-1')\ndef test_a(): assert {}\ndef test_b(): ..."
    assert run(pytester, claiming.format(False), "-k", "test_a")[1] == {}
    assert run(pytester, claiming.format(False))[1] == {"MCP-1": {"test_a": "failed", "test_b": "passed"}}
    assert run(pytester, claiming.format(True), "-k", "test_a")[1] == {
        "MCP-1": {"test_a": "passed", "test_b": "passed"}
    }


@pytest.mark.slow
def test_part_of_the_tests_tells_nothing_of_other_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming = "import pytest\n@pytest.mark.req('MCP-1')\ndef test_a(): assert {}"
    run(pytester, claiming.format(True))
    monkeypatch.setattr(Sources, "current", lambda: Sources("another", ""))
    assert run(pytester, claiming.format(False), "-k", "test_a")[1] == {"MCP-1": {"test_a": "passed"}}


@pytest.mark.slow
def test_claiming_a_requirement_that_does_not_exist_stops_the_run(pytester: pytest.Pytester) -> None:
    result, outcomes = run(pytester, "import pytest\n@pytest.mark.req('MCP-0.0')\ndef test_it(): ...")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_it claims unknown requirements: 'MCP-0.0'" in str(result.stderr)
    assert outcomes == {}
