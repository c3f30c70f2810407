"""Whose a key or a seal is, and that nothing makes one without saying so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import defserve
from defserve.errors import UsageError
from defserve.stores import store
from defserve.stores.identity import (
    NO_SERVER_IDENTITY,
    ServerIdentity,
    ServerStore,
    choose_server_identity,
    identify_server,
    list_servers,
    make_server_store,
    parse_identity,
)
from defserve.stores.store import API_KEYS_SPACE, CHECKPOINT_SPACES, MemoryStore, StoreChange
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PACKAGE = Path(defserve.__file__).parent
NOTES, PAYROLL = ServerIdentity("name", "notes"), ServerIdentity("name", "payroll")

TEXTS = st.text(st.characters(codec=None), max_size=12) | st.text(":=%/,nameurl", max_size=12)
IDENTITIES = st.builds(ServerIdentity, st.sampled_from(["namespace", "name"]), TEXTS, st.just("")) | st.builds(
    lambda path, name: ServerIdentity("url", f"https://a.example/{path}".rstrip("/"), name),
    st.text("abc,=%/", max_size=8),
    TEXTS,
)


# -- which server ----------------------------------------------------------------------------------------


def test_a_server_is_known_by_its_namespace_else_its_url_else_its_name(monkeypatch: pytest.MonkeyPatch):
    url = "https://Tools.Example.com/mcp/"
    assert identify_server("notes") == NOTES
    assert identify_server("notes", url=url) == ("url", "https://tools.example.com/mcp", "notes")
    # Servers of different names may have one audience.
    assert identify_server("notes", url=url) != identify_server("payroll", url=url)
    monkeypatch.setenv("DEFSERVE_NAMESPACE", "staging")
    assert identify_server("notes", url=url) == ("namespace", "staging", "")
    assert identify_server("notes", namespace="production", url=url) == ("namespace", "production", "")
    assert identify_server("notes", namespace="") == ("namespace", "staging", "")


@given(
    IDENTITIES,
    IDENTITIES,
    st.sampled_from(sorted(store.SPACE_DESCRIPTIONS)),
    st.sampled_from(sorted(store.SPACE_DESCRIPTIONS)),
)
def test_no_two_identities_have_a_key_or_a_seal_in_common(one: ServerIdentity, other: ServerIdentity, a: str, b: str):
    assert parse_identity(one.label) == one
    if one != other:
        prefixes = one.make_prefix("p:"), other.make_prefix("p:")
        assert not prefixes[0].startswith(prefixes[1]) and not prefixes[1].startswith(prefixes[0])
        assert prefixes[0] + a != prefixes[1] + b
        assert one.derive_key(b"secret", "a") != other.derive_key(b"secret", "a")
    assert one.derive_key(b"secret", "a") != one.derive_key(b"secret", "b")
    assert one.derive_key(b"secret", "a") != one.derive_key(b"another", "a")


@for_each_row(
    "text, identity",
    [
        ("notes", NOTES),
        ("https://a.example/mcp/", ServerIdentity("url", "https://a.example/mcp")),
        ("https://a.example/mcp,notes", ServerIdentity("url", "https://a.example/mcp", "notes")),
        ("namespace=staging", ServerIdentity("namespace", "staging")),
        ("name=a%3Ab", ServerIdentity("name", "a:b")),
        ("other=x", ServerIdentity("name", "other=x")),
    ],
)
def test_a_command_line_names_a_server(text: str, identity: ServerIdentity):
    assert parse_identity(text) == identity


# -- its part of a store ---------------------------------------------------------------------------------


async def test_servers_in_one_store_see_only_their_own_part():
    raw = MemoryStore()
    notes, payroll = ServerStore(raw, NOTES), ServerStore(raw, PAYROLL)
    assert await notes.change(StoreChange(API_KEYS_SPACE, {"a": b"1"}))
    assert await notes.change(StoreChange(CHECKPOINT_SPACES.make_space("x"), {"a": b"1"}))
    assert await notes.get(API_KEYS_SPACE, ["a"]) == {"a": b"1"} and await payroll.get(API_KEYS_SPACE, ["a"]) == {}
    assert [each async for each in notes.scan(API_KEYS_SPACE)] == [("a", b"1")]
    assert [each async for each in payroll.scan(API_KEYS_SPACE)] == []
    assert [each async for each in notes.spaces(CHECKPOINT_SPACES)] == ["state:x"]
    assert [each async for each in payroll.spaces(CHECKPOINT_SPACES)] == []
    assert await payroll.change(StoreChange(API_KEYS_SPACE, {"a": b"2"}, expect={"a": None}))
    assert await list_servers(raw) == [NOTES, PAYROLL]


async def test_the_server_that_a_command_means_is_named_or_the_only_one(monkeypatch: pytest.MonkeyPatch):
    raw = MemoryStore()
    with pytest.raises(UsageError, match="no values yet"):
        await choose_server_identity(raw, None)
    await ServerStore(raw, NOTES).change(StoreChange(API_KEYS_SPACE, {"a": b"1"}))
    assert await choose_server_identity(raw, None) == NOTES and await choose_server_identity(raw, "payroll") == PAYROLL
    await ServerStore(raw, PAYROLL).change(StoreChange(API_KEYS_SPACE, {"a": b"1"}))
    with pytest.raises(UsageError, match="values of 2 servers: name=notes, name=payroll"):
        await choose_server_identity(raw, None)
    monkeypatch.setenv("DEFSERVE_NAMESPACE", "staging")
    assert await choose_server_identity(raw, None) == ("namespace", "staging", "")


async def test_a_url_names_the_only_server_that_has_it():
    raw, url = MemoryStore(), "https://a.example/mcp"
    with pytest.raises(UsageError, match="--server https://a.example/mcp,NAME"):
        await choose_server_identity(raw, url)
    identity = ServerIdentity("url", url, "notes")
    await ServerStore(raw, identity).change(StoreChange(API_KEYS_SPACE, {"a": b"1"}))
    assert await choose_server_identity(raw, url) == identity


async def test_what_is_given_to_no_server_is_kept_in_memory_alone(tmp_path: Path):
    store = make_server_store(f"sqlite:///{tmp_path / 'keys.db'}", None, what="ApiKeys(…)")
    with pytest.raises(UsageError, match="was given to no server"):
        await store.get(API_KEYS_SPACE, ["a"])
    await store.close()
    memory = make_server_store("memory:", None)
    await memory.change(StoreChange(API_KEYS_SPACE, {"a": b"1"}))
    memory.bind_server(NOTES)  # what was put there before is not lost
    assert await memory.get(API_KEYS_SPACE, ["a"]) == {"a": b"1"}


def test_a_part_of_a_store_is_given_to_one_server_only():
    store = make_server_store("memory:", NOTES, what="ApiKeys(…)")
    store.bind_server(NOTES)
    with pytest.raises(
        UsageError, match=r"ApiKeys\(…\) belongs to the server name=notes, and is given to name=payroll"
    ):
        store.bind_server(PAYROLL)
    assert store.identity == NOTES and make_server_store(store, NOTES) is make_server_store(store, None) is store
    others = make_server_store(store, PAYROLL)  # another server that is given it has its own part all the same
    assert others.raw is store.raw and others.identity == PAYROLL
    assert ServerStore(MemoryStore()).identity == NO_SERVER_IDENTITY


# -- nothing else makes a key or a seal ------------------------------------------------------------------

# File → what it may call, and why that needs no name of a server.
HMAC: Final = "makes or checks a code"
ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "stores/identity.py": {
        HMAC: "the helper itself",
        "open_store": "the helper itself",
        "redis": "makes stores; who calls it is looked at",
    },
    "stores/redis.py": {"redis": "the store itself: its spaces come from ServerStore, but for the format"},
    "stores/postgres.py": {"redis": "the store itself: its spaces come from ServerStore"},
    "stores/shared/worker_link.py": {"redis": "its prefix is the identity's"},
    "stores/audit/chain.py": {
        HMAC: "the key is the auditor's own; the log has a name, in a store that of its server",
        "open_store": "heads lie under the path or the name of their log, and are signed",
    },
    "stores/audit/stored_log.py": {"open_store": "a log has a name: that of its server, or what follows #"},
    "stores/checkpoints/checkpoint_tree.py": {HMAC: "its key is derived, or kept in the server's part of the store"},
    "auth/api_keys.py": {HMAC: "a hash that only its server's part of a store, or its file, holds"},
    "auth/proxy/seals.py": {HMAC: "its roots are derived"},
    "auth/dpop.py": {HMAC: "its key is derived"},
    "protocols/mcp/asking/round_trips.py": {HMAC: "its secret is derived"},
    "protocols/mcp/events/event_log.py": {HMAC: "its key is derived"},
    "protocols/mcp/events/sending.py": {HMAC: "the key is the subscriber's own, for its own endpoint"},
    "cli/commands/state.py": {
        HMAC: "what 0.1.0 derived, kept in the part of the server that it is given to",
        "open_store": "chooses a server's part, or gives what names no server to one",
        "redis": "renames keys into a server's part",
    },
    "cli/commands/keys.py": {"open_store": "chooses a server's part"},
    "kernel/kernel_state.py": {HMAC: "its key is derived"},
    "kernel/shared_processes.py": {HMAC: "the key of the group is derived"},
    "inspector/state_trees.py": {"open_store": "chooses a server's part"},
}
CIPHERS: Final = frozenset(("AESGCM", "ChaCha20Poly1305", "Fernet", "HKDF", "PBKDF2HMAC", "Scrypt"))
COMMANDS: Final = frozenset(
    "hget hset hmget hgetall hdel xadd xrange xread xrevrange publish psubscribe setex setnx incr expire "
    "lpush rpush blpop zadd sadd eval evalsha execute_command renamenx scan_iter register_script".split()
)


WORDS: Final = re.compile(
    rf"hmac\.|blake2b|open_store|[A-Z][a-z]+Store|RedisAddress|PostgresAddress|redis|{'|'.join(CIPHERS)}"
)
OWNERS: Final = re.compile("redis|client|pipe|listening")


def made_keys(source: str) -> Iterator[str]:
    """What a module does that makes, or names, something for others to read."""
    if not WORDS.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        has_key = called == "blake2b" and any(word.arg == "key" for word in node.keywords)
        if has_key or called in CIPHERS:
            yield HMAC
        elif called in ("open_store", "RedisStore", "SqliteStore", "PostgresStore", "RedisAddress", "PostgresAddress"):
            yield "open_store" if called == "open_store" else "redis"
        elif isinstance(function, ast.Attribute) and called in ("new", "digest", *COMMANDS):
            owner = ast.unparse(function.value)
            if called in ("new", "digest") and owner == "hmac":
                yield HMAC
            elif called in COMMANDS and OWNERS.search(owner):
                yield "redis"


def strays() -> set[str]:
    found = set[str]()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        found |= {f"{name}: {what}" for what in made_keys(path.read_text(encoding="utf-8"))}
    return found


@pytest.mark.slow
def test_every_key_and_every_seal_is_made_with_the_name_of_a_server():
    allowed = {f"{name}: {what}" for name, reasons in ALLOWED.items() for what in reasons}
    found = strays()
    assert found - allowed == set(), "make it with ServerIdentity, or say in ALLOWED why it needs no server"
    assert allowed - found == set(), "ALLOWED lists what nobody does"


@for_each_row(
    "source, found",
    [
        ('hmac.digest(secret, b"label", "sha256")', HMAC),
        ("mac = hmac.new(key, text, sha256)", HMAC),
        ("AESGCM(key).encrypt(nonce, text, b'')", HMAC),
        ('store = open_store("redis://x")', "open_store"),
        ('await self._redis.hset("defserve:mine", "a", 1)', "redis"),
        ('client: Redis\nclient.publish("channel", "x")  # redis', "redis"),
    ],
)
def test_a_key_or_seal_that_is_made_elsewhere_is_noticed(source: str, found: str):
    assert [*made_keys(source)][:1] == [found]
