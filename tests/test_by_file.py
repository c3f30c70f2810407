"""Workers get whole files: each is read once in all, and a run tells the same as one without workers."""

from __future__ import annotations

import pytest

FILES = {
    "test_first": """
        import pathlib, pytest
        with pathlib.Path("read").open("a") as read: read.write("first ")
        def test_passes(shared): ...
        @pytest.mark.slow
        def test_takes_long(): assert False
    """,
    "test_second": """
        import pathlib, pytest
        with pathlib.Path("read").open("a") as read: read.write("second ")
        @pytest.mark.parametrize("number", [1, 2])
        def test_fails_once(shared, number): assert number == 1
    """,
    "test_third": "import there_is_no_such_module",
}
SHARED = """
    import pathlib, pytest
    @pytest.fixture(scope="session")
    def shared():
        with pathlib.Path("made").open("a") as made: made.write("made ")
"""
ENDS = "import os\ndef test_well(): ...\ndef test_ends_its_process(): os._exit(1)"


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n  slow: later\n  timeout: not here")
    return pytester.runpytest_inprocess("-p", "xdist.plugin", "-p", "tests.by_file", "-q", *options)


def test_each_file_is_read_once_and_failures_and_errors_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(SHARED)
    pytester.makepyfile(**FILES)
    result = run(pytester, monkeypatch, "-n", "1", "-m", "not slow")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines_random(["FAILED test_second.py::test_fails_once?2?*", "ERROR test_third.py*"])
    assert (pytester.path / "read").read_text() == "first second "
    assert (pytester.path / "made").read_text() == "made "


@pytest.mark.slow
def test_who_selects_nothing_is_told_so(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_first="def test_passes(): ...")
    assert run(pytester, monkeypatch, "-n", "2", "-k", "no_such").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_after_the_first_failure_nothing_runs_if_so_wanted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_one(): assert False\ndef test_two(): assert False")
    run(pytester, monkeypatch, "-n", "1", "-x").assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_worker_that_dies_is_named_with_its_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_end=ENDS)
    result = run(pytester, monkeypatch, "-n", "1", "--max-worker-restart", "0")
    result.stdout.fnmatch_lines(["worker 'gw0' crashed while running 'test_end.py', in test_end.py::test_ends_its*"])


@pytest.mark.slow
def test_single_tests_and_those_that_failed_run_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(**{name: text for name, text in FILES.items() if name == "test_second"})
    pytester.makeconftest(SHARED)
    run(pytester, monkeypatch, "-n", "1").assert_outcomes(passed=1, failed=1)
    run(pytester, monkeypatch, "-n", "1", "--last-failed").assert_outcomes(failed=1)
    run(pytester, monkeypatch, "-n", "1", "test_second.py::test_fails_once[1]").assert_outcomes(passed=1)
