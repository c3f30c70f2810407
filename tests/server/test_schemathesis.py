"""A stranger who has read the OpenAPI document calls the REST mount with all it allows, and with what it does not."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.export.shop import server

HOST = {"host": "localhost"}


# Imported where it runs: it takes a second, and the other workers need not wait for it.
@pytest.mark.slow
@pytest.mark.req("GGEN-EXP-3")
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_nothing_is_a_server_error_and_every_answer_is_as_described(mode: str):
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    described = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_asgi("/openapi.json", server.asgi(rest=True), headers=HOST)
    called: set[str] = set()
    for operation in (found.ok() for found in schema.get_all_operations()):
        if mode == "negative" and operation.label.endswith("{tool_name}"):
            continue  # its arguments can be any object at all, so none of them is wrong

        @settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def call(case: schemathesis.Case):
            called.add(case.path)
            case.call_and_validate(headers=HOST, checks=described)

        call()
    assert "/tools/order" in called
