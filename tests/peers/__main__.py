"""The command `make peers`: other people's clients, hosts, bridges and servers, each of a known release, meet defserve.

First they are installed below `.peers/`, then everything runs where there is no network but loopback. It exits with 1
if something fails that is not a known fault of the peer (`catalogue.py`), or if a known fault is gone.
With `--write`, `docs/compatibility.md` is written from what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date

from tests.conformance.suite_install import node
from tests.peers.catalogue import BEHIND, ISSUER, PEERS
from tests.peers.isolation import isolated, raise_loopback
from tests.peers.packages import FOLDER, NotInstalled
from tests.peers.page import PAGE, page, table
from tests.peers.peer import Peer, Way
from tests.peers.places import places
from tests.peers.trial import Outcome, tried

# What the part that has a network tells the part that has none.
ABSENT = FOLDER / "absent.json"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    chosen = [p for p in PEERS if not options.only or any(word.lower() in p.name.lower() for word in options.only)]
    if options.write and options.only:
        print("the page is of all peers: --write does not go together with --only", file=sys.stderr)
        return 2
    if options.list or not chosen:
        print("\n".join(peer.name for peer in chosen or PEERS))
        return 0 if chosen else 2
    if not options.here:
        absent = _installed(chosen)
        ABSENT.write_text(json.dumps(absent), encoding="utf-8")
        code = isolated([*arguments, "--here"])
        if code is not None:
            return code
        print("== no network of their own for the peers: Linux's `unshare` is missing or not allowed", file=sys.stderr)
    else:
        absent = json.loads(ABSENT.read_text(encoding="utf-8"))
        raise_loopback()
    began = time.monotonic()
    outcomes = asyncio.run(_tried([p for p in chosen if p.name not in absent], options.jobs))
    surprises = [text for outcome in outcomes for text in outcome.surprises]
    known = [fault for outcome in outcomes for fault in outcome.known]
    if options.write:
        PAGE.write_text(page(PEERS, outcomes, absent, date.today()), encoding="utf-8")
    print("\n".join(["", *table(outcomes), ""]))
    print("".join(f"not installed: {name}: {reason}\n" for name, reason in absent.items()), end="")
    print("\n".join([*known, *(surprises or ["all as expected"])]))
    print(f"{sum(len(o.features) for o in outcomes)} features tried in {time.monotonic() - began:.0f} s")
    return 1 if surprises else 0


def _installed(peers: list[Peer]) -> dict[str, str]:
    """Bring them all; which could not be brought, and why."""
    node()
    absent: dict[str, str] = {}

    def bring(peer: Peer) -> None:
        try:
            peer.package.install()
        except NotInstalled as error:
            absent[peer.name] = str(error)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(bring, {peer.package: peer for peer in peers}.values()))
    through = [peer for peer in peers if peer.role == "kernel"]
    try:
        for package in BEHIND.values() if through else ():
            package.install()
    except NotInstalled as error:
        absent |= {peer.name: f"a server behind the kernel is missing: {error}" for peer in through}
    signing_in = [peer for peer in peers if peer.role == "sign-in"]
    try:
        if signing_in:
            ISSUER.install()
    except NotInstalled as error:
        absent |= {peer.name: f"the issuer is missing: {error}" for peer in signing_in}
    return absent


async def _tried(peers: list[Peer], jobs: int) -> list[Outcome]:
    room = asyncio.Semaphore(jobs)

    async def one(peer: Peer, way: Way) -> Outcome:
        async with room:
            began = time.monotonic()
            outcome = await tried(peer, way, where)
        fine = sum(said == "ok" for said in outcome.features.values())
        seconds = f"{time.monotonic() - began:.0f} s"
        print(f"   {peer.name} {peer.package.version}, {way}: {fine} of {len(outcome.features)}, {seconds}", flush=True)
        return outcome

    through = [peer.name for peer in peers if peer.role == "kernel"]
    issuer = ISSUER if any(peer.role == "sign-in" for peer in peers) else None
    async with places(BEHIND if through else {}, through, issuer) as where:
        return await asyncio.gather(*(one(peer, way) for peer in peers for way in peer.ways))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make peers", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="peers with this in their name; repeatable")
    parser.add_argument("--list", action="store_true", help="list the peers and stop")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side")
    parser.add_argument("--write", action="store_true", help="write docs/compatibility.md")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
