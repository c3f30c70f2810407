"""A stranger who has read the OpenAPI document calls the REST mount with all it allows, and with what it does not."""

from __future__ import annotations

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.export.shop import server  # noqa: E402

HOST = {"host": "localhost"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_asgi("/openapi.json", server.asgi(rest=True), headers=HOST)


@schema.parametrize()
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_is_a_server_error_and_every_answer_is_as_described(case: schemathesis.Case):
    case.call_and_validate(headers=HOST, checks=CHECKS)
