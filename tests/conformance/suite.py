"""Runs the official conformance suite against `examples/conformance.py`: every revision it knows, every HTTP parser.

    python -m tests.conformance.suite [--http httptools|h11] [--url URL]

Exits with 1 when a scenario fails that `expected-failures.yml` does not list, or passes although it is listed there.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import suite_install
from tests.conformance.suite_install import FOLDER, ROOT
from tests.conformance.suite_results import (
    Scenario,
    described,
    expected_failures,
    scenarios,
    spelled,
    total,
)
from tests.waiting import wait_until

PARSERS = ("httptools", "h11")
SKILLS = ("sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest")
# Name of a run → the options of each command. No revision requires skills, so they are asked for by name.
RUNS: dict[str, Sequence[Sequence[str]]] = {
    "2025-11-25": [("--requirements", "2025-11-25")],
    "2026-07-28": [("--requirements", "2026-07-28")],
    "skills": [("--scenario", name) for name in SKILLS],
}
EXPECTED = Path(__file__).with_name("expected-failures.yml")
START_SECONDS, STOP_SECONDS, RUN_SECONDS = 30, 15, 900


class NotServed(Exception):
    """The example cannot be reached; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="make conformance", description="Run the official conformance suite.")
    parser.add_argument("--http", choices=PARSERS, action="append", help="only this HTTP parser")
    parser.add_argument("--url", help="test a server that runs already")
    options = parser.parse_args(arguments)
    command, listed = suite_install.suite(), expected_failures(EXPECTED)
    seen: set[str] = set()
    complaints: list[str] = []
    for http in ("given",) if options.url else options.http or PARSERS:
        try:
            with serving(http, options.url) as url:
                for run in RUNS:
                    complaints += _run(command, run, url, http, listed, seen)
        except NotServed as error:
            complaints.append(f"{http}: {error}")
    complaints += [f"{name} is listed in {EXPECTED.name}, but no run has it" for name in listed if name not in seen]
    print("\n" + "\n".join(complaints or ["all as expected"]))
    return 1 if complaints else 0


@contextmanager
def serving(http: str, given: str | None = None) -> Generator[str]:
    """The address of the example, served in a process of its own. Raises NotServed."""
    if given:
        yield given
        return
    port = _free_port()
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / f"server-{http}.log"
    command = [sys.executable, str(ROOT / "examples" / "conformance.py")]
    command += ["--on", f"http://127.0.0.1:{port}/mcp", "--http", http]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        _wait_for(port, server, log)
        # By name: the check against DNS rebinding needs an address that says localhost.
        yield f"http://localhost:{port}/mcp"
        if server.poll() is not None:
            raise NotServed(f"the server ended by itself ({server.returncode})\n{_tail(log)}")
        server.terminate()
        code = server.wait(STOP_SECONDS)
        if code:
            raise NotServed(f"the server ended with {code} when it was told to stop\n{_tail(log)}")
    except subprocess.TimeoutExpired:
        raise NotServed(f"the server did not stop within {STOP_SECONDS} s\n{_tail(log)}") from None
    finally:
        server.kill()
        server.wait()


def _run(command: Sequence[str], run: str, url: str, http: str, listed: Sequence[str], seen: set[str]) -> list[str]:
    """Do one run, print what it found, and give back what is not as expected."""
    results = FOLDER / "results" / http / run
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    print(f"== {run} under {http}", flush=True)
    log = results / "run.log"
    complaints: list[str] = []
    with log.open("wb") as output:
        for options in RUNS[run]:
            try:
                told = [*command, "server", "--url", url, *options, "--output-dir", str(results)]
                subprocess.run(told, stdout=output, stderr=output, timeout=RUN_SECONDS, cwd=ROOT)
            except subprocess.TimeoutExpired:
                complaints.append(f"{run} under {http}: the suite did not end within {RUN_SECONDS} s\n{_tail(log)}")
    found = list(scenarios(results))
    seen |= {scenario.name for scenario in found}
    announced = re.search(rb"\((\d+) scenarios\)", log.read_bytes())
    if len(found) != (int(announced[1]) if announced else len(RUNS[run])):
        complaints.append(f"{run} under {http}: only {len(found)} scenarios ran\n{_tail(log)}")
    return complaints + _report(found, f"{run} under {http}", listed, results)


def _report(found: Sequence[Scenario], run: str, listed: Sequence[str], results: Path) -> list[str]:
    built = [scenario for scenario in found if scenario.name not in listed]
    unbuilt = [scenario for scenario in found if scenario.name in listed]
    for kind, some in (("", built), (" expected to fail", unbuilt)):
        if some:
            print(f"   {len(some)} scenarios{kind}: checks {spelled(total(some))}", flush=True)
    complaints: list[str] = []
    for scenario in found:
        verdict = scenario.verdict(listed)
        if verdict == "failed":
            print("\n     ".join([f"   {scenario.name}", *described(scenario)]))
            complaints.append(f"{run}: {scenario.name} failed (results: {results.relative_to(ROOT)})")
        elif verdict == "stale":
            complaints.append(f"{run}: {scenario.name} passes; take it out of {EXPECTED.relative_to(ROOT)}")
    return complaints


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        if server.poll() is not None:
            raise NotServed(f"the server did not start\n{_tail(log)}")
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, START_SECONDS)
    except TimeoutError as error:
        raise NotServed(f"nothing listened on port {port} within {START_SECONDS} s\n{_tail(log)}") from error


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def _tail(log: Path, lines: int = 30) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"   | {line}" for line in text[-lines:])


if __name__ == "__main__":
    sys.exit(main())
