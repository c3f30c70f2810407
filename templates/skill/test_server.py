import pytest
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server")

NOTES = """
We meet again on Monday.
- TODO(Ada): write the letter
TODO(Grace):  book a room
"""


def test_the_skill_is_whole(client: SyncClient) -> None:
    (entry,) = client.skills()
    assert entry["frontmatter"]["name"] == "minutes"
    assert client.read_verified(entry).keys() == {"SKILL.md", "form.md"}


def test_the_skill_names_tools_that_there_are(client: SyncClient) -> None:
    text = client.read_text("skill://minutes/SKILL.md")
    assert [tool["name"] for tool in client.tools() if f"`{tool['name']}`" in text] == ["find_tasks"]


def test_tasks_are_found(client: SyncClient) -> None:
    assert client.call("find_tasks", notes=NOTES) == [
        {"person": "Ada", "what": "write the letter"},
        {"person": "Grace", "what": "book a room"},
    ]
    assert client.call("find_tasks", notes="Nothing to do.") == []
