"""The sections of one server, each made when it is first needed, so that a server loads only what it uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.section import ChannelSection
    from defserve.protocols.mcpl.hooks.section import HookSection
    from defserve.protocols.mcpl.inference.section import InferenceSection
    from defserve.protocols.mcpl.push.section import PushSection
    from defserve.protocols.mcpl.section import LiveServer, Section
    from defserve.protocols.mcpl.state.section import StateSection
    from defserve.protocols.mcpl.state.storage import StateStorage


class Sections:
    """A field is None until `need_…` has made its section."""

    def __init__(self, server: LiveServer, storage: StateStorage) -> None:
        self.server, self.storage = server, storage
        self.state: StateSection | None = None
        self.hooks: HookSection | None = None
        self.push: PushSection | None = None
        self.inference: InferenceSection | None = None
        self.channels: ChannelSection | None = None

    def __iter__(self) -> Iterator[Section]:
        """Those that were made. State comes first: its stores open before anything that may use them runs."""
        found = (self.state, self.hooks, self.push, self.inference, self.channels)
        return (section for section in found if section is not None)

    def need_state(self) -> StateSection:
        if self.state is None:
            from defserve.protocols.mcpl.state.section import StateSection

            self.state = StateSection(self.server, self.storage)
        return self.state

    def need_hooks(self) -> HookSection:
        if self.hooks is None:
            from defserve.protocols.mcpl.hooks.section import HookSection

            self.hooks = HookSection(self.server)
        return self.hooks

    def need_push(self) -> PushSection:
        if self.push is None:
            from defserve.protocols.mcpl.push.section import PushSection

            self.push = PushSection(self.server)
        return self.push

    def need_inference(self) -> InferenceSection:
        if self.inference is None:
            from defserve.protocols.mcpl.inference.section import InferenceSection

            self.inference = InferenceSection(self.server)
        return self.inference

    def need_channels(self) -> ChannelSection:
        if self.channels is None:
            from defserve.protocols.mcpl.channels.section import ChannelSection

            self.channels = ChannelSection(self.server)
        return self.channels
