"""Folders of authors on the search path: what lies in them is for authors, and shadows no library of ours.

Beside an author's file may lie a `rich.py` or a `redis.py`. With the folder in front of the search path, our own
imports would get these, also those that are made much later.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the package imports from other distributions. Where one is installed, no file of an author takes its place.
LIBRARIES: Final = frozenset(
    "RestrictedPython anyio build cookiecutter cryptography docstring_parser google h11 hatchling hiredis httpcore2 "
    "httptools httpx2 idna jsonpatch jsonpointer jsonschema jwt keyring libcst numpy opentelemetry pip pydantic "
    "psycopg psycopg_binary pydantic_core pydantic_monty pytest redis referencing rich safetensors tokenizers tomlkit "
    "twine typing_extensions uvicorn uvloop watchfiles websockets wordllama yaml".split()
)
_STANDARD: Final = sys.stdlib_module_names - {"test"}  # nobody imports Python's own tests


def add_author_import_folder(folder: str) -> None:
    """Let authors import what lies in a folder, as `python folder/server.py` does, and nobody else."""
    path = os.path.abspath(folder)
    if path not in sys.path and not (path == os.getcwd() and "" in sys.path):
        sys.path.insert(0, path)
    hide_authors_folder_from_libraries(path)


def hide_authors_folder_from_libraries(folder: str) -> None:
    """Keep libraries from importing what lies in a folder of the search path in the place of something installed."""
    finder = next((each for each in sys.meta_path if isinstance(each, _AuthorsFolders)), None)
    if finder is None:
        finder = _AuthorsFolders()
        sys.meta_path.insert(0, finder)
    finder.folders.add(os.path.abspath(folder))


def is_library_module(name: str) -> bool:
    """Whether a module of this name is one of Python's, or an installed one that we import."""
    if name in _STANDARD:
        return True
    return name in LIBRARIES and _find_elsewhere(name, _hidden_folders()) is not None


def has_neighbour(name: str) -> bool:
    """Whether an author's folder has a file or folder of this name."""
    return any(_has_module(folder, name) for folder in _hidden_folders())


def find_shadowed_file(name: str) -> str | None:
    """The author's file that does not count, because a library has its name."""
    folder = next((each for each in _hidden_folders() if _has_module(each, name)), None)
    if folder is None or not is_library_module(name):
        return None
    spec = PathFinder.find_spec(name, [folder])
    is_single = spec is not None and spec.origin is not None and not spec.submodule_search_locations
    return spec.origin if spec and is_single else os.path.join(folder, name)


class _AuthorsFolders:
    """A finder that comes first, and answers only for names that are both in an author's folder and elsewhere."""

    def __init__(self) -> None:
        self.folders: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The library's module, if the importer is not to get the author's; None: as usual.

        Raises ModuleNotFoundError if a library asks for one that only the author's folder has.
        """
        if path is not None or not any(_has_module(folder, fullname) for folder in self.folders):
            return None
        is_known = fullname in LIBRARIES or fullname in _STANDARD
        importer, is_named = _importer(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        is_authors = self._is_authors(importer)
        # By a name that it was given, a library such as pytest imports modules of authors.
        if (is_authors and fullname not in LIBRARIES) or (is_named and not is_known):
            return None
        spec = _find_elsewhere(fullname, self.folders)
        is_refused = not is_authors and (is_known or self._is_installed(importer))
        if spec is None and is_refused and not _is_built_in(fullname):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec

    def _is_installed(self, importer: str) -> bool:
        """Whether a module lies outside the folders, or in an environment below them. An author's tests do not."""
        file = getattr(sys.modules.get(importer), "__file__", None)
        if not isinstance(file, str):
            return False
        is_below = any(file.startswith(folder + os.sep) for folder in self.folders)
        return not is_below or file.startswith(sys.prefix + os.sep) or f"{os.sep}site-packages{os.sep}" in file

    def _is_authors(self, importer: str) -> bool:
        """Whether a module is found by one of the folders. A virtual environment may lie below it."""
        file = getattr(sys.modules.get(importer), "__file__", None)
        if not isinstance(file, str):
            return importer not in _STANDARD
        entries = {os.path.abspath(entry) for entry in sys.path} | {os.path.dirname(os.__file__)}
        near = [entry for entry in entries | self.folders if file.startswith(entry + os.sep)]
        return not near or max(near, key=len) in self.folders


def _hidden_folders() -> set[str]:
    return {folder for each in sys.meta_path if isinstance(each, _AuthorsFolders) for folder in each.folders}


def _find_elsewhere(name: str, folders: set[str]) -> ModuleSpec | None:
    return PathFinder.find_spec(name, [entry for entry in sys.path if os.path.abspath(entry) not in folders])


def _is_built_in(name: str) -> bool:
    return BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None


def _has_module(folder: str, name: str) -> bool:
    """Whether an import would find it there: a source, compiled code, an extension, a folder."""
    return PathFinder.find_spec(name, [folder]) is not None


def _importer(frame: FrameType | None) -> tuple[str, bool]:
    """The name of the module whose code imports, and whether it does so by `import_module` or `find_spec`."""
    is_named = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__") or "")
        if name.startswith("importlib.metadata"):  # it loads what is installed
            return name, False
        if name.partition(".")[0] not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return name, is_named
        is_named = is_named or name in ("importlib", "importlib.util")
        frame = frame.f_back
    return "", is_named
