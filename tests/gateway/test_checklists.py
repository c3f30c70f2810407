"""Both checklists of MCPx §8, item by item: which test proves it. A test that is renamed is missed here."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.rows import for_each_row

TESTS = Path(__file__).parents[1]

GATEWAY = {
    "WebSocket server at `GET /ws?topic=<name>`": [
        "gateway/test_connecting.py::test_a_participant_hears_of_its_own_join_and_is_then_welcomed",
        "gateway/test_connecting.py::test_another_path_is_not_found_and_a_page_of_another_site_is_refused",
    ],
    "Bearer token validation from Authorization header": [
        "gateway/test_connecting.py::test_a_bad_token_or_topic_is_closed_with_1008",
        "gateway/test_connecting.py::test_of_two_tokens_none_counts",
    ],
    "Token-to-participant-ID mapping (implementation-specific)": [
        "gateway/test_config.py::test_a_file_says_who_is_who",
        "gateway/test_policy.py::test_a_signed_token_says_who_it_is_and_may_only_propose_unless_it_says_more",
    ],
    "Connection state tracking per participant": [
        "gateway/test_connecting.py::test_nothing_of_a_topic_persists",
        "gateway/test_connecting.py::test_a_newer_connection_takes_the_place_of_the_older",
    ],
    "Pattern matching engine for wildcard capabilities": [
        "protocols/mcpx/test_capabilities.py::test_the_capability_covers_the_kind",
        "protocols/mcpx/test_capabilities.py::test_the_capability_does_not_cover_the_kind",
        "protocols/mcpx/test_capabilities.py::test_a_star_is_any_run",
    ],
    "Validate message `kind` against sender's capabilities": [
        "gateway/test_messages.py::test_a_gateway_looks_at_the_kind_alone",
        "gateway/test_fuzz.py::test_only_what_its_sender_may_say_is_passed_on_and_unchanged",
    ],
    "Block messages that don't match capabilities": [
        "gateway/test_messages.py::test_a_kind_without_capability_is_blocked_and_reported_to_its_sender_alone",
    ],
    "Return `system/error` for capability violations": [
        "gateway/test_messages.py::test_a_kind_without_capability_is_blocked_and_reported_to_its_sender_alone",
    ],
    "Send `system/welcome` with participant ID and capabilities on connect": [
        "gateway/test_connecting.py::test_a_participant_hears_of_its_own_join_and_is_then_welcomed",
    ],
    "Broadcast `system/presence` for join/leave events": [
        "gateway/test_connecting.py::test_the_others_hear_who_comes_and_who_goes",
    ],
    "Generate `system/error` for protocol violations": [
        "gateway/test_messages.py::test_another_version_is_refused",
        "gateway/test_messages.py::test_a_forged_sender_is_refused_and_never_rewritten",
    ],
    "Ensure only gateway can send `system/*` messages": [
        "gateway/test_messages.py::test_the_gateway_s_own_kinds_are_refused",
    ],
    "Route messages based on `to` field (broadcast if empty/omitted)": [
        "gateway/test_messages.py::test_all_hears_everything_and_directed_only_what_is_for_it",
    ],
    "Support participant routing preferences (All vs Directed mode)": [
        "gateway/test_messages.py::test_all_hears_everything_and_directed_only_what_is_for_it",
    ],
    "Preserve envelope structure without modification": [
        "gateway/test_messages.py::test_an_envelope_is_passed_on_byte_for_byte",
    ],
    "NO payload parsing or validation (lazy enforcement)": [
        "gateway/test_messages.py::test_a_gateway_looks_at_the_kind_alone",
        "gateway/test_crowd.py::test_a_spoofed_kind_is_refused_by_its_receivers_and_counted",
    ],
}

PARTICIPANT = {
    "Verify envelope structure before processing": [
        "protocols/mcpx/test_envelope.py::test_a_field_that_does_not_fit_is_named",
        "protocols/mcpx/test_participant.py::test_what_is_broken_is_dropped_and_the_rest_goes_on",
    ],
    "Validate `kind` METHOD matches `payload.method`": [
        "protocols/mcpx/test_participant.py::test_a_kind_that_lies_about_its_payload_is_refused_and_counted",
    ],
    "Validate `kind` CONTEXT matches payload content (e.g., tool name)": [
        "protocols/mcpx/test_participant.py::test_a_kind_that_lies_about_its_payload_is_refused_and_counted",
        "gateway/test_crowd.py::test_a_spoofed_kind_is_refused_by_its_receivers_and_counted",
    ],
    "Drop messages that fail validation": [
        "protocols/mcpx/test_participant.py::test_what_is_broken_is_dropped_and_the_rest_goes_on",
    ],
    "Track/report misbehaving participants": [
        "protocols/mcpx/test_participant.py::test_who_goes_on_lying_is_no_longer_told",
        "gateway/test_crowd.py::test_a_spoofed_kind_is_refused_by_its_receivers_and_counted",
    ],
    "Implement MCP server capabilities": [
        "protocols/mcpx/test_participant.py::test_no_handshake_is_needed_and_one_is_answered_once",
        "gateway/test_crowd.py::test_each_finds_the_others_and_asks_them",
    ],
    "Handle incoming MCP requests/responses": [
        "gateway/test_crowd.py::test_each_finds_the_others_and_asks_them",
        "protocols/mcpx/test_participant.py::test_a_question_of_ours_is_answered_by_whom_it_was_asked_and_by_nobody_else",
    ],
    "Generate proper correlation IDs for responses": [
        "protocols/mcpx/test_participant.py::test_a_tool_call_is_answered_to_its_sender_with_its_id_method_and_context",
    ],
    "Include correlation ID in all response messages": [
        "protocols/mcpx/test_participant.py::test_a_tool_call_is_answered_to_its_sender_with_its_id_method_and_context",
        "protocols/mcpx/test_participant.py::test_a_kind_that_lies_about_its_payload_is_refused_and_counted",
    ],
    "Recognize `mcp/proposal:*` messages": [
        "protocols/mcpx/test_proposals.py::test_a_proposal_is_recorded_as_the_spec_writes_it",
    ],
    "Implement fulfillment logic for approved proposals": [
        "gateway/test_crowd.py::test_who_may_not_ask_proposes_and_learns_what_came_of_it",
    ],
    "Include proposal ID as correlation_id when fulfilling": [
        "protocols/mcpx/test_proposals.py::test_who_may_not_ask_proposes_and_both_learn_the_outcome",
    ],
    "Process `system/welcome` to learn own ID and capabilities": [
        "client/mcpx/test_participant.py::test_a_host_learns_who_it_is_who_is_there_and_what_it_may_do",
    ],
    "Handle `system/presence` to track other participants": [
        "client/mcpx/test_participant.py::test_one_who_leaves_answers_no_more_and_others_go_on",
    ],
    "Respect capability restrictions from welcome message": [
        "protocols/mcpx/test_participant.py::test_what_the_welcome_does_not_allow_is_not_sent",
        "protocols/mcpx/test_participant.py::test_capabilities_change_with_a_second_welcome",
    ],
}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.req("MCPX-8.1")
@for_each_row("item", GATEWAY)
def test_each_item_of_the_gateway_s_list_is_proven_by_a_test_there_is(item: str):
    assert missing(GATEWAY[item]) == []


@pytest.mark.req("MCPX-8.2")
@for_each_row("item", PARTICIPANT)
def test_each_item_of_the_participant_s_list_is_proven_by_a_test_there_is(item: str):
    assert missing(PARTICIPANT[item]) == []


def test_no_item_is_left_out():
    assert (len(GATEWAY), len(PARTICIPANT)) == (16, 15)


def missing(proofs: list[str]) -> list[str]:
    named = [proof.split("::") for proof in proofs]
    return [f"{file}::{name}" for file, name in named if name not in names_in(file)]
