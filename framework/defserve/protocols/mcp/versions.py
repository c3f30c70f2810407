"""MCP protocol versions: the one table that says what each of them has. It imports nothing, so clients share it."""

from __future__ import annotations


class ProtocolVersion:
    """One row of the table.

    `stateless`: every request brings its offer; there is no handshake. `batches`: messages may come in an array.
    `null_id`: its schema requires an id on every error, null if the id is unknown. `sends_priming_event`: a stream
    begins with an empty event (SEP-1699), which older clients take for a broken message. `brings`: what a peer of an
    older version must not be sent.
    """

    __slots__ = ("name", "stateless", "batches", "null_id", "sends_priming_event", "brings")

    def __init__(
        self,
        name: str,
        *brings: str,
        stateless: bool = False,
        batches: bool = False,
        null_id: bool = False,
        sends_priming_event: bool = False,
    ) -> None:
        self.name, self.brings, self.stateless = name, brings, stateless
        self.batches, self.null_id, self.sends_priming_event = batches, null_id, sends_priming_event


# The oldest first.
PROTOCOL_VERSIONS = (
    ProtocolVersion("2024-11-05", null_id=True),
    ProtocolVersion(
        "2025-03-26", "completions", "audio", "tool_annotations", "progress_message", null_id=True, batches=True
    ),
    ProtocolVersion(
        "2025-06-18",
        "titles", "meta", "resource_links", "structured", "elicitation", "last_modified",
        null_id=True,
    ),
    ProtocolVersion(
        "2025-11-25",
        "icons", "website", "sampling_tools", "elicitation_url", "elicitation_defaults", "elicitation_enums",
        sends_priming_event=True,
    ),
    ProtocolVersion("2026-07-28", "any_structured", stateless=True),
)  # fmt: skip

HANDSHAKE_VERSIONS = tuple(version.name for version in PROTOCOL_VERSIONS if not version.stateless)
STATELESS_VERSIONS = tuple(version.name for version in PROTOCOL_VERSIONS if version.stateless)
PRIMING_EVENT_VERSIONS = frozenset(version.name for version in PROTOCOL_VERSIONS if version.sends_priming_event)


def get_version_features(version: str) -> frozenset[str]:
    """What a version has: its own features and those of all older versions."""
    return frozenset(feature for row in PROTOCOL_VERSIONS if row.name <= version for feature in row.brings)
