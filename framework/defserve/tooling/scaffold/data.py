"""Where the templates are: in the installed package, or in the repository that it runs from."""

from __future__ import annotations

from pathlib import Path

from defserve.errors import UsageError

PACKAGE = Path(__file__).parents[2]


def data() -> Path:
    """The folder that holds `cookiecutter/` and `templates/`."""
    # An editable install has no copy; it uses the folders of its repository.
    for folder in (PACKAGE / "_data", PACKAGE.parents[1]):
        if (folder / "cookiecutter" / "cookiecutter.json").is_file():
            return folder
    raise UsageError(
        "the templates are not installed", fix="reinstall defserve: pip install --force-reinstall defserve"
    )
