"""The names that a program uses, outside of its imports."""

from __future__ import annotations

import re
from typing import NamedTuple

import libcst as cst
from libcst.helpers import get_full_name_for_node

_WORD = re.compile(r"[A-Za-z_]\w*+")


class Use(NamedTuple):
    """`full` is the name with the attributes that follow it: `types.ImageContent`."""

    name: str
    full: str
    node: cst.CSTNode


def uses_of(code: cst.CSTNode) -> list[Use]:
    """Every use of a name, also in quoted annotations."""
    found = _Uses()
    code.visit(found)
    return found.uses


class _Uses(cst.CSTVisitor):
    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._annotations = 0

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name):
            self.uses.append(Use(root.value, get_full_name_for_node(node) or root.value, root))
        else:
            root.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        for part in (node.annotation, node.default):
            if part is not None:
                part.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.uses.append(Use(node.value, node.value, node))

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self._annotations -= 1

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if self._annotations:
            self.uses += [Use(word, word, node) for word in _WORD.findall(node.value)]
