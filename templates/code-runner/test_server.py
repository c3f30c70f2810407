import pytest
from defserve import ToolError
from defserve.sandbox import engines
from defserve.testing import SyncClient

pytestmark = [
    pytest.mark.serves("{{ cookiecutter.package_name }}.server:server"),
    pytest.mark.skipif(not engines(), reason="nothing can contain code here"),
]


def test_a_program_is_run(client: SyncClient) -> None:
    program = "import math\nprint('rooting')\nresult = math.sqrt(number)"
    assert client.call("evaluate", code=program, inputs={"number": 9}) == {"value": 3.0, "printed": "rooting\n"}


def test_what_is_not_allowed_does_not_run(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="Blocked import: 'subprocess'"):
        client.call("evaluate", code="import subprocess")


def test_a_program_that_fails_says_why(client: SyncClient) -> None:
    with pytest.raises(ToolError, match="ZeroDivisionError"):
        client.call("evaluate", code="1 / 0")
