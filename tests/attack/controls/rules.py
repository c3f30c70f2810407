"""What servers do without the rules of `families/rules`. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.attack.controls.patching import Patch

# -- whose a value is ------------------------------------------------------------------------------------

IDENTITY = "defserve.stores.identity:ServerIdentity"


def seal_for_all_servers(patch: Patch) -> None:
    """One key a purpose, whichever server seals."""
    from defserve.stores.identity import NO_SERVER_IDENTITY, ServerIdentity

    derive = ServerIdentity.derive_key
    patch.set(f"{IDENTITY}.derive_key", lambda self, secret, purpose: derive(NO_SERVER_IDENTITY, secret, purpose))


def keep_all_servers_together(patch: Patch) -> None:
    """One part of a store, whichever server keeps."""
    patch.set(f"{IDENTITY}.make_prefix", lambda self, base="": f"{base}server:all:")


def know_no_server(patch: Patch) -> None:
    seal_for_all_servers(patch)
    keep_all_servers_together(patch)


# -- whose a state is ------------------------------------------------------------------------------------

CHECKPOINTS = "defserve.stores.checkpoints"


def prove_every_state(patch: Patch) -> None:
    """Whatever a call starts from counts as the server's own, and so does all that is made of it."""

    def proving(find: Any) -> Any:
        async def found(self: Any, *given: Any, **more: Any) -> Any:
            return (await find(self, *given, **more))._replace(verified=True)

        return found

    for name in ("adopt_content", "load_checkpoint"):
        patch.wrap(f"{CHECKPOINTS}.checkpoint_store:CheckpointStore.{name}", proving)


def prove_every_id(patch: Patch) -> None:
    """The id of a checkpoint does not tell whether it is proved."""
    from defserve.stores.checkpoints.checkpoint_tree import _LABELS  # pyright: ignore[reportPrivateUsage]

    patch.item(f"{CHECKPOINTS}.checkpoint_tree:_LABELS", False, _LABELS[True])


def let_anyone_move_the_shared_head(patch: Patch) -> None:
    patch.set("defserve.protocols.mcpl.state.ownership:StateOwner.is_shared", property(lambda self: False))


# -- patterns --------------------------------------------------------------------------------------------

PATTERNS = "defserve.binding.patterns"


def match_by_python(patch: Patch) -> None:
    """Python's engine matches the patterns of schemas, and backtracks."""
    import re

    def compile_pattern(pattern: str) -> Any:
        from defserve.binding.patterns import LinearPattern

        return LinearPattern(pattern, 1, lambda text: re.search(pattern, text) is not None)

    patch.set(f"{PATTERNS}:compile_pattern", compile_pattern)


def declare_any_pattern(patch: Patch) -> None:
    patch.set(f"{PATTERNS}:find_annotation_pattern_problem", lambda pattern, engine: None)


# -- unions ----------------------------------------------------------------------------------------------


def compare_no_branches(patch: Patch) -> None:
    """A union is taken, whatever its other branches accept."""
    patch.set("defserve.protocols.mgp.guarded_types:UnionCheck.find_bypass", lambda self: None)


def judge_late(patch: Patch) -> None:
    patch.set("defserve.binding.core_schemas:_CHANGES_FOR_ARGUMENTS", ())


# -- echoes ----------------------------------------------------------------------------------------------


def repeat_everything(patch: Patch) -> None:
    patch.set("defserve.errors:truncate_text", lambda text, most=0: text)
    patch.set("defserve.errors:truncate_error_data", lambda data, most=0, depth=0: data)


def repeat_the_version(patch: Patch) -> None:
    repeat_everything(patch)
    patch.set("defserve.serve.http.streamable:_format_unsupported", lambda version: f"unsupported version {version}")


# -- what people approve ---------------------------------------------------------------------------------

PINS = "defserve.kernel.governance.marks_and_pins"
DESCRIPTIONS = "defserve.proxying.boundary"


def pin_without_meta(patch: Patch) -> None:
    def without(encode: Any) -> Any:
        return lambda raw, claims: encode({name: raw[name] for name in raw if name != "_meta"}, claims)

    patch.wrap(f"{PINS}:_encode_definition", without)


def accept_what_is_not_shown(patch: Patch) -> None:
    def all_shown(difference: Any) -> Any:
        return lambda self: difference(self)._replace(left_out=0)

    patch.wrap(f"{PINS}:HeldTool.difference", all_shown)


