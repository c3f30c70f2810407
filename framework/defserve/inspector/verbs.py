"""What a page can ask for: the verbs of all panels in one table. A new panel is one more line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from defserve.inspector import frame
from defserve.inspector.panels import (
    apps,
    kernel,
    latency,
    live,
    prompts,
    questions,
    resources,
    security,
    skills,
    state,
    tasks,
    tools,
    topics,
    wire,
)
from defserve.inspector.panels.verb import Verb

VERBS: Final[Mapping[str, Verb]] = {
    **frame.VERBS,
    **tools.VERBS,
    **resources.VERBS,
    **prompts.VERBS,
    **apps.VERBS,
    **tasks.VERBS,
    **skills.VERBS,
    **questions.VERBS,
    **latency.VERBS,
    **live.VERBS,
    **security.VERBS,
    **state.VERBS,
    **wire.VERBS,
    **kernel.VERBS,
    **topics.VERBS,
}
