"""Names that a package offers and imports when they are used."""

from __future__ import annotations

import subprocess

import pytest

import defserve
from defserve.base.exports import make_lazy_getattr


def test_a_name_is_taken_from_its_module_when_it_is_asked_for():
    find = make_lazy_getattr("shop", {"subprocess": "run Popen", "shop.not_there": "Basket"})
    assert find("Popen") is subprocess.Popen and find("run") is subprocess.run
    with pytest.raises(ModuleNotFoundError):
        find("Basket")


def test_a_prompt_that_completes_names_is_shown_what_a_package_offers():
    assert set(defserve.__all__) <= set(dir(defserve))


def test_any_other_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'Cart'"):
        make_lazy_getattr("shop", {"subprocess": "run"})("Cart")


def test_a_name_that_people_know_from_elsewhere_says_what_it_is_called_here():
    with pytest.raises(ImportError, match="defserve has no FastMCP: write from defserve import Server"):
        exec("from defserve import FastMCP", {})


def test_a_name_with_a_slip_is_met_with_the_one_that_was_meant():
    with pytest.raises(ImportError, match="defserve has no dangrous: did you mean dangerous?"):
        exec("from defserve import dangrous")


def test_modules_and_hidden_names_are_not_taken_for_slips():
    exec("from defserve import server, state, context")
    assert not hasattr(defserve, "__server__") and not hasattr(defserve, "something_else")
