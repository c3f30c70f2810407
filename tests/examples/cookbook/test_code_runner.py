from __future__ import annotations

import pytest

from defserve import ToolError
from defserve.errors import PeerError
from defserve.sandbox import engines
from defserve.testing import SyncClient

pytestmark = [
    pytest.mark.eras("stateless"),
    pytest.mark.skipif(not engines(), reason="nothing can contain code here"),
]


def test_a_program_computes_with_the_figures(client: SyncClient):
    code = "import statistics\nprint('hello')\nresult = {name: statistics.mean(sold) for name, sold in sales.items()}"
    assert client.call("analyse", code=code) == {"value": {"north": 14.25, "south": 9.5}, "printed": "hello\n"}
    with pytest.raises(ToolError, match="KeyError"):
        client.call("analyse", code="sales['west']")


def test_a_result_that_is_no_data_is_refused(client: SyncClient):
    assert client.call("analyse", code="result = {2, 1}")["value"] == [1, 2]
    with pytest.raises(ToolError, match="The result is not JSON: <function"):
        client.call("analyse", code="result = lambda: 1")


def test_a_program_that_reaches_out_is_refused(client: SyncClient):
    for code in ("import os", "open('/etc/passwd').read()", "().__class__.__base__.__subclasses__()"):
        with pytest.raises((ToolError, PeerError), match="Code validation failed"):
            client.call("analyse", code=code)
