"""A server with marks, permissions, access entries and an audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from defserve import PublicUrl, Server, dangerous, moderate, safe
from defserve.inspector.era_connection import InspectionTarget
from defserve.serve.lifespans import connect_in_memory
from defserve.server import AccessPolicy
from defserve.stores.audit.log_file import AuditLog

KEY = b"a key that only the tests have"


def guarded(audit: AuditLog | None = None) -> Server:
    """The local user is its admin."""
    policy = AccessPolicy("opt-out", admins=["local"])
    server = Server("greenhouse", "0.4.2", access=policy, audit=audit if audit is not None else ())

    @server.tool
    @safe
    def list_sensors() -> list[str]:
        """All sensors."""
        return ["fern"]

    @server.tool
    @moderate("network.outbound")
    def forecast(station: PublicUrl) -> str:
        """The weather that a station expects."""
        return "mild"

    @server.tool
    @moderate("network.outbound", "filesystem.read")
    def survey() -> int:
        """Read every sensor."""
        return 5

    @server.tool
    @dangerous("com.example.vents", effects=["process"])
    def open_vents(vent: int, percent: int = 50) -> str:
        """Open a vent in the roof."""
        return f"vent {vent} is open by {percent} %"

    @server.health_check
    def pump() -> bool:
        return True

    declared: list[Any] = [list_sensors, forecast, survey, open_vents, pump]
    assert declared
    return server


def audited(folder: Path) -> AuditLog:
    return AuditLog(folder / "audit.jsonl", key=KEY)


def target(server: Server, era: str = "", audit: AuditLog | None = None) -> InspectionTarget:
    return InspectionTarget(
        "greenhouse.py", ("greenhouse.py",), lambda: connect_in_memory(server.composition), era, audit=lambda: audit
    )
