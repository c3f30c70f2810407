"""The token of a connection, which is verified again while the connection is open."""

from __future__ import annotations

from defserve.auth.bearer import credential_of
from defserve.gateway.policy import Admission, AdmissionPolicy


class TopicCredential:
    """A token, the topic it was shown for, and what it was good for then."""

    __slots__ = ("key", "_policy", "_token", "_topic", "_admission")

    def __init__(self, policy: AdmissionPolicy, token: str | None, topic: str, admission: Admission) -> None:
        self.key = (credential_of(token or ""), topic)
        self._policy, self._token, self._topic, self._admission = policy, token, topic, admission

    async def verify(self) -> Admission | None:
        return await self._policy.admit(self._token, self._topic)

    def holds(self, found: Admission | None) -> bool:
        """A token that is good for less than before has ended."""
        known = self._admission
        return (
            found is not None
            and found.participant == known.participant
            and set(found.capabilities) >= set(known.capabilities)
        )