def keep_every_pin(patch: Patch) -> None:
    patch.set(f"{PINS}:SeenPins._make_room", lambda self: None)


def ask_in_the_tools_words(patch: Patch) -> None:
    def in_its_words(confirm: Any) -> Any:
        def asked(call: Any, message: str, *, key: str | None = None) -> Any:
            return confirm(call, f"{call.subject.options.title or call.subject.name}?", key=key)

        return asked

    patch.wrap("defserve.protocols.mcp.asking.client_requests:ask_confirmation", in_its_words)


def name_nobody_who_asks(patch: Patch) -> None:
    patch.set(f"{DESCRIPTIONS}:add_asker_to_question", lambda id, method, params: params)


def pass_on_every_word(patch: Patch) -> None:
    patch.set("defserve.proxying.boundary:filter_front_meta", lambda meta: dict(meta))


def import_every_text(patch: Patch) -> None:
    patch.set(
        "defserve.kernel.client_import:KeptOut.replace_secret", lambda self, server, name, value, is_secret=False: value
    )


def give_views_everything(patch: Patch) -> None:
    patch.set("defserve.client.apps:RenderedApp._is_own", lambda self, item: True)


def believe_whose_it_is(patch: Patch) -> None:
    patch.set(f"{DESCRIPTIONS}:OUR_WORDS", frozenset[str]())


def list_any_name(patch: Patch) -> None:
    patch.set("defserve.proxying.mounted:find_tool_name_problem", lambda name: None)
    patch.set("defserve.proxying.mounted:find_name_problem", lambda name: None)


def offer_what_hides(patch: Patch) -> None:
    patch.set(f"{DESCRIPTIONS}:find_hidden_character_in_names", lambda listed: None)


# -- signing in, metrics, packages -----------------------------------------------------------------------

REDIRECTS = "defserve.auth.proxy.clients"
HTTP = "defserve.serve.http.app:HttpApp"


def grant_what_is_asked_for(patch: Patch) -> None:
    async def grant(self: Any, claims: Any, requested: Any) -> Any:
        return requested

    patch.set("defserve.auth.proxy.authorization_requests:ScopeRule.grant_scopes", grant)


def take_any_scheme(patch: Patch) -> None:
    import re

    patch.set(f"{REDIRECTS}:_DOMAIN_SCHEME", re.compile(".*"))


def show_metrics_to_every_key(patch: Patch) -> None:
    async def report(self: Any, probe: Any, exchange: Any, scope: Any) -> None:
        await self._report(probe, exchange, scope)

    patch.set(f"{HTTP}._report_to_holder", report)


def take_any_slash(patch: Patch) -> None:
    """Paths are looked up without the slashes at their ends."""
    patch.wrap(f"{HTTP}._path", lambda path: lambda self, scope: "/" + path(self, scope).strip("/"))


def delete_by_prefix(patch: Patch) -> None:
    from defserve.tooling.packaging.project_documents import normalize_distribution_name

    def find(project: Any, out: Any) -> Any:
        ours = f"{normalize_distribution_name(project.name)}-"
        return (
            path
            for path in sorted(out.iterdir())
            if normalize_distribution_name(path.name).startswith(ours) and path.is_file()
        )

    patch.set("defserve.tooling.packaging.package:find_built", find)


# -- guards ----------------------------------------------------------------------------------------------

SHELL = "defserve.guard.shell"


def let_modes_clash(patch: Patch) -> None:
    """Two options that each say what a program does go together."""

    def without(judged: Any) -> Any:
        return lambda *given: (one for one in judged(*given) if not one.message.endswith("together"))

    patch.wrap(f"{SHELL}.grammar:_judge_words", without)


def write_any_name(patch: Patch) -> None:
    patch.set(f"{SHELL}.places:PathRules.check_trusted_name", lambda self, path: None)


def _judge_as(patch: Patch, kind: str, other: str) -> None:
    """Words of one kind are judged as if they were of another."""
    from defserve.guard.shell import kinds

    patch.item(f"{SHELL}.kinds:KINDS", kind, kinds.KINDS[other])
    kinds.find_word_kind.cache_clear()
    patch.when_undone(kinds.find_word_kind.cache_clear)


def begin_any_name(patch: Patch) -> None:
    _judge_as(patch, "prefix", "name")


