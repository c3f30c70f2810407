"""The name that a command writes is judged, also where it only follows from other words; a walk is not a listing."""

from __future__ import annotations

from defserve.guard.shell.judgement import judge
from defserve.guard.shell.places import PathRules
from tests.rows import for_each_row


@for_each_row(
    "command",
    [
        "xz -d .envrc.xz",
        "unxz .envrc.xz",
        "gunzip .bashrc.gz",
        "gunzip src/.envrc.gz",
        "bunzip2 .git/config.bz2",
        "zstd -d .envrc.zst",
        "unlzma .envrc.lzma",
        "gunzip -N x.gz",
        "gunzip -r .",
        "cp evil/.envrc .",
        "cp -t sub evil/.envrc",
        "cp --parents a/.git/hooks/x sub",
        "cp -r evil/.git .",
        "install evil/.bashrc sub",
        "rsync -a evil/.husky sub",
        "mv evil/.envrc .",
        "git mv evil/.envrc .",
        "ln -s .envrc x",
        "tar xf a.tar .envrc",
        "tar -xf a.tar .git/config",
        "unzip a.zip .envrc",
        "split f .bash",
        "split f .en",
        "split f sitecustom --additional-suffix=.py",
        "split f x --additional-suffix=.pth",
        "cp -b -S .pth a b",
        "cp -b -S .py x sitecustomize",
        "cp -b --suffix=.py x sub/conftest",
        "cp -b -S .py evil/sitecustomize sub",
        "cp -b -S .py -t sub evil/usercustomize",
        "mv -b -S .conf x .tmux",
        "mv -S .yml x .travis",
        "install -b -S .py x sitecustomize",
        "sed -i.conf s/1/2/ .tmux",
        "sed --in-place=.json s/1/2/ .mcp",
        "sed -i.py s/1/2/ conftest",
        *(
            f"cp x {name}"
            for name in (
                ".Rprofile .ghci .irbrc .octaverc .bazelrc bunfig.toml .python-version .dir-locals.el .nvim.lua .psqlrc"
                " .sqliterc .venv/bin/python .config/systemd/user/x.service .mcp.json .claude/settings.json"
                " .vscode/tasks.json sub/.mcp.json .cursor/mcp.json .gemini/settings.json sub/.codex/config.toml"
                " .kiro/settings/mcp.json .zed/tasks.json .config/git/config .config/fish/conf.d/a.fish .local/bin/git"
                " .config/nvim/init.lua Earthfile Snakefile sub/dodo.py lefthook.toml"
            ).split()
        ),
        "git checkout other -- .envrc",
        "git restore .envrc",
        "git restore --source=other .gitattributes",
        "git clone https://example.com/.husky",
        "git worktree add .git/x",
        "git config --global user.name x",
        "git rm .gitattributes",
        "patch .envrc x.diff",
        "patch -p1 -i x.diff",
        "tee .envrc",
        "sort -o .envrc f",
        "sed -i s/a/b/ Makefile",
        "tee sub/GNUmakefile",
        "cp x justfile",
        "cp evil/Makefile .",
        "mv x rules.mk",
        "tee .github/workflows/ci.yml",
        "tee .vscode/tasks.json",
        "tee .gitlab-ci.yml",
        "sed -i s/a/b/ tests/conftest.py",
        "cp x .venv/bin/python",
        "cp x node_modules/.bin/tsc",
        "tee ./.circleci/config.yml",
        "tee MAKEFILE",
    ],
)
def test_no_trusted_file_is_written_under_any_name(command: str) -> None:
    assert not judge(command)
    assert not judge(command, mode="readonly")


@for_each_row("url", ["https://example.com/.envrc", "https://example.com/%2eenvrc", "https://example.com/a/.bashrc?x"])
def test_a_download_is_judged_by_the_name_it_gets(url: str) -> None:
    assert not judge(f"wget --max-redirect=0 {url}", allowed=["wget"])
    assert judge("wget --max-redirect=0 https://example.com/a.txt", allowed=["wget"])


@for_each_row(
    "command",
    ["xz -d a.xz", "gunzip logs/a.log.gz", "cp a b", "cp -r src dst", "split f part_", "tar xf a.tar src", "patch f x"],
)
def test_other_names_are_written(command: str) -> None:
    assert judge(command)


