"""Every requirement of the five documents as data: what must hold, for whom, and what is not yet proven.

A test proves requirements by naming them: `@pytest.mark.req("MCP-4.1v")`. An id without such a test
has a dated entry in `GAPS`; an id never has both. `make requirements` shows where each one stands.

The documents: MGP (security and lifecycle), MCPL (live hosts), MCPX (shared topics), MCP itself,
GGEN (registry, export, errors and keys).
"""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """One thing a document asks for. `side` is who owes it: see `SIDES`."""

    id: str
    document: str
    text: str
    side: str


class Gap(NamedTuple):
    """A requirement no test proves yet: since when, and why."""

    since: str
    reason: str


SIDES = {
    "S": "server",
    "C": "client or host",
    "K": "kernel",
    "G": "gateway",
    "P": "participant",
    "B": "both ends",
    "S/C": "server and client",
    "S/K": "server and kernel",
}

_TABLE = """
MGP-1.1 S | a server with MGP is a complete, valid MCP server for a client without it
MGP-1.3 B | client and server each with or without MGP: all four pairs work unconfigured
MGP-1.4 B | MGP rides on the transports MCP has and adds none
MGP-1.5 B | JSON-RPC 2.0, with methods under mgp/ and notifications under notifications/mgp.
MGP-2.2 C | the client offers capabilities.mgp with a version and a list of extensions, both mandatory
MGP-2.2x B | the nine extension names and the sections they stand for
MGP-2.3 S | the reply has version, the shared extensions, permissions_required, server_id and trust_level
MGP-2.3t S | trust_level is trusted, standard or sandboxed
MGP-2.4.1 B | only what both sides named is active; everything else stays silent
MGP-2.4.2 C | a reply without mgp means the server is plain MCP
MGP-2.4.3 S | a client that offered no mgp is shown none
MGP-2.4.4 B | versions agree when the major is equal and the minor compatible
MGP-3.2 S | eleven standard permissions with their risk; others are named by reverse domain
MGP-3.3 C | approval policies: interactive, auto_approve, deny_all, config_only
MGP-3.4 B | permissions are settled after the initialize result and before normal work
MGP-3.5 S | mgp/permission/request carries request_id, permissions, policy and message
MGP-3.6 S/C | its result carries request_id, grants, approved_by and expires_at
MGP-3.6g S | approved runs, denied degrades, deferred waits
MGP-3.6e S | a grant past its expires_at no longer counts
MGP-4.2 S | each listed tool has a security object that a plain client can ignore
MGP-4.3 S | security names risk_level, permissions, side_effects, validator, reversible, confirmation_required
MGP-4.4 C | the client treats safe, moderate and dangerous tools each in their way
MGP-4.5 K | the validators sandbox, readonly, network_restricted, code_safety and none run before a call goes on
MGP-5.2 K | a tool's grant outranks the server's, which outranks the default
MGP-5.3 K | entries are server_grant or tool_grant; the latter names its tool
MGP-5.4q K | mgp/access/query tells the permission, where it comes from, by whom, when, until when
MGP-5.4g K | mgp/access/grant allows or denies, with justification and expiry
MGP-5.4r K | mgp/access/revoke takes a grant back
MGP-5.5 K | the default is opt-in (deny) or opt-out (allow)
MGP-6.3 S/K | audit notices carry timestamp, trace_id, event_type, actor, target, result and details
MGP-6.3f K | they go to an audit server if there is one, else to the local log
MGP-6.4 B | eleven event types; others are named by reverse domain
MGP-6.5 B | a trace_id in the params or beside them is taken over and passed on
MGP-7.2 S/K | code safety levels unrestricted, standard, strict, readonly, each holding the one before
MGP-7.3 S | security.code_safety names level, language, size and lists
MGP-7.4 S | refused code is answered with status, reason, violations and hints
MGP-11.2 B | seven lifecycle states and only the legal moves between them
MGP-11.3p S | mgp/health/ping answers within 5 s with status, timestamp, uptime_secs and server_id
MGP-11.3v S | healthy, degraded and unhealthy are derived from the checks
MGP-11.3s S | mgp/health/status counts tools and pending requests and shows resources and checks
MGP-11.4s S | mgp/lifecycle/shutdown answers accepted, pending_requests and estimated_drain_ms
MGP-11.4r B | five reasons for a shutdown
MGP-11.4d S | while draining, running calls finish, new ones get 2001, and the end is bounded
MGP-11.4n S | each transition sends notifications/mgp.lifecycle
MGP-11.5p K | restart policy never, on_failure or always
MGP-11.5w K | too many restarts in the window leave the server in error, restart_limit_exceeded
MGP-11.5b K | restarts back off from 1 s, doubling to 30 s
MGP-12.3 S | a call streams only when it says _mgp.stream and streaming is negotiated
MGP-12.4 S | chunks carry request_id, an index from 0, content and done false
MGP-12.5 S | the final response holds the whole content and _mgp with streamed, chunks_sent, duration_ms
MGP-12.6 S | stream progress goes from 0 to 1 with a message and an estimate
MGP-12.7 S | mgp/stream/cancel gives the partial result; an unknown id is cancelled false
MGP-12.8/9 S | a rate hint is kept to and a lost chunk can be sent again
MGP-13.2 S | mgp/events/subscribe answers subscribed, unsupported and a subscription_id
MGP-13.2u S | mgp/events/unsubscribe ends one; an unknown id is an error
MGP-13.2f S | filter.min_severity is kept to
MGP-13.3 S | mgp.event goes to subscribers only, with subscription_id, channel, timestamp and data
MGP-13.4 S | a callback.request notice is answered by mgp/callback/respond with its callback_id
MGP-13.4t S | callbacks are confirmation, input, selection, or a notification without answer
MGP-13.4x S | a callback times out; a late or unknown answer does no harm
MGP-13.5 B | channels are named model.*, system.*, tool.*, security.*; none is taken for granted
MGP-14.2 B | error codes live in the ranges 1000, 2000, 3000, 4000 and 5000
MGP-14.3 B | nineteen named error codes
MGP-14.4 S | an error tells how to recover in data._mgp
MGP-14.5 S | that is category, retryable, retry_after_ms, retry_strategy, max_retries, fallback_tool, details
MGP-14.6 C | a client retries as told, uses the fallback last, audits each, and never what is not retryable
MGP-15.2o C | configuration is looked for in the project, the user's folder and $MGP_CONFIG_PATH
MGP-15.2f C | [[servers]] with an optional [servers.mgp]; ${ENV} is filled in
MGP-15.2l K | mgp/discovery/list filters by extension, permission and status
MGP-15.3 S | what is told before connecting equals what initialize tells
MGP-15.4 K | mgp/discovery/register names created_by and justification; sandboxed means stricter
MGP-15.5 K | mgp/discovery/deregister removes a server
MGP-16.2 K | with tool discovery most tools may be left out of the list, never the meta-tool
MGP-16.3 K | discovery is at least level 2, better the hybrid level 3
MGP-16.4 K | tools are indexed by id, categories, keywords and security; keyword, semantic, category search
MGP-16.5 S/K | mgp/tools/discover returns full schemas, relevance, totals and time
MGP-16.6 S/K | mgp/tools/request returns a status, the loaded tools and counts
MGP-16.6s K | its status is fulfilled, partial, unavailable, pending_approval or creating
MGP-16.7 K | pinned, session and discovery caches, seen and emptied by mgp/tools/session and evict
MGP-16.8 K | a tool budget evicts the least recently used, never the pinned
MGP-8.1 S | a little of MGP is already useful, none is ever required, every permission is declared
MGP-8.2 C | the client validates plain servers too: it is where policy is enforced
MGP-10.1 S | coordinator, summariser, federation proxy and audit server can be built from the parts
MCPL-3.1 S | advertised as experimental.mcpl version 0.4; the protocol version is left alone
MCPL-3.2 S | a plain MCP host sees no MCPL message and its tools work
MCPL-3.3 C | a host sends no MCPL to a plain server
MCPL-4.1 B | nineteen methods, each a request or notification in its direction; two exist in both forms
MCPL-5.1 S | pushEvents, contextHooks, inferenceRequest, modelInfo, featureSets, channels follow from what is declared
MCPL-5.2 B | the host answers in the same shape; the server uses only what it was offered
MCPL-5.3 C | the host sends featureSets/update once initialized
MCPL-6.1 S | feature sets are keyed by their dotted names
MCPL-6.2 S | a set has a description and uses out of seven values
MCPL-6.3 C | a host may enable by wildcard, as memory.*
MCPL-6.5a S | push and inference name their feature set
MCPL-6.5b S | hook results name theirs; hook requests name none
MCPL-6.6 C | a disabled set is -32001 with featureSet and canEnable, an unknown one -32003
MCPL-6.7u S | an update takes effect at once, for the set's tools too
MCPL-6.7c S | featureSets/changed tells what was added and removed
MCPL-7.1 S | a set may be scoped
MCPL-7.2 B | each set has a whitelist and a blacklist; the host defines the pattern
MCPL-7.3 B | a scope is a label with an optional payload
MCPL-7.4 S | scope/elevate asks for what is not whitelisted
MCPL-7.5 B | the answer is approved, a payload that may be enriched, and a reason
MCPL-7.6 C | blacklist denies, then whitelist approves, then someone is asked
MCPL-7.7 B | tools/call may carry its scope
MCPL-8.0 B | unknown fields in requests and results are let pass
MCPL-8.1 S | a set may offer rollback
MCPL-8.2 S | a result names its checkpoint and parent; a call after rollback branches
MCPL-8.3 S | state travels whole, as an RFC 6902 patch, or not at all
MCPL-8.4 S | a call computes from the state or checkpoint it brings
MCPL-8.5 S | state/rollback moves a set back to a checkpoint
MCPL-8.6 S | it answers checkpoint, success and reason, best effort
MCPL-8.7 S | checkpoints are kept by policy; a pruned or unknown one is -32005
MCPL-9.1 S | push/event carries its fields and an ISO 8601 timestamp
MCPL-9.3 S | the author sees accepted, inferenceId and reason
MCPL-9.4 B | a repeated event keeps its eventId and the host takes it once
MCPL-10.1 S | beforeInference has the turn, where userMessage may be null, and the model
MCPL-10.2 S | its result has a featureSet and contextInjections, possibly none
MCPL-10.3 B | content is a string or blocks of text, image, audio, resource; data with a type, or a uri
MCPL-10.4 S | an injection has a namespace, one of three positions, content and metadata
MCPL-10.5n S | afterInference is a notification where it does not block
MCPL-10.5b S | and a request where it does, answered with modifiedResponse and metadata
MCPL-10.6 C | the host waits 5 s and 10 s for hooks, then goes on
MCPL-10.7 S/C | a hook may not ask for inference
MCPL-10.8 C | the host groups injections by position and orders them
MCPL-10.m S | several hooking sets of one server still give one result
MCPL-11.1 S | inference/request carries featureSet, messages, stream, conversationId and preferences
MCPL-11.3 B | its answer has content, model, finishReason and usage
MCPL-11.4 S | streamed inference sends indexed chunks, then the whole answer
MCPL-11.5 C | the host routes inference by key, wildcard or pin
MCPL-12.1 S | model/info gives id, vendor, contextWindow and capabilities
MCPL-13.2 C | the host keeps an audit record
MCPL-13.3 C | a failing hook lets the turn go on, or stops it, by option
MCPL-13.4 S | injections neither override instructions nor impersonate
MCPL-14.1 S | the channels capability: register, publish, observe, lifecycle, streaming
MCPL-14.2 S | a channel has id, type, label, direction, and maybe address and metadata
MCPL-14.3r S | the server registers its channels when ready
MCPL-14.3c S | channels/changed tells what was added, removed and updated
MCPL-14.3l B | channels/list works both ways
MCPL-14.3o S | channels/open gives a channel; failing is -32024
MCPL-14.3x S | channels/close closes one; an unknown one is -32023
MCPL-14.3g S | outgoing chunks and completions can be observed
MCPL-14.3p S | publish, as notification or request, tells delivered and messageId
MCPL-14.3i S | channels/incoming takes a batch and answers for each message
MCPL-14.4 S | beforeInference may tell the channels
MCPL-14.5 B | channels are scoped, -32017; the thinking channel is read-only
MCPL-14.6 B | the codes -32017, -32023 and -32024
MCPL-15 S | the memory and compliance examples can be reproduced
MCPL-B B | content blocks, feature sets and enumerations fit the published schemas
MCPL-05 S | a 0.5 host is served: updates as requests with receipts, and what comes with them
MCPX-3.0 B | an envelope has protocol mcpx/v0.1, id, ts, from, kind and an object payload
MCPX-3.0k B | a kind is base, method and context; the context may hold colons
MCPX-3.0c B | a response always names what it answers, an error should
MCPX-3.1.1 P | a request's payload is JSON-RPC; notifications use the request kind
MCPX-3.1.2 P | a response goes to the requester and correlates to the request's envelope
MCPX-3.2 P | who may not ask proposes: method and params without jsonrpc or id
MCPX-3.2.1a P | a proposal correlates to nothing
MCPX-3.2.1b P | its fulfilment names the proposal
MCPX-3.2.1c P | the response reaches the fulfiller and the proposer
MCPX-3.3 P | chat has text, plain unless it says markdown
MCPX-3.4 G | joining and leaving is told to everyone
MCPX-3.5.1 G | a newcomer is welcomed with itself and the participants
MCPX-3.5.2 G | a capability violation is reported with its fields
MCPX-4.1w G | capabilities match by wildcard
MCPX-4.1s G | system/ belongs to the gateway
MCPX-4.1p G | capability profiles full, proposal, response, read and tool-only
MCPX-4.2 G | the gateway judges the kind, never the payload
MCPX-4.3 P | the receiver checks the kind against the payload
MCPX-4.3r P | and reads defensively, maybe counting misbehaviour
MCPX-5.1 G | capabilities come from token, identity, topic, or at run time
MCPX-6.2w G | GET /ws?topic= with a bearer token that names the participant
MCPX-6.2r P | a participant keeps to the capabilities of its welcome
MCPX-6.3 G | routing to all or directed, as the connection chose
MCPX-6.4 G | capability check, error, broadcast, delivery: in this order
MCPX-6.1v B | versions match exactly
MCPX-7.1 G | trust starts small and proposals are logged
MCPX-8.1 G | the gateway's checklist, the envelope passed on unchanged
MCPX-8.2 P | the participant's checklist: server, correlation, presence
MCPX-9 B | the four workflows can be reproduced
MCPX-10.1 G | the state kept for a connection
MCPX-10.2 P | a proposal's record has a status and expires
MCPX-11.3 G | an administrator adds and removes capabilities at run time
MCPX-2.2 G | no persistence, privacy or guaranteed delivery is promised
MCP-1 B | a host has one client for each connection to a server
MCP-2.1 B | ids are strings or integers, unique, and come back in the type they were sent
MCP-2.2 B | a response has a result or an error, with the standard codes
MCP-2.3 B | a notification is never answered
MCP-3.1 S | stdio: a line a message, nothing else on stdout, stderr free
MCP-3.2 S | streamable HTTP: one endpoint, JSON or an event stream, sessions, replay
MCP-3.3 S | the older event-stream transport with its two endpoints
MCP-4.1v S | a known protocol version is confirmed, an unknown one is answered with ours
MCP-4.1c B | capabilities are declared both ways and nothing undeclared is used
MCP-4.1i S | initialize comes first and alone; before it only ping
MCP-4.1n S | the server may give instructions
MCP-4.3 S | it ends when stdin closes, at SIGTERM, or when its session idles
MCP-4.4p B | either side answers a ping
MCP-4.4g S | progress is told only to who gave a token, and it grows
MCP-4.4x S | a cancelled request stops and is not answered
MCP-4.4t B | a request we sent times out and is cancelled
MCP-5.1n S | tool names are 1 to 128 of [A-Za-z0-9_.-], unique, case-sensitive
MCP-5.1s S | a tool has an input schema of type object, a title and a description
MCP-5.1o S | structured content fits the output schema and comes with text
MCP-5.1a S | tool annotations and what holds without them
MCP-5.1p S | lists come in pages by cursor
MCP-5.1e S | a failing tool is a result with isError, a broken request an error
MCP-5.1c S | content is text, image, audio, an embedded resource or a link
MCP-5.1l S | a changed list is told
MCP-5.2l S | resources are listed with their fields and read as text or blob, maybe several
MCP-5.2t S | resource templates follow RFC 6570
MCP-5.2s S | a subscribed resource's update is told until unsubscribed
MCP-5.3 S | prompts are listed and filled with arguments, in any content
MCP-5.4 S | sampling is asked for only where offered, with every field
MCP-5.5 S | roots are listed on request and their change is heard
MCP-5.6 S | elicitation asks by a flat schema: accepted, declined or cancelled
MCP-5.6u S | elicitation by URL
MCP-5.7 S | completion of arguments; the log level is set by the client
MCP-6.2 S | every parameter can have a description
MCP-6.3 S | flat schemas are advised
MCP-8 S | tasks: a handle, polling, cancelling
MCP-9.1 C | a person can refuse a call or a prompt
MCP-AUTH-1 C | signing in: the server's metadata, then its issuer's, by the challenge or at the well-known places
MCP-AUTH-2 C | PKCE with S256; an issuer without it is refused
MCP-AUTH-3 C | the resource parameter names the server; metadata of another server is refused
MCP-AUTH-4 C | given credentials, else a URL id, else a registration
MCP-AUTH-5 C | scopes of the challenge, else of the metadata; more scopes beside those of before, a few times at most
MCP-AUTH-6 C | state and the issuer's name are checked, as plain text, before a code is used
MCP-AUTH-7 C | another issuer is a new start: nothing of the old one is shown to it
MCP-AUTH-8 C | tokens go to their server alone, over https or on this machine
MCP-AUTH-9 S | identity assertions (ID-JAG): header, claims, audience, client and resource; each fault is invalid_grant
MCP-AUTH-10 S | an assertion is taken once; scopes are the intersection; there is no refresh token
MCP-AUTH-11 S | the metadata names the grant profile, and never who is trusted
MCP-AUTH-12 S | client credentials by a secret or private_key_jwt, without dynamic registration
MCP-AUTH-13 C | a company's provider gives an assertion for the issuer and the resource, which is exchanged for a token
MCP-CARD-1 S | the server card has the required members in their lengths and patterns, and no primitives
MCP-CARD-2 S | the card does not contradict server/discover
MCP-CARD-3 S | card and catalog are public, below the endpoint and at the well-known path, and tell no secrets
MCP-CARD-4 S | their media types, CORS headers, ETag, 304 and an hour of caching
MCP-EVENTS-1 S | in the draft of events, a webhook may also be signed with ed25519 (v1a), by a key that receivers find
MCP-9.2 C | annotations are not trusted
MCP-9.4 S | arguments that do not fit are a tool error
MCP-10.2 S | Python types map to their JSON Schema
MCP-10.3 C | a call can be checked against tools/list alone
GGEN-M1 S | tools/list and tools/call
GGEN-M2 S | tools/validate checks arguments without running the tool
GGEN-M3 S | resources are listed and read, cached for their time to live
GGEN-SCH-1 S | string, integer, number and boolean map to their schemas; string unless said
GGEN-SCH-2 S | length, pattern, range, enumeration and default reach the schema
GGEN-SCH-3 S | what has no default is required
GGEN-EXP-1 S | a catalogue of tools with version and generated_at
GGEN-EXP-2 S | each tool's schema with valid examples and metadata
GGEN-EXP-3 S | an OpenAPI 3.0 document whose references resolve
GGEN-ERR-1 S | ten error types with codes and retry flags
GGEN-ERR-2 S | an error's data has error_type, field, reason, trace_id, suggestions, documentation_url
GGEN-ERR-3 S | every error carries a trace_id
GGEN-ERR-4 S | suggestions follow from the broken constraint
GGEN-TMO-1 S | times for tool, validation, discovery and lock, each configurable
GGEN-TMO-2 S | a timeout stops the tool and says which, how long and what to do
GGEN-AUTH-1 S | API keys are kept as SHA-256 with created_at and last_used
GGEN-AUTH-2 S | permissions to invoke, read, list and administer; lists are filtered by them
GGEN-AUTH-3 S | who is unknown gets -32004, who may not -32005
GGEN-AUTH-4 S | rates are limited by minute and hour for each key
GGEN-AUTH-5 S | a bearer token may come in the message itself
GGEN-P4-1 S | large outputs stream
GGEN-P4-2 S | validators plug in and constraints compose
GGEN-P4-3 S | an audit log; load, security and end-to-end tests
GGEN-REG-1 S | the registry can be used in process: register, get, list, invoke
"""


