"""The audit trail of one connection, into the host's own sinks. MGP and MCPL write their records with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from defserve.protocols.mgp.audit.sinks import AuditSink

log = logging.getLogger("defserve.host")


class HostAuditTrail:
    """A record that a sink does not take is logged as lost: auditing never stops a call."""

    def __init__(self, sinks: Sequence[AuditSink]) -> None:
        self._sinks = sinks
        self.server_id = ""

    def keep(self, about: object, record: Mapping[str, Any]) -> None:
        """Hand a record to every sink. `about` names it in the log if one fails."""
        for sink in self._sinks:
            try:
                sink.append(record)
            except Exception as error:
                log.error("the audit record of %s is lost: %s", about, error)
