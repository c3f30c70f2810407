"""`python -m tests.tooling.evals.template_recordings` writes the scripted recordings of the project templates.

No model is asked. The script answers as the suite of each template expects, so that a new project can replay one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from defserve.tooling.project_template import create_project, load_template_questions
from tests.tooling.evals.scripted_endpoint import Asked, Reply, scripted_endpoint

ROOT = Path(__file__).parents[3]
RECORDING = "tools.scripted.jsonl"

# What a person says → the call.
ANSWERS = {
    "Say hello to Ada, please.": ("greet", {"name": "Ada"}),
    "Do you have teapots?": ("search", {"query": "teapot"}),
    "Throw two dice for me.": ("roll", {"count": 2}),
    "My dentist is Dr. Lem. Keep that in mind.": ("remember", {"fact": "The dentist is Dr. Lem."}),
    "Who is my dentist?": ("recall", {"about": "dentist"}),
    "Take the secrets out of this: my number is 555-0100.": ("redact", {"text": "my number is 555-0100"}),
    "Tell the room that lunch is ready. I'm Ada.": ("post", {"author": "Ada", "text": "Lunch is ready."}),
    "What did people say just now?": ("transcript", {}),
    "Note that the milk is empty.": ("add_note", {"text": "The milk is empty."}),
    "Oh no, take that last one back.": ("undo", {}),
    "What is 17 to the power of 5? Compute it.": ("evaluate", {"code": "17 ** 5"}),
    "What did we agree on? The notes say: TODO(Ada): write the letter": (
        "find_tasks",
        {"notes": "TODO(Ada): write the letter"},
    ),
}


def answer(asked: Asked) -> Reply:
    call = ANSWERS.get(asked.prompt)
    return Reply("Good morning!") if call is None else Reply(calls=[call])


def record(body: str) -> str:
    """The recording of a template: of its own server, by the script."""
    recording = ROOT / "templates" / body / RECORDING
    if not recording.exists():
        recording.write_text("", encoding="utf-8")
    with TemporaryDirectory() as folder, scripted_endpoint(answer) as endpoint:
        project = create_project({"project_name": "Shelf", "body": body}, Path(folder)).folder
        (project / "tests" / RECORDING).unlink()
        words = ["-p", "no:cacheprovider", "tests/tools.eval.yaml", "--eval-record", "--eval-url", endpoint.url]
        paths = os.pathsep.join([str(project / "src"), str(ROOT / "framework")])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *words],
            cwd=project,
            env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return (project / "tests" / RECORDING).read_text(encoding="utf-8")


if __name__ == "__main__":
    for body in load_template_questions().choices("body"):
        (ROOT / "templates" / body / RECORDING).write_text(record(body), encoding="utf-8")
        print(body)
