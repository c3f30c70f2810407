"""Runs the official conformance suite: every revision it knows, both sides.

    python -m tests.conformance.suite [--side server|client|authorization] [--url URL]
                                      [--through-kernel]

The server is `examples/conformance.py`, over HTTP. The client is `tests/conformance/client.py`, the
authorization server that of `tests/conformance/authorization.py`. With
`--through-kernel`, a kernel is tested that has the example behind it: at an address, with sessions, and as a process of
the stateless era.

Exits with 1 when a scenario fails that `expected-failures.yml` does not list, or passes although it is listed there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from defserve.cli.screen import ProgressDisplay
from tests.conformance import authorization, suite_install
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

ROADS = ("http",)
SIDES = ("server", "client", "authorization")
KERNELS = ("kernel-handshake", "kernel-stateless")
# Sessions have no tasks, and their questions have no keys: what only the newer revision has cannot be behind a session.
LEFT_OUT = {"kernel-handshake": ("2026-07-28",)}
FIXTURES = ROOT / "examples" / "conformance.py"
SKILLS = ("sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest")
# Name of a run → the options of each command. No revision requires skills, so they are asked for by name.
RUNS: dict[str, Sequence[Sequence[str]]] = {
    "2025-11-25": [("--requirements", "2025-11-25")],
    "2026-07-28": [("--requirements", "2026-07-28")],
    "skills": [("--scenario", name) for name in SKILLS],
}
# The client, by version: each scenario in the versions that have it, skills in both eras (--force: they have none).
_BOTH = ("tools_call", "json-schema-2020-12-preservation")
_2025_11_25 = ("initialize", "elicitation-sep1034-client-defaults", "sse-retry")
_2026_07_28 = (
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
)
_SKILLS = tuple(
    f"sep-2640-client-{what}" for what in ("no-prefetch", "verify-digest", "verify-size", "verify-frontmatter")
)
# Signing in. Every scenario in the newer version; in the older one those that it requires, and those for its servers.
_SIGN_IN = tuple(
    f"auth/{what}"
    for what in (
        "metadata-default",
        "metadata-var1",
        "metadata-var2",
        "metadata-var3",
        "basic-cimd",
        "scope-from-www-authenticate",
        "scope-from-scopes-supported",
        "scope-omitted-when-undefined",
        "scope-step-up",
        "scope-retry-limit",
        "token-endpoint-auth-basic",
        "token-endpoint-auth-post",
        "token-endpoint-auth-none",
        "pre-registration",
    )
)
_SIGN_IN_2025_03_26 = ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback")
_SIGN_IN_2026_07_28 = tuple(
    f"auth/{what}"
    for what in (
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
        "authorization-server-migration",
        "iss-supported",
        "iss-not-advertised",
        "iss-supported-missing",
        "iss-wrong-issuer",
        "iss-unexpected",
        "iss-normalized",
        "metadata-issuer-mismatch",
        "client-credentials-jwt",
        "client-credentials-basic",
        "enterprise-managed-authorization",
        "wif-jwt-bearer",
        "dpop",
        "dpop-nonce",
    )
)
CLIENT_RUNS: dict[str, Sequence[Sequence[str]]] = {
    version: [
        ("--scenario", name, "--spec-version", version, "--force") for name in (*_BOTH, *names, *_SKILLS, *_SIGN_IN)
    ]
    for version, names in (
        ("2025-11-25", (*_2025_11_25, *_SIGN_IN_2025_03_26)),
        ("2026-07-28", (*_2026_07_28, *_SIGN_IN_2026_07_28)),
    )
}
CLIENT = f"{sys.executable} -m tests.conformance.client"
EXPECTED = Path(__file__).with_name("expected-failures.yml")
START_SECONDS, STOP_SECONDS, RUN_SECONDS = 30, 15, 900


class NotServed(Exception):
    """The example cannot be reached; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="make conformance", description="Run the official conformance suite.")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this side")
    parser.add_argument("--url", help="test a server that runs already")
    parser.add_argument("--through-kernel", action="store_true", help="test a kernel with the server behind it")
    options = parser.parse_args(arguments)
    command, listed = suite_install.suite(), expected_failures(EXPECTED)
    sides = ("server",) if options.url or options.through_kernel else options.side or SIDES
    seen: set[str] = set()
    complaints: list[str] = []
    roads = KERNELS if options.through_kernel else ROADS
    for http in (("given",) if options.url else roads) if "server" in sides else ():
        try:
            with serving(http, options.url) as url:
                for run, wanted in RUNS.items():
                    if run in LEFT_OUT.get(http, ()):
                        continue
                    told = [[*command, "server", "--url", url, *options] for options in wanted]
                    complaints += _run(told, Path(http, run), listed, seen)
        except NotServed as error:
            complaints.append(f"{http}: {error}")
    if "client" in sides:
        for run, wanted in CLIENT_RUNS.items():
            told = [[*command, "client", "--command", CLIENT, *options] for options in wanted]
            complaints += _run(told, Path("client", run), listed, seen, must_succeed=True)
        complaints += _left_out(command)
    if "authorization" in sides:
        print("== authorization server", flush=True)
        found = authorization.run(command, FOLDER / "results" / "authorization")
        missing = set(authorization.SCENARIOS) - {scenario.name for scenario in found}
        complaints += [f"authorization server: {name} did not run" for name in sorted(missing)]
        complaints += _report(found, "authorization server", listed, FOLDER / "results" / "authorization")
    if "server" in sides:
        complaints += [f"{name} is listed in {EXPECTED.name}, but no run has it" for name in listed if name not in seen]
    print("\n" + "\n".join(complaints or ["all as expected"]))
    return 1 if complaints else 0


