import pytest
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server")


def test_greet(client: SyncClient) -> None:
    assert client.call("greet", name="Ada") == "Hello, Ada!"
