"""{{ cookiecutter.description }}"""

import re
from typing import TypedDict

from defserve import Server, safe

server = Server(
    "{{ cookiecutter.project_slug }}",
    instructions="To write minutes of a meeting, load the skill skill://minutes/SKILL.md.",
)
# Every folder below with a SKILL.md. They are read when the server starts.
server.skills("skills")


class Task(TypedDict):
    """Something that somebody has to do."""

    person: str
    what: str


@server.tool(title="Find tasks")
@safe
def find_tasks(notes: str) -> list[Task]:
    """Find what was agreed in the notes of a meeting: every line such as `TODO(Ada): write the letter`.

    Args:
        notes: The notes, as they were taken.
    """
    found = re.findall(r"^\W*TODO\(([^)\n]+)\):\s*(.+)$", notes, re.MULTILINE)
    return [Task(person=person.strip(), what=what.strip()) for person, what in found]


if __name__ == "__main__":
    server.main()