def _left_out(command: Sequence[str]) -> list[str]:
    """The client scenarios of the suite that no run has: each is a complaint."""
    listing = subprocess.run([*command, "list", "--client"], capture_output=True, text=True, cwd=ROOT).stdout
    run = {options[1] for wanted in CLIENT_RUNS.values() for options in wanted}
    left = [name for name in re.findall(r"^  - (\S+)", listing, re.MULTILINE) if name not in run]
    return [f"client: {name} is in the suite, and no run has it" for name in left]


@contextmanager
def serving(http: str, given: str | None = None) -> Generator[str]:
    """The address of the example, served in a process of its own. Raises NotServed."""
    if given:
        yield given
        return
    if http == "kernel-handshake":
        with serving(ROADS[0]) as address, _kernel(http, url=address, version="2025-11-25") as url:
            yield url
        return
    if http == "kernel-stateless":
        # One process for all clients: the suite changes its lists with one, and listens with another.
        behind = {"command": sys.executable, "args": [str(FIXTURES)], "per": "shared", "version": "2026-07-28"}
        with _kernel(http, **behind) as url:
            yield url
        return
    with _started(http, [sys.executable, str(FIXTURES)]) as url:
        yield url


def _kernel(road: str, **behind: Any) -> AbstractContextManager[str]:
    """A kernel with the example behind it, which the given settings of mgp.toml describe."""
    FOLDER.mkdir(exist_ok=True)
    config = FOLDER / f"{road}.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"id": "fixtures", **behind}.items()]
    config.write_text("\n".join(["[[servers]]", *lines, ""]), encoding="utf-8")
    return _started(road, [sys.executable, "-m", "defserve", "kernel", "--config", str(config)])


@contextmanager
def _started(name: str, command: list[str]) -> Generator[str]:
    """The address of a server that a command serves."""
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / f"server-{name}.log"
    command = [*command, "--on", "http://127.0.0.1:0/mcp"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        port = _port_of(server, log)
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


def _run(
    commands: Sequence[Sequence[str]], name: Path, listed: Sequence[str], seen: set[str], *, must_succeed: bool = False
) -> list[str]:
    """Do one run, print what it found, and give back what is not as expected.

    With `must_succeed` each command has to: the suite fails one whose checks pass if the client itself ended badly.
    """
    results, run = FOLDER / "results" / name, " under ".join(reversed(name.parts))
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    print(f"== {run}", flush=True)
    log = results / "run.log"
    complaints: list[str] = []
    with log.open("wb") as output, ProgressDisplay(f"Running {run}") as work:
        for number, command in enumerate(commands):
            if len(commands) > 1:
                work.show_progress(number, len(commands))
            try:
                told = [*command, "--output-dir", str(results)]
                done = subprocess.run(told, stdout=output, stderr=output, timeout=RUN_SECONDS, cwd=ROOT)
                if must_succeed and done.returncode:
                    complaints.append(f"{run}: the suite ended with {done.returncode}: {' '.join(command[-5:])}")
            except subprocess.TimeoutExpired:
                complaints.append(f"{run}: the suite did not end within {RUN_SECONDS} s\n{_tail(log)}")
    found = list(scenarios(results))
    seen |= {scenario.name for scenario in found}
    announced = re.search(rb"\((\d+) scenarios\)", log.read_bytes())
    if len(found) != (int(announced[1]) if announced else len(commands)):
        complaints.append(f"{run}: only {len(found)} scenarios ran\n{_tail(log)}")
    return complaints + _report(found, run, listed, results)


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


def _port_of(server: subprocess.Popen[bytes], log: Path) -> int:
    """The port that a server was given. It says so as soon as it listens."""
    found: list[bytes] = []

    def serves() -> bool:
        if server.poll() is not None:
            raise NotServed(f"the server did not start\n{_tail(log)}")
        found[:] = re.findall(rb"serving on http://127\.0\.0\.1:(\d+)/", log.read_bytes())
        return bool(found)

    try:
        wait_until(serves, START_SECONDS)
    except TimeoutError as error:
        raise NotServed(f"it did not serve within {START_SECONDS} s\n{_tail(log)}") from error
    return int(found[0])


def _tail(log: Path, lines: int = 30) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"   | {line}" for line in text[-lines:])


if __name__ == "__main__":
    sys.exit(main())
