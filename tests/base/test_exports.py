"""Names that a package offers and imports when they are used."""

from __future__ import annotations

import subprocess

import pytest

from defserve.base.exports import make_lazy_getattr


def test_a_name_is_taken_from_its_module_when_it_is_asked_for():
    find = make_lazy_getattr("shop", {"subprocess": "run Popen", "shop.not_there": "Basket"})
    assert find("Popen") is subprocess.Popen and find("run") is subprocess.run
    with pytest.raises(ModuleNotFoundError):
        find("Basket")


def test_any_other_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'Cart'"):
        make_lazy_getattr("shop", {"subprocess": "run"})("Cart")


def test_a_name_that_people_know_from_elsewhere_says_what_it_is_called_here():
    with pytest.raises(ImportError, match="defserve has no FastMCP: write from defserve import Server"):
        exec("from defserve import FastMCP", {})
