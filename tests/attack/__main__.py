"""The command `make attack`: try every attack on servers of its own, and say which were not held.

It connects to this machine only. Every attack has a control: where its protection is missing, it succeeds. The command
exits with 1 if an attack was not held, could not be tried, or if its control did not bite. Only a feature that the
operating system lacks is a good reason not to try one. The seed is printed; `--seed` repeats a run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.attack.arena import BYTECODE
from tests.attack.families import attacks, families
from tests.attack.running import run
from tests.attack.speaking.sockets import watch_connections
from tests.attack.table import line, summary, table, write_json
from tests.attack.trial import Attack, Row

JOBS = 2 * (os.cpu_count() or 1)
"""Many rows wait most of the time: for a deadline of the server, or for its start."""


def main(arguments: list[str] | None = None) -> int:
    modules = {family.name: module for module, family in families().items()}
    return command("attack", __doc__ or "", attacks(), arguments, JOBS, modules=modules)


def command(
    name: str,
    about: str,
    known: Sequence[Attack],
    arguments: list[str] | None,
    jobs: int = os.cpu_count() or 1,
    modules: Mapping[str, str] | None = None,
) -> int:
    """The command line of a table of such rows: try those that were asked for, and print how they went.

    Where `modules` says which module holds a family, each row needs a control that bites.
    """
    options = _parser(name, about, jobs, has_controls=modules is not None).parse_args(arguments)
    chosen = [a for a in known if not options.only or any(_names(o, a.family, a.name) for o in options.only)]
    if options.list:
        print("\n".join(f"{attack.family}: {attack.name}" for attack in chosen))
        return 0
    if sample := modules is not None and options.sample:
        chosen = sample_of(chosen)
    if not chosen:
        print(f"no row is called {', '.join(options.only)}; --list shows all", file=sys.stderr)
        return 2
    watch_connections()
    began, is_terminal = time.monotonic(), sys.stdout.isatty()
    done = 0

    def tell(row: Row) -> None:
        nonlocal done
        done += 1
        if is_terminal:
            print(f"\r\033[K[{done}/{len(chosen)}] {line(row)}", end="" if row.is_good else "\n", flush=True)
        else:
            print(line(row), flush=True)

    print(f"{len(chosen)} rows, --seed {options.seed}", flush=True)
    controlled = modules if modules is not None and not options.no_controls else None
    with TemporaryDirectory(prefix="attack-bytecode-") as os.environ[BYTECODE]:
        rows = run(chosen, options.seed, options.jobs, tell, controlled, sample=sample)
    del os.environ[BYTECODE]
    print("\r\033[K" if is_terminal else "")
    print("\n".join(table(rows)))
    print("\n" + summary(rows, time.monotonic() - began))
    if options.json:
        write_json(rows, options.seed, options.json)
    return 0 if all(row.is_good for row in rows) else 1


def sample_of(attacks: Sequence[Attack]) -> list[Attack]:
    """The first row of each family that has a control."""
    sample: dict[str, Attack] = {}
    for attack in attacks:
        if attack.family not in sample or (attack.controls and not sample[attack.family].controls):
            sample[attack.family] = attack
    return list(sample.values())


def _names(pattern: str, family: str, name: str) -> bool:
    """`smuggling`, `smuggling:*length*` or any part of a name."""
    wanted, _, part = pattern.partition(":")
    return fnmatchcase(family, wanted) and (not part or fnmatchcase(name, part) or part in name)


def _parser(name: str, about: str, jobs: int, *, has_controls: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"make {name}", description=about)
    parser.add_argument("--only", action="append", metavar="FAMILY[:ROW]", help="repeatable; patterns are allowed")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--jobs", type=int, default=jobs, help="families side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row and failure there, too")
    if has_controls:
        parser.add_argument("--sample", action="store_true", help="one row a family, with its control")
        parser.add_argument("--no-controls", action="store_true", help="for a quick look: attacks only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