def walk_where_one_may_list(patch: Patch) -> None:
    _judge_as(patch, "walked", "listed")


def forget_late_values(patch: Patch) -> None:
    """A value after an operand is a value for every program."""

    def make(sort: Any) -> Any:
        def sort_words(*given: Any, **more: Any) -> Any:
            read = sort(*given, **more)
            read.late.clear()
            return read

        return sort_words

    patch.wrap(f"{SHELL}.grammar:sort_words", make)


def run_the_projects_code(patch: Patch) -> None:
    patch.set(f"{SHELL}.judgement:REFUSED_EFFECTS", {"sandbox": frozenset[str](), "readonly": frozenset[str]()})


def give_out_what_objects_hold(patch: Patch) -> None:
    patch.set("defserve.guard.code.allowed_names:EXPOSED_ATTRIBUTES", {})
    patch.set("defserve.guard.code.allowed_names:HIDDEN_MODULES", frozenset[str]())


def take_any_name_of_code(patch: Patch) -> None:
    patch.set("defserve.guard.code.allowed_names:HARMLESS_KEYWORDS", {})


# -- webhooks --------------------------------------------------------------------------------------------

EVENTS = "defserve.protocols.mcp.events"


def take_any_webhook_url(patch: Patch) -> None:
    """Nobody looks at the text of an address."""
    patch.set(f"{EVENTS}.sending:WebhookSender.check_url", lambda self, url: url)


def connect_webhooks_anywhere(patch: Patch) -> None:
    """Nobody looks at what a name leads to."""
    from defserve.guard.verdict import Verdict

    patch.set("defserve.guard.network:judge_address", lambda address: Verdict(True))


def follow_redirects_of_webhooks(patch: Patch) -> None:
    """A webhook is sent with a client as any other."""

    async def post(self: Any, url: str, headers: Any, body: bytes, reads_answer: bool) -> bytes:
        import httpx2

        async with httpx2.AsyncClient(follow_redirects=True) as client:
            return (await client.post(url, headers=headers, content=body)).content

    patch.set(f"{EVENTS}.sending:WebhookSender._post", post)


def read_long_answers_of_webhooks(patch: Patch) -> None:
    patch.set(f"{EVENTS}.sending:MAX_ANSWER_BYTES", 10**9)


def wait_for_webhooks_without_end(patch: Patch) -> None:
    patch.set(f"{EVENTS}.sending:TIMEOUT_SECONDS", 10**6)


def give_all_room_to_one_webhook(patch: Patch) -> None:
    """Only the requests of all together are counted."""

    @asynccontextmanager
    async def enter(self: Any, key: str) -> AsyncGenerator[None]:
        yield

    patch.set(f"{EVENTS}.sending:KeyedRoom.enter", enter)


def take_old_webhooks(patch: Patch) -> None:
    patch.set(f"{EVENTS}.sending:MAX_AGE_SECONDS", 10**9)


def believe_every_challenge(patch: Patch) -> None:
    patch.set(f"{EVENTS}.webhooks:_check_challenge", lambda body, nonce: None)


def forget_whose_a_webhook_is(patch: Patch) -> None:
    """All callers have one list of webhooks."""
    from defserve.auth.principals import Principal

    def derive(old: Any) -> Any:
        return lambda self, caller, *more: old(self, Principal("everybody"), *more)

    patch.wrap(f"{EVENTS}.webhooks:Webhooks._derive_id", derive)
    patch.wrap(
        f"{EVENTS}.webhook_records:make_caller_webhook_space", lambda old: lambda caller: old(Principal("everybody"))
    )


def keep_any_number_of_webhooks(patch: Patch) -> None:
    async def check_nothing(*_: Any) -> None:
        pass

    def unbounded(old: Any) -> Any:
        return lambda *given, most: old(*given, most=10**9)

    patch.set(f"{EVENTS}.webhooks:Webhooks._check_room", check_nothing)
    patch.wrap(f"{EVENTS}.webhook_records:WebhookRecords.store_subscription", unbounded)


def repeat_webhook_secrets(patch: Patch) -> None:
    """The error about a secret says which."""

    def repeating(old: Any) -> Any:
        def parse(text: Any) -> bytes:
            try:
                return old(text)
            except ValueError:
                raise ValueError(f"{text} is no secret") from None

        return parse

    patch.wrap(f"{EVENTS}.sending:parse_webhook_secret", repeating)
