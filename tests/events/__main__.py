"""Events under `kill -9` of workers, receivers and Redis: all that was acknowledged is delivered, in order, duplicates
only with their id.

make events ARGS="--events 100000 --kills 200"
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from tests.events.campaign import MAX_SUBSCRIPTION_MB, Campaign, measure_subscriptions
from tests.faults.process import Broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make events", description=__doc__)
    parser.add_argument("--events", type=int, default=5_000, help="how many events are emitted (%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="how often a worker or receiver is killed (%(default)s)")
    parser.add_argument("--kill-redis", type=int, default=2, help="how often Redis is killed too (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="emit no more after so many seconds")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (%(default)s)")
    parser.add_argument("--subscriptions", type=int, default=10_000, help="whose memory is measured; 0: none")
    options = parser.parse_args(arguments)
    try:
        campaign = Campaign(options.events, options.kills, options.seed, options.kill_redis, options.seconds)
        tally = asyncio.run(campaign.run())
        print(
            f"{tally.acknowledged} acknowledged, {tally.logged} in the log, {tally.delivered} delivered in order, "
            f"{tally.duplicates} of them again under their id\n"
            f"killed: {tally.worker_kills} workers, {tally.receiver_kills} receivers, Redis {tally.redis_kills} times\n"
            f"emitted in {tally.emit_seconds:.0f} s; all had come {tally.lag_seconds:.1f} s after the last, while a "
            f"slow receiver was {tally.slow_behind} behind: "
            f"{tally.delivered / (tally.emit_seconds + tally.lag_seconds):.0f} events a second "
            f"(load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
        )
        if options.subscriptions:
            megabytes, seconds = asyncio.run(measure_subscriptions(options.subscriptions))
            print(f"{options.subscriptions} subscriptions: {megabytes:.0f} MB, an event came after {seconds:.2f} s")
            if megabytes >= MAX_SUBSCRIPTION_MB:
                raise Broken(f"they take more than {MAX_SUBSCRIPTION_MB:.0f} MB")
    except Broken as broken:
        print(f"broken: {broken}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
