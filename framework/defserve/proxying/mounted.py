"""A server as it is mounted: where it is, how it is mounted, and what it said of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from defserve.host.fields import Json
from defserve.host.mgp.said import SaidMgp, said_mgp
from defserve.protocols.mcp.prefixes import Prefix
from defserve.proxying.catalogue.names import ToolChoice
from defserve.proxying.restarts import RestartPolicy
from defserve.proxying.targets import Secrets, Target

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import PeerIdentity, Session
    from defserve.host.eras import SessionTerms
    from defserve.protocols.mcp.transforms.transform import Transform
    from defserve.proxying.conversations.granting import Decide

STDERR_LINES: Final = 200


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How a backend is mounted.

    Without `restarts`, a child is started again 5 times in 300 s, and an address is tried for ever. `mgp` are the
    extensions of MGP that are offered in its own conversation, the one in which no front's calls are made.
    """

    prefix: str | None = None
    tools: ToolChoice = field(default_factory=ToolChoice)
    timeout: float | None = None
    in_flight: int = 64
    children: int = 64
    idle: float = 300.0
    restarts: RestartPolicy | None = None
    mgp: tuple[str, ...] = ()
    transform: Transform | None = None


class MountedServer:
    """`id` names it in errors and logs; `era` is the protocol version that it speaks, `said` its words about MGP.

    `said` is None as long as it was not asked.
    """

    def __init__(self, id: str, target: Target, options: BackendOptions) -> None:
        self.id, self.options = id, options
        self.target: Target = target
        self.secrets: Secrets = target.secrets
        self.prefix, self.timeout = Prefix(options.prefix), options.timeout
        self.era: str | None = None
        self.info: Json = {}
        self.instructions: str | None = None
        self.hides_instructions = False
        """Whether nobody is shown its instructions, until an operator has read them."""
        self.capabilities: Json = {}
        self.said: SaidMgp | None = None
        self.on_lifecycle: Callable[[Json], None] | None = None
        """Called when it tells of a state of its own (MGP §11.4)."""
        self.on_renewed: Callable[[str], None] | None = None
        self.on_claims: Callable[[], None] | None = None
        """Called with the reason when another process or connection has taken its place without a gap."""
        self.open_to: Callable[[Session, PeerIdentity | None], bool] | None = None
        """Whether a caller may use the server at all. None: everybody may."""
        self.decides: Decide | None = None
        """What it is told of the permissions that it needs (MGP §3). None: it is told nothing."""
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.on_stderr: Callable[[str], None] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the operator lets callers share a conversation, whoever they are."""
        return self.target.per == "shared"

    def serves(self, call: Call) -> bool:
        """Whether it may be used by who calls."""
        return self.open_to is None or self.open_to(call.session, call.identity)

    def learn(self, terms: SessionTerms) -> None:
        """Keep what it says of itself when it is opened."""
        self.era, self.info, self.capabilities = terms.version, terms.server_info, terms.capabilities
        self.learn_claims(terms)

    def learn_claims(self, terms: SessionTerms) -> None:
        """Keep what it tells models, and what it says of all its tools. `on_claims` is called at once."""
        is_asked = self.options.mgp and (terms.stateless or self.offers_mgp_in_sessions)
        self.set_claims(terms.instructions, said_mgp(terms, self.options.mgp) if is_asked else None)

    def set_claims(self, instructions: str | None, said: SaidMgp | None) -> None:
        self.instructions, self.said = instructions, said
        if self.on_claims is not None:
            self.on_claims()

    @property
    def offers_mgp_in_sessions(self) -> bool:
        """Not in a session that fronts share: there MGP would change what their calls mean."""
        return self.target.per != "shared"

    def become(self, target: Target) -> None:
        """It is somewhere else from now on."""
        self.target, self.secrets = target, target.secrets

    def take_stderr(self, line: str) -> None:
        """A child wrote a line on its stderr."""
        shown = self.hidden(line)
        self.stderr.append(shown)
        if self.on_stderr is not None:
            self.on_stderr(shown)

    def hidden(self, text: str) -> str:
        """A text without its secrets."""
        return self.secrets.hidden(text)
