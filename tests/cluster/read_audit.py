"""Reads the audit log of a cluster, and prints it as JSON: `problem`, and `rows` of a trace and a type each."""

from __future__ import annotations

import json
import os

from defserve.stores.audit.stored_log import StoredAuditLog


def main() -> None:
    log = StoredAuditLog(os.environ["CLUSTER_STORE"], server_log="name=cluster")
    report = log.verify()
    rows: list[tuple[str, str]] = []
    seq, has_more = 0, True
    while has_more:
        events, seq, has_more = log.replay(seq, limit=500)
        rows += [(event["trace_id"], event["event_type"]) for event in events]
    problem = (
        "" if report.ok and not report.lost else f"{report.reason or 'lost'}: {report.lost} lost of {report.events}"
    )
    print(json.dumps({"problem": problem, "rows": rows}))
    log.close()


if __name__ == "__main__":
    main()
