"""MCPL §11.5: which model answers a server's inference request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.protocols.mcpl.inference.values import Inference
from defserve.protocols.mcpl.policies import covering
from defserve.protocols.mcpl.turns import ModelInfo

MOST_PINNED: Final = 1_000
LONGEST_ID: Final = 1_024


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What a server asks a model. `preferences` are all of its hints, also those that this host does not know."""

    server_id: str
    feature_set: str
    inference_id: str
    messages: list[dict[str, Any]]
    conversation_id: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    preferences: Mapping[str, Any] | None = None


Written: TypeAlias = str | Inference
Model: TypeAlias = Callable[[InferenceRequest], Written | Awaitable[Written] | AsyncIterator[Written]]
"""A function of the request, or a callable object: it returns the whole answer, or yields it chunk by chunk.

An `Inference` that is yielded last is the whole answer with its details. An attribute `info` says which model it is.
"""


class Router:
    """Picks a model by the name of the feature set, exactly or by wildcard. The most specific route wins.

    default        answers requests that no route covers; without it they are refused
    routes         set or pattern to model; `(server id, pattern)` for the sets of one server, which comes first
    conversations  conversation to model, whatever the set
    pin            a conversation keeps the model it started with
    """

    def __init__(
        self,
        default: Model | None = None,
        routes: Mapping[str | tuple[str, str], Model] | None = None,
        *,
        conversations: Mapping[str, Model] | None = None,
        pin: bool = False,
    ) -> None:
        self.default, self.routes = default, dict(routes or {})
        self.conversations = dict(conversations or {})
        self._pins: OrderedDict[tuple[str, str], Model] | None = OrderedDict() if pin else None

    def __bool__(self) -> bool:
        """Whether there is any model."""
        return self.default is not None or bool(self.routes) or bool(self.conversations)

    @property
    def info(self) -> ModelInfo | None:
        """Which model the default is."""
        return info_of(self.default)

    def pick(self, server_id: str, feature_set: str, conversation_id: str | None = None) -> Model | None:
        """The model for a set: that of the conversation, or else the pinned, the routed or the default one, or None."""
        if conversation_id is None:
            return self._routed(server_id, feature_set)
        if conversation_id in self.conversations:
            return self.conversations[conversation_id]
        pinned = self._pins.get((server_id, conversation_id)) if self._pins is not None else None
        model = pinned or self._routed(server_id, feature_set)
        if self._pins is not None and model is not None and len(conversation_id) <= LONGEST_ID:
            self._pins[server_id, conversation_id] = model
            self._pins.move_to_end((server_id, conversation_id))
            if len(self._pins) > MOST_PINNED:
                self._pins.popitem(last=False)
        return model

    def _routed(self, server_id: str, feature_set: str) -> Model | None:
        patterns = list(covering(feature_set))
        keys = [*((server_id, pattern) for pattern in patterns), *patterns]
        return next((self.routes[key] for key in keys if key in self.routes), self.default)


def info_of(model: Any) -> ModelInfo | None:
    found = getattr(model, "info", None)
    return found if isinstance(found, ModelInfo) else None