def _requirement(row: str) -> Requirement:
    head, text = row.split(" | ", 1)
    id, side = head.split()
    return Requirement(id, id.split("-", 1)[0], text, side)


ALL = tuple(map(_requirement, _TABLE.strip().splitlines()))
REQUIREMENTS = {requirement.id: requirement for requirement in ALL}
DOCUMENTS = tuple(dict.fromkeys(requirement.document for requirement in ALL))

# Why a group of ids is open, and since when. Take an id out once a test claims it.
_OPEN: dict[tuple[str, str], str] = {
    (
        "2026-11-18",
        "the draft (SEP-3415) does not say yet where a receiver finds the key of an ed25519 signature, so webhooks are "
        "signed with the subscriber's secret only (v1), which every receiver can check",
    ): "MCP-EVENTS-1",
}

# What `make bench` wants and does not find.
SHORT = {
    "make test on two quiet cores: at most 180 s": Gap(
        "2026-11-19", "211 s: 12,400 tests take 400 s of processor time, 50 of it to read them in each worker"
    ),
    "names that strangers explain from name, parameters and place alone: at least 54 of 60": Gap(
        "2026-11-19", "46 and 48, two readers with another lot each; most of the others half right"
    ),
    "commits of 1 kB, 1 and 64 callers, to raw SQLite: at least 0.5": Gap(
        "2026-11-15", "0.32 and 0.37: copies, canonical text, MAC and tree cost more Python than SQLite takes to write"
    ),
    "async calls on stdio, one at a time, to the floor: at least 0.7": Gap(
        "2026-11-15", "0.62 to 0.72 from run to run: below Python 3.12 each call costs a task and a turn of the loop"
    ),
}

GAPS = {id: Gap(*why) for why, ids in _OPEN.items() for id in ids.split()}
