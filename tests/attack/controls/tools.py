"""What guards, sandboxes and commands do without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from typing import Any

from tests.attack.controls.patching import Patch

SHELL = "defserve.guard.shell"
JAIL = "defserve.sandbox.running"

# -- commands and URLs, judged in the suite's own process ------------------------------------------------


def _take_any(patch: Patch, *kinds: str) -> None:
    """Take any word where one of these kinds is wanted."""
    from defserve.guard.shell import kinds as module

    for name in kinds:
        old = module.KINDS[name]
        patch.item(f"{SHELL}.kinds:KINDS", name, module.Kind(old.says, lambda word, places: None, dashed=old.dashed))
    module.find_word_kind.cache_clear()
    patch.when_undone(module.find_word_kind.cache_clear)


def read_no_awk(patch: Patch) -> None:
    _take_any(patch, "awk")


def read_no_sed(patch: Patch) -> None:
    _take_any(patch, "sed")


def read_no_jq(patch: Patch) -> None:
    _take_any(patch, "jq")


def know_no_arguments(patch: Patch) -> None:
    """Programs are known by their names; with which arguments does not matter."""
    patch.set(f"{SHELL}.judgement:_arguments", lambda argv, entry, places: iter(()))


def run_any_program(patch: Patch) -> None:
    """Programs without a table run, and so do wrappers of others."""
    know_no_arguments(patch)
    patch.set(f"{SHELL}.judgement:_not_run", lambda name: _harmless())


def let_readonly_write(patch: Patch) -> None:
    patch.set(f"{SHELL}.judgement:REFUSED_EFFECTS", {"sandbox": frozenset(), "readonly": frozenset()})


def read_any_file(patch: Patch) -> None:
    patch.set(f"{SHELL}.places:PathRules._outside", lambda self, path, but: None)


def write_any_file(patch: Patch) -> None:
    _take_any(patch, "write", "local-write", "delete")


def take_any_character(patch: Patch) -> None:
    """What a shell would act on is a word like any other."""
    patch.set(f"{SHELL}.judgement:_expanding", lambda command: iter(()))


def _harmless() -> Any:
    """A violation that no mode refuses."""
    from defserve.guard.verdict import Violation

    return Violation("run", "it runs")


def refuse_every_command(patch: Patch) -> None:
    from defserve.guard.verdict import Violation, make_refused_verdict

    patch.set(f"{SHELL}:judge", lambda command, **options: make_refused_verdict([Violation("no", "never")], {}))


def trust_every_repository(patch: Patch) -> None:
    patch.set(f"{SHELL}.repositories:find_repository_problem", lambda argv, root: None)


def list_public_folders(patch: Patch) -> None:
    """`only_root` is not looked at."""
    patch.wrap(f"{SHELL}.judgement:PathRules", lambda make: lambda root="", only_root=False: make(root))


def take_private_addresses(patch: Patch) -> None:
    patch.set("defserve.guard.network:_against_host", lambda host: [])


# -- the sandbox: patched in the host, which starts the jail ---------------------------------------------


def _with_layers(patch: Patch, **lacking: Any) -> None:
    def make(message: Any) -> Any:
        return lambda job, layers: message(job, layers._replace(**lacking))

    patch.wrap(f"{JAIL}:_encode_job", make)


def run_without_landlock(patch: Patch) -> None:
    """Files can be reached."""
    _with_layers(patch, landlock=0)


def run_without_a_filter(patch: Patch) -> None:
    """Files and system calls can be reached."""
    _with_layers(patch, landlock=0, seccomp=False)


def believe_any_report(patch: Patch) -> None:
    """A program may say that it was never judged."""
    said = ("ok", "error", "memory", "output", "rejected", "timeout", "killed")
    patch.set(f"{JAIL}:REPORTED", {status: status for status in said})


def wait_for_programs(patch: Patch) -> None:
    from dataclasses import replace

    def make(execute: Any) -> Any:
        def wait(job: Any, layers: Any, stop: Any) -> Any:
            return execute(replace(job, limits=replace(job.limits, seconds=12.0, cpu_seconds=12.0)), layers, stop)

        return wait

    patch.wrap(f"{JAIL}:run_in_jail", make)


# -- what is shipped, written and believed --------------------------------------------------------------


def ship_private_files(patch: Patch) -> None:
    """No name of a file is private."""
    patch.set("defserve.tooling.packaging.privacy:classify_private_path", lambda path: None)


def ship_secrets(patch: Patch) -> None:
    """What a file holds is not looked at."""
    patch.set("defserve.tooling.packaging.privacy:find_secret_kind", lambda file: None)


def take_any_server_name(patch: Patch) -> None:
    patch.set("defserve.client.known_clients:check_server_name", lambda name: name)


def take_any_project_name(patch: Patch) -> None:
    patch.set("defserve.tooling.project_template:TemplateQuestions.check", lambda self, name, answer: None)


def believe_any_signature(patch: Patch) -> None:
    from types import SimpleNamespace

    def make(module: Any) -> Any:
        return SimpleNamespace(digest=module.digest, compare_digest=lambda one, other: True)

    patch.wrap("defserve.stores.audit.chain:hmac", make)


def ask_no_anchor(patch: Patch) -> None:
    patch.set("defserve.stores.audit.chain:_load_anchored_heads", lambda anchors, path, keys: ({}, ""))


def write_for_everybody(patch: Patch) -> None:
    def make(open: Any) -> Any:
        return lambda path, flags, mode=0o777, **more: open(path, flags, 0o644 if mode == 0o600 else mode, **more)

    patch.wrap("os:open", make)
    patch.set("os:fchmod", lambda file, mode: None)
