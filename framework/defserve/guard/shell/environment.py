"""The environment to run a judged command in: nothing of the server's own, and no program that settings may name.

A repository brings settings along (`.git/config` in an unpacked archive, a bare repository inside another), and git
runs what some of them name, even to show a status. Variables outrank these settings. They cannot turn off a setting
whose name has a part of its author's choice: programs that filter, compare and merge (`filter.*`, `diff.*`, `merge.*`),
those that serve a remote (`remote.*`), and the hooks that git 2.54 takes from settings (`hook.*`). Nor do they reach a
repository at a local path that is fetched from or pushed to, or the steps of a rebase that is under way. So a `.git`
directory from strangers is better looked at without git.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_GIT_SETTINGS: Mapping[str, str] = {
    "core.fsmonitor": "false",
    # Looking at differences would write the index.
    "diff.autoRefreshIndex": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "ssh",
    "core.askPass": "",
    "core.attributesFile": os.devnull,
    "core.alternateRefsCommand": "",
    "attr.tree": "refs/none",
    "commit.gpgSign": "false",
    "credential.helper": "",
    "gpg.format": "openpgp",
    "gpg.program": "false",
    "gpg.ssh.defaultKeyCommand": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    "log.showSignature": "false",
    # Collecting garbage runs gc.recentObjectsHook.
    "maintenance.auto": "false",
    "merge.verifySignatures": "false",
    "protocol.ext.allow": "never",
    "push.gpgSign": "false",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
    "tag.forceSignAnnotated": "false",
    "tag.gpgSign": "false",
}

# What other programs write, ask or run although nobody told them to. Variables outrank the files of a project.
_OTHERS: Mapping[str, str] = {
    # Python writes no compiled files beside those that it reads.
    "PYTHONDONTWRITEBYTECODE": "1",
    # Nor does it take a module of the project for one of its own (`-m venv`).
    "PYTHONSAFEPATH": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    # npm runs no scripts of a project or a package, and keeps no log.
    "npm_config_ignore_scripts": "true",
    "npm_config_git": "git",
    "npm_config_node_options": "",
    "npm_config_script_shell": "sh",
    "npm_config_browser": "false",
    "npm_config_editor": "true",
    "npm_config_viewer": "cat",
    # The script that asks for the fields of a new package.json.
    "npm_config_init_module": os.devnull,
    "npm_config_logs_max": "0",
    "npm_config_update_notifier": "false",
    # A project may name the tool chain, and wrappers for its compiler.
    "RUSTUP_TOOLCHAIN": "stable",
    "RUSTUP_AUTO_INSTALL": "0",
    "RUSTC": "rustc",
    "RUSTC_WRAPPER": "",
    "RUSTC_WORKSPACE_WRAPPER": "",
    "GOTOOLCHAIN": "local",
    # Nobody is asked for a newer version.
    "CHECKPOINT_DISABLE": "1",
    "HOMEBREW_NO_AUTO_UPDATE": "1",
    "HOMEBREW_NO_ANALYTICS": "1",
}


# npm begins a cache in the home directory, and top one for settings. A directory that cannot be made is no error.
_READING: Mapping[str, str] = {"npm_config_cache": os.devnull, "XDG_CONFIG_HOME": os.devnull}


def environment(writing: bool = False) -> dict[str, str]:
    """The variables: a search path, a language, and what keeps programs from running, asking and writing unasked.

    `writing`: the command may write, so package managers have a cache.
    """
    settings = {
        f"GIT_CONFIG_{part}_{index}": text
        for index, pair in enumerate(_GIT_SETTINGS.items())
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    }
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
        **settings,
        "GIT_EDITOR": "true",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_PROXY_COMMAND": "",
        "GIT_SEQUENCE_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "PAGER": "cat",
        **_OTHERS,
        **({} if writing else _READING),
    }