@for_each_row(
    "command",
    [
        "touch tests/conftest.py",
        "mkdir -p .github/workflows",
        "chmod 644 Makefile",
        "cp Makefile Makefile.bak",
        "sed -i s/a/b/ package.json",
        "sed -i s/a/b/ Dockerfile",
        "sed -i s/a/b/ setup.py",
        "git restore Makefile",
        "touch .cursor/mcp.json",
        "tee .config/nextest.toml",
        "tee run/x.py",
        "tee config/git/config.py",
        "tee local/bin/x",
    ],
)
def test_sources_and_manifests_are_edited_and_commands_keep_their_text(command: str) -> None:
    assert judge(command)


@for_each_row(
    "command",
    [
        *(f"rm -rf {path}" for path in ("/work", "/work/", "//work/.", ".", "./", "''")),
        *(f"git checkout -- {path}" for path in ("/work", "':'", "'::'", "':/'", "'????'", "'*'")),
        *(f"git restore {path}" for path in ("/work/", "':'", "':(top)'", "':!x'", "'?*'")),
        *(
            f"git rm -r {path}"
            for path in ("/work", ".", "':'", "'::'", "':/'", "':(top)'", "':^x'", "'?*'", "'[a-z]*'")
        ),
    ],
)
def test_everything_here_is_not_deleted_however_it_is_spelt(command: str) -> None:
    allowed = {"rm": None} if command.startswith("rm") else None
    assert not judge(command, root="/work", allowed=allowed)
    assert not judge(command, root="/work/", allowed=allowed)


@for_each_row(
    "command",
    [
        "git rm -r /work/src",
        "git rm -r work",
        "git rm '*.pyc'",
        "git restore 'app/[id]/page.tsx'",
        "git checkout -- /work/a.py",
        "git rm -r --cached .",
        "git rm -rn .",
    ],
)
def test_a_part_is_deleted_and_everything_is_only_taken_out_of_the_index(command: str) -> None:
    assert judge(command, root="/work")
    assert not judge(command, root="/work", mode="readonly")


WALKERS = [
    "ls -R",
    "ls -laR",
    "dir --recursive",
    "du",
    "du -a",
    "du -sh",
    "tree",
    "find",
    "fd x",
    "rg --files",
    "rg x",
    "grep -r x",
]


@for_each_row("walker", WALKERS)
@for_each_row("place", ["/", "/etc", "/home", "/root", "/var", "/tmp", "/opt", "/proc", "/sys", "//", "/usr/..", "/./"])
def test_nobody_walks_over_a_place_that_may_not_be_listed(walker: str, place: str) -> None:
    assert not judge(f"{walker} {place}")
    assert not judge(f"{walker} {place}", mode="readonly")


@for_each_row("command", ["find / -path '/root/*'", "find / -name x", "fd -H x /", "tree -L 3 /", "vdir -R /"])
def test_a_filter_does_not_make_a_walk_smaller(command: str) -> None:
    assert not judge(command)


@for_each_row(
    "command",
    [
        "ls /",
        "ls -la /etc",
        "ls /root-like",
        "find .",
        "find src -name x",
        "du -sh .",
        "ls -R src",
        "tree",
        "find /usr/share/doc",
    ],
)
def test_a_listing_and_a_walk_below_the_directory_pass(command: str) -> None:
    assert bool(judge(command, mode="readonly")) is ("root" not in command)


def test_whatever_may_be_walked_may_be_listed_at_every_depth() -> None:
    places = PathRules("/work")
    for path in ("/usr", "/lib", "/var/log", "/work", "/usr/share/doc", "/bin", "src"):
        assert places.check_walk(path) is None
        for below in ("", "/a", "/a/b", "/a/b/c/d"):
            assert places.check_list(path + below) is None or not path.startswith(("/usr", "/var/log", "/work"))


def test_this_folder_only_means_that_nothing_outside_can_be_named() -> None:
    for path in ("/", "/etc", "/var", "/opt", "/home", "/tmp", "/usr/share/doc", "/etc/os-release", "/bin/ls"):
        for program in ("ls", "cat"):
            assert not judge(f"{program} {path}", root="/work/project", only_root=True)
            assert not judge(f"{program} {path}", root="/work/project", only_root=True, allowed={program: None})
    assert judge("ls /etc", root="/work/project")
    assert judge("ls /work/project src", root="/work/project", only_root=True)
    assert judge("ls -la", root="/work/project", only_root=True)
