"""The command: measure, judge, print, and write JSON and Markdown."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from . import against, environment, report
from .catalogue import write_catalogue
from .code_measure import CODE_MODE
from .contenders import CONTENDERS, HTTP_CONTENDERS, SERVERS, Contender, HttpContender
from .gateway_measure import GATEWAY
from .http_measure import HTTP, try_http
from .measure import CATALOGUES, FULL, QUICK, STDIO, Plan, Run
from .processes import Launch, ServerFailed, ServerProcess
from .profile import profile
from .proxies.measure import PROXY
from .proxies.roads import DIRECT, MCP_PROXY
from .push_measure import PUSH
from .results import Results
from .shared_measure import SHARED
from .state_measure import RAW, REPLAY, STATE
from .stores_measure import STORES
from .streaming_measure import STREAMING
from .targets import SUBJECT, judge
from .workers_measure import WORKERS

OUTPUT = environment.ROOT / "bench-results"
SECTIONS = STDIO | HTTP | STREAMING | GATEWAY | PUSH | STATE | CODE_MODE | PROXY | WORKERS | SHARED | STORES
GROUPS = {
    "stdio": STDIO,
    "http": HTTP,
    "streaming": STREAMING,
    "gateway": GATEWAY,
    "push": PUSH,
    "state": STATE,
    "code": CODE_MODE,
    "proxy": PROXY,
    "workers": WORKERS | SHARED,
    "stores": STORES,
}
ALL_NAMES = list(dict.fromkeys(each.name for each in (CONTENDERS[0], *HTTP_CONTENDERS, *CONTENDERS)))
PAGE_NAMES = [DIRECT, *ALL_NAMES, MCP_PROXY, RAW, REPLAY]
"""Every column of the report, in order."""
T = TypeVar("T", Contender, HttpContender)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if options.against:
            return _against(options, Path(folder))
        launch = _prepare(Path(folder), environment.interpreter())._replace(node=environment.node_with_packages())
        if options.command == "profile":
            return profile(options.contender, options.tool, options.window, launch)
        plan = QUICK if options.quick else FULL
        return _bench(options, plan, launch)


def _bench(options: argparse.Namespace, plan: Plan, launch: Launch) -> int:
    began = datetime.now(UTC)
    failed: dict[str, str] = {}
    sections = _sections(options.only)
    here = [each for each in CONTENDERS if launch.node or not each.needs_node]
    able = [each for each in _chosen(options, here, sections, STDIO) if _starts(each, launch, failed)]
    there = [each for each in HTTP_CONTENDERS if launch.node or not each.needs_node]
    http = [each for each in _chosen(options, there, sections, HTTP) if _serves(each, launch, failed)]
    results = Results()
    run = Run(able, http, launch, plan, results, _say)
    for name in sections:
        try:
            SECTIONS[name](run)
        except ServerFailed as error:  # the other sections are worth having
            failed[name] = str(error)
    _say("")
    verdicts = judge(results)
    facts = _facts(began, plan, launch)
    facts.update({f"{name} did not run": reason for name, reason in failed.items()})
    text = report.as_markdown(results, verdicts, facts, PAGE_NAMES)
    print(text)
    _write(options.markdown, text)
    _write(options.json, json.dumps(report.as_json(results, verdicts, facts), indent=2) + "\n")
    missed = [verdict.target.claim for verdict in verdicts if verdict.met is False]
    print(f"{sum(v.met is True for v in verdicts)} of {len(verdicts)} goals met; missed: {'; '.join(missed) or 'none'}")
    return 1 if failed or (options.strict and missed) else 0


def _against(options: argparse.Namespace, folder: Path) -> int:
    """Compare this checkout with another commit. No peer takes part, so the tests' own interpreter will do."""
    other = against.check_out(options.against, folder / "other")
    able = against.sections(other)
    wanted = [name for name in _sections(options.only) if name in able]
    if not wanted:
        raise SystemExit(f"--against measures {', '.join(able)} only")
    generated = folder / "generated"
    generated.mkdir()
    launch = _prepare(generated, environment.interpreter(Path(sys.executable)))
    subprocess.run([launch.python, "-m", "compileall", "-q", *other.paths], check=True)
    began, plan, results = datetime.now(UTC), QUICK if options.quick else against.PLAN, Results()
    both = (against.THIS, other)
    run = Run([each.stdio() for each in both], [each.http() for each in both], launch, plan, results, _say)
    for name in wanted:
        able[name](run)
    _say("")
    text = against.as_markdown(results, other.name, _facts(began, plan, launch))
    print(text)
    _write(options.markdown, text)
    _write(options.json, json.dumps({"against": other.name, "measures": results.as_json()}, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a glance, not a figure to quote")
    parser.add_argument("--only", action="append", choices=[*GROUPS, *SECTIONS], help="a section; repeatable")
    parser.add_argument(
        "--against", metavar="REV", help="compare with another commit instead of other frameworks, in one run"
    )
    parser.add_argument("--contenders", nargs="+", choices=ALL_NAMES, help="default: all")
    parser.add_argument("--json", type=Path, default=OUTPUT / "bench.json", metavar="FILE")
    parser.add_argument("--markdown", type=Path, default=OUTPUT / "bench.md", metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    commands = parser.add_subparsers(dest="command")
    profiling = commands.add_parser("profile", help="show where one server's time goes")
    profiling.add_argument("contender", choices=[each.name for each in CONTENDERS], nargs="?", default=SUBJECT)
    profiling.add_argument("tool", nargs="?", default="add")
    profiling.add_argument("--window", type=int, default=1)
    return parser


def _sections(only: list[str] | None) -> list[str]:
    wanted = {name for choice in only or GROUPS for name in GROUPS.get(choice, (choice,))}
    return [name for name in SECTIONS if name in wanted]


def _chosen(
    options: argparse.Namespace, contenders: Sequence[T], sections: Sequence[str], group: Container[str]
) -> list[T]:
    """Those that were asked for, if any section of their group is to run."""
    runs = any(name in group for name in sections)
    return [each for each in contenders if runs and each.name in (options.contenders or ALL_NAMES)]


def _prepare(generated: Path, python: Path) -> Launch:
    """Everything a timed start must not pay for: the catalogues and the bytecode."""
    for count in CATALOGUES:
        write_catalogue(generated, count)
    package = environment.ROOT / "framework" / "defserve"
    subprocess.run([python, "-m", "compileall", "-q", package, SERVERS, generated], check=True)
    return Launch(python, environment.server_environment(generated))


def _starts(contender: Contender, launch: Launch, failed: dict[str, str]) -> bool:
    """Run the server once, which also compiles what it alone imports; note why if it cannot."""
    try:
        with ServerProcess(contender, "calls", launch) as server:
            server.initialize()
            server.list_tools()
    except (ServerFailed, BrokenPipeError) as error:
        failed[contender.name] = str(error).strip().splitlines()[-1]
        return False
    return True


def _serves(contender: HttpContender, launch: Launch, failed: dict[str, str]) -> bool:
    """The same over HTTP."""
    try:
        try_http(contender, launch)
    except (ServerFailed, OSError) as error:
        failed[f"{contender.name} over HTTP"] = str(error).strip().splitlines()[0]
        return False
    return True


def _facts(began: datetime, plan: Plan, launch: Launch) -> dict[str, str]:
    took = (datetime.now(UTC) - began).total_seconds()
    return {
        "when": f"{began:%Y-%m-%d %H:%M} UTC, {took:.0f} s",
        "machine": f"{os.cpu_count()} cores, {os.uname().sysname} {os.uname().machine}, load {os.getloadavg()[0]:.1f}",
        "versions": ", ".join(f"{name} {version}" for name, version in environment.versions(launch).items()),
        "rounds": f"{plan.start_rounds} of {plan.start_tries} starts, {plan.list_rounds} of lists, "
        f"{plan.process_starts} processes each with {plan.call_rounds} of {plan.burst:g} s of calls "
        f"and {plan.http_rounds} of {plan.http_burst:g} s over HTTP, "
        f"{plan.stream_rounds} of {plan.chunks:,} chunks, {plan.state_rounds} of {plan.commits:,} commits",
    }


def _say(step: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
