"""The command `make migrations`: public servers, migrated, answer as their originals do.

Installs each server with its own framework, at the releases in `locks/`; migrates a copy; asks both the same. It exits
with 1 if there is a difference that `differences.py` does not declare, or if a declared one is gone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.migrations.asking import Answers, NoAnswer, Question, StdioPeer, ask_everything, make_questions, read_lists
from tests.migrations.comparing import compare
from tests.migrations.differences import DIFFERENCES, UNSTEADY
from tests.migrations.installing import InstalledServer, can_isolate, environment
from tests.migrations.servers import SERVERS, PublicServer


class Outcome(NamedTuple):
    """`undeclared` and `declared` are differences; `stale` are declarations that nothing fits any more.

    `is_left`: nothing was rewritten, so there is nothing to compare.
    """

    server: PublicServer
    tools: int = 0
    calls: int = 0
    notes: int = 0
    undeclared: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    is_left: bool = False


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    chosen = [each for each in SERVERS if not options.only or any(word in each.name for word in options.only)]
    if not can_isolate():
        print("this needs Linux's unshare, to call tools of strangers where they can do no harm", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    # Most of the time is spent waiting: servers try to reach what they cannot reach.
    with ThreadPoolExecutor(options.jobs) as threads:
        running = [threads.submit(_try, server, show_notes=options.notes) for server in chosen]
        for outcome in (done.result() for done in as_completed(running)):
            outcomes.append(outcome)
            lines = (*outcome.undeclared, *outcome.stale, *(outcome.declared if options.declared else ()))
            print(f"== {outcome.server.name}\n" + "".join(f"   {line}\n" for line in lines), end="", flush=True)
    outcomes.sort(key=lambda outcome: SERVERS.index(outcome.server))
    print("\n".join(["", *make_table(outcomes), ""]))
    failed = [outcome for outcome in outcomes if outcome.undeclared or outcome.stale]
    left = [outcome for outcome in outcomes if outcome.is_left]
    same = len(outcomes) - len(failed) - len(left)
    print(f"{same} of {len(outcomes)} servers answer as before; {len(left)} are left as they were")
    return 1 if failed else 0


def _try(server: PublicServer, *, show_notes: bool) -> Outcome:
    installed = InstalledServer(server)
    try:
        installed.install()
    except subprocess.SubprocessError as error:
        return Outcome(server, undeclared=(f"not installed: {getattr(error, 'stderr', error)}"[-400:],))
    migrated = installed.migrate()
    notes = [(path, note) for path, each in migrated.items() for note in each.notes]
    if show_notes:
        print("".join(f"{server.name}: {path}:{note.line}: {note.text}\n" for path, note in notes), end="")
    if not installed.is_rewritten:
        return Outcome(server, notes=len(notes), is_left=True)
    try:
        before, questions = _ask(installed.start_original())
    except NoAnswer as silence:
        return Outcome(server, undeclared=(f"the original does not answer: {silence}",))
    try:
        after, _ = _ask(installed.start_migrated(), questions)
    except NoAnswer as silence:
        return _judge(Outcome(server, len(before.lists["tools"]), 0, len(notes)), [f"it does not start: {silence}"])
    try:
        # Last, so that what changes with time is seen: the room on a disk, say.
        again, _ = _ask(installed.start_original(), questions)
    except NoAnswer as silence:
        return Outcome(server, undeclared=(f"the original does not answer again: {silence}",))
    differences = list(compare(before, again, after, questions))
    return _judge(Outcome(server, len(before.lists["tools"]), len(before.replies), len(notes)), differences)


def _ask(command: list[str], questions: list[Question] | None = None) -> tuple[Answers, list[Question]]:
    """The lists of a server, and its answers to these questions; if there are none, to those its lists suggest."""
    with StdioPeer(command, environment()) as peer:
        lists = read_lists(peer)
        questions = make_questions(lists) if questions is None else questions
        return Answers(lists, ask_everything(peer, questions), peer.about), questions


def _judge(outcome: Outcome, differences: list[str]) -> Outcome:
    patterns = [pattern for pattern, _ in DIFFERENCES.get(outcome.server.name, [])]
    declared = [each for each in differences if any(fnmatchcase(each, pattern) for pattern in patterns)]
    stale = [pattern for pattern in patterns if not any(fnmatchcase(each, pattern) for each in differences)]
    if outcome.server.name in UNSTEADY:
        stale = []
    return outcome._replace(
        undeclared=tuple(sorted(set(differences) - set(declared))),
        declared=tuple(declared),
        stale=tuple(f"declared, and gone: {pattern}" for pattern in stale),
    )


def make_table(outcomes: list[Outcome]) -> list[str]:
    """Markdown: one row for each server."""
    rows = [
        "| server | framework | lines | tools | calls compared | differences | left by hand |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for each in outcomes:
        server, found = each.server, str(len(each.undeclared))
        if each.declared:
            found = f"{found} + {len(each.declared)} declared"
        numbers = "left as it was | | " if each.is_left else f"{each.tools} | {each.calls} | {found}"
        name = f"{server.name} {server.version}"
        rows.append(f"| {name} | {server.framework} | {server.lines} | {numbers} | {each.notes} |")
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("make migrations")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="servers with one of these words in their names")
    parser.add_argument("--declared", action="store_true", help="show the declared differences as well")
    parser.add_argument("--jobs", type=int, default=4, help="servers at a time (4)")
    parser.add_argument("--notes", action="store_true", help="show what is left by hand, line by line")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
