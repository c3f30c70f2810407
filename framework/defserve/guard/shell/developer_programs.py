"""git, and the tools of developers: viewers, linters, data bases, archives.

git has the sub-commands that look, and those that change the repository. A sub-command that is not here is refused,
since an alias of the repository's own settings may run anything. Left out are the options that run a program
(`--ext-diff`, `--textconv`, `-O`, `--show-signature`, `%G?`, `--trailer`), write a file (`--output`) or the index
(`describe --dirty`: `--broken` says the same).
"""

from __future__ import annotations

from defserve.guard.shell.grammar import ProgramSpecTable, expand_table_groups

_GIT_GROUPS = {
    "diff": """
        -pusRawbWzr -U,--unified:number -M,--find-renames?number -C,--find-copies?number -B,--break-rewrites?name -D
        -l:number -G,-S:text --patch --no-patch --raw --patch-with-raw --patch-with-stat --minimal --patience
        --histogram --anchored:text --diff-algorithm:name --indent-heuristic --no-indent-heuristic --stat?numbers
        --stat-width,--stat-name-width,--stat-count,--stat-graph-width:number --compact-summary --numstat --shortstat
        --dirstat?names --cumulative --summary --name-only --name-status --no-renames --rename-empty
        --no-rename-empty --check --full-index --binary --abbrev?number --no-abbrev --find-copies-harder
        --irreversible-delete --diff-filter:name --find-object:undashed --pickaxe-all --pickaxe-regex
        --skip-to,--rotate-to:undashed --relative?undashed --no-relative --text --ignore-cr-at-eol
        --ignore-space-at-eol --ignore-space-change --ignore-all-space --ignore-blank-lines
        -I,--ignore-matching-lines:text --inter-hunk-context:number --function-context --exit-code --quiet
        --no-ext-diff --no-textconv --no-prefix --default-prefix --src-prefix,--dst-prefix,--line-prefix:text
        --submodule?short|log --ita-invisible-in-index --ignore-submodules?name --color-words?pattern
        --word-diff?color|plain|porcelain|none --word-diff-regex:text --color-moved?name --no-color-moved
        --color-moved-ws:names --ws-error-highlight:names +color
    """,
    "color": "--color?always|never|auto --no-color",
    "walk": """
        -n,--max-count:number -# --skip:number --since,--after,--until,--before,--since-as-filter:text
        --author,--committer,--grep,--grep-reflog:text --all-match --invert-grep -iEFPq --regexp-ignore-case
        --basic-regexp --extended-regexp --fixed-strings --perl-regexp --remove-empty --merges --no-merges
        --min-parents,--max-parents:number --no-min-parents --no-max-parents --first-parent
        --exclude-first-parent-only --not --all --branches?glob --tags?glob --remotes?glob --glob:glob --exclude:glob
        --exclude-hidden:name --reflog --ignore-missing --bisect --cherry-mark --cherry-pick --left-only --right-only
        --cherry -g --walk-reflogs --merge --boundary --simplify-by-decoration --full-history --dense --sparse
        --simplify-merges --ancestry-path?undashed --show-pulls --date-order --author-date-order --topo-order
        --reverse --no-walk?sorted|unsorted --do-walk --pretty?shown --format:shown --abbrev-commit --no-abbrev-commit
        --oneline --encoding:name --expand-tabs?width --no-expand-tabs --notes?name --no-notes --show-notes
        --relative-date --date:printed --parents --children --left-right --graph --no-graph --show-linear-break?text
        --source --use-mailmap --mailmap --no-mailmap --log-size --decorate?short|full|auto|no --no-decorate
        --decorate-refs,--decorate-refs-exclude:glob --clear-decorations --follow -L:text -cmt --cc
        --combined-all-paths --diff-merges:name --no-diff-merges --dd
    """,
    "refs": """
        --contains?undashed@1 --no-contains?undashed@1 --merged?undashed@1 --no-merged?undashed@1
        --points-at:undashed@1 --sort:shown --format:shown --column?names --no-column -i,--ignore-case +color
    """,
}

_LOOKING: ProgramSpecTable = {
    "status": """
        -sbvuz --short --branch --show-stash --porcelain?v1|v2 --long --verbose -u,--untracked-files?no|normal|all
        --ignore-submodules?none|untracked|dirty|all --ignored?traditional|no|matching --column?names --no-column
        --ahead-behind --no-ahead-behind --renames --no-renames --find-renames?number | undashed*
    """,
    "log whatchanged show": "+diff +walk | undashed*",
    "diff": """
        +diff -123q --cached --staged --merge-base --base --ours --theirs -0 --cc -c --no-index@1 | undashed* | undashed
        undashed
    """,
    # Settings name the programs that pack, but not for zip and tar.
    "archive": """
        -v -l,--list@1 --format:zip|tar@2 -o,--output:plain-archive@2 --prefix:undashed --worktree-attributes -# |
        nothing+ | | undashed+
    """,
    "hash-object": "--no-filters -t:name | undashed+",
    "var": "-l | name?",
    "sparse-checkout": {"": "", "list": "|"},
    "bundle": {"": "", "create": "!w -q --quiet | local-write undashed+", "verify list-heads": "-q --quiet | local"},
    "merge-tree": "!w -z --write-tree --name-only --messages --no-messages --allow-unrelated-histories | undashed+",
    "format-patch": """
        -# -n -N -s --numbered --no-numbered --signoff --stat --no-stat --cover-letter --root --stdout@1
        -o,--output-directory:write --subject-prefix:name -v,--reroll-count:few --start-number:number --zero-commit |
        !w undashed* | undashed*
    """,
    "diff-tree diff-index diff-files": """
        +diff -mcstv --cached --root --stdin --no-commit-id --cc --pretty?shown --format:shown --merge-base |
        undashed*
    """,
    "range-diff": """
        +diff --creation-factor:number --no-dual-color --left-only --right-only --notes?name --no-notes | undashed+
    """,
    "shortlog": "+walk -nsec -w?widths --numbered --summary --email --committer --group:shown | undashed*",
    "blame annotate": """
        -bltsfenwpc -L:text -M?number -C?number --since:text --root --show-stats --show-name --show-number --show-email
        --porcelain --line-porcelain --incremental --date:printed --reverse --first-parent --score-debug --progress
        --no-progress --abbrev:number --ignore-rev:undashed --ignore-revs-file:read --color-lines --color-by-age
        --minimal | undashed+
    """,
    "grep": """
        -aIivwGEPFnlLzocpWhHqr -e:pattern@1 -f:read@1 -A,--after-context:number -B,--before-context:number
        -C,--context:number -m,--max-count:number -# --max-depth:number --threads:few --cached --untracked
        --exclude-standard --no-exclude-standard --text --ignore-case --word-regexp --invert-match --full-name
        --extended-regexp --basic-regexp --perl-regexp --fixed-strings --line-number --no-line-number --column
        --name-only --files-with-matches --files-without-match --null --only-matching --count --break --heading
        --show-function --function-context --all-match --quiet --recursive --no-recursive --and --or --not +color |
        pattern undashed* | undashed*
    """,
    "ls-files": """
        -cdmosiktuvfz -x,--exclude:glob -X,--exclude-from:read --exclude-per-directory:name --exclude-standard
        --cached --deleted --modified --others --ignored --stage --directory --no-empty-directory --empty-directory
        --unmerged --killed --error-unmatch --with-tree:undashed --full-name --abbrev?number --debug --eol
        --deduplicate --sparse --format:shown | undashed*
    """,
    "ls-tree": """
        -drtlz --long --name-only --name-status --object-only --abbrev?number --full-name --full-tree --format:shown |
        undashed+
    """,
    "rev-parse": """
        -q --quiet --verify --short?number --abbrev-ref?strict|loose --symbolic --symbolic-full-name --revs-only
        --no-revs --flags --no-flags --default:undashed --all --branches?glob --tags?glob --remotes?glob --glob:glob
        --exclude:glob --show-toplevel --show-prefix --show-cdup --show-superproject-working-tree --git-dir
        --absolute-git-dir --git-common-dir --git-path:undashed --is-inside-work-tree --is-inside-git-dir
        --is-bare-repository --is-shallow-repository --show-object-format?name --show-ref-format
        --path-format:absolute|relative --shared-index-path --local-env-vars --since,--after,--until,--before:text
        --disambiguate:name --not | undashed*
    """,
    "rev-list": """
        +walk --count --objects --objects-edge --header --timestamp --no-commit-header --commit-header
        --disk-usage?=human --missing:name --filter:name --in-commit-order --quiet --left-right --unpacked --stdin |
        undashed*
    """,
    "describe": """
        --all --tags --contains --abbrev:number --candidates:number --exact-match --debug --long --match:glob
        --exclude:glob --always --first-parent --dirty?text!w --broken?text | undashed*
    """,
    "cat-file": """
        -petsz --batch?text --batch-check?text --batch-all-objects --buffer --unordered --follow-symlinks
        --allow-unknown-type | undashed*
    """,
    "name-rev": """
        --tags --refs:glob --exclude:glob --all --name-only --no-undefined --always --annotate-stdin | undashed*
    """,
    "merge-base": "-a --all --octopus --independent --is-ancestor --fork-point | undashed+",
    "for-each-ref": """
        +refs --count:number --shell --perl --python --tcl --exclude:glob --omit-empty --include-root-refs | undashed*
        | undashed*
    """,
    "show-ref": """
        -qdshr --head --heads --branches --tags --dereference --hash?number --verify --exists --abbrev?number --quiet
        | undashed*
    """,
    "show-branch": """
        -arg --all --remotes --current --topo-order --date-order --sparse --more?number --list --merge-base
        --independent --no-name --sha1-name --topics --reflog?text +color --no-color | undashed*
    """,
    "symbolic-ref": "-q --short --quiet --no-recurse | undashed",
    "count-objects": "-vH --verbose --human-readable |",
    "cherry": "-v --abbrev?number | undashed*",
    "check-ignore": "-qvnz --quiet --verbose --non-matching --no-index --stdin | undashed*",
    "check-attr": "-az --all --cached --stdin | undashed*",
    "check-mailmap": "--stdin | text*",
    "check-ref-format": "--branch --normalize --allow-onelevel --no-allow-onelevel | undashed",
    "verify-pack": "-vs --verbose --stat-only | read+",
    "fsck": """
        -v --full --no-full --strict --verbose --unreachable --dangling --no-dangling --root --tags --cache --reflogs
        --no-reflogs --connectivity-only --name-objects --progress --no-progress | undashed*
    """,
    "version": "--build-options |",
    "ls-remote": """
        !n -htdq --heads --branches --tags --refs --quiet --exit-code --get-url --symref --sort:shown | remote?
        undashed*
    """,
}

_CHANGING: ProgramSpecTable = {
    "branch": """
        -vqa -l,--list@1 -r --all --remotes --show-current --verbose --abbrev:number --no-abbrev +refs
        -t,--track?direct|inherit --no-track -u,--set-upstream-to:undashed@2 --unset-upstream@2
        -d,--delete,-m,--move,-M,-c,--copy@2 --create-reflog | / !w undashed undashed? | glob* | !w undashed*
    """,
    "tag": """
        -l,--list@1 -n?number@1 +refs -a,--annotate -m,--message:pattern -F,--file:read --cleanup:name --no-sign
        --create-reflog | / !w undashed undashed? | glob*
    """,
    "remote": {
        "": "%alone -v,--verbose",
        "show": "-n@1 | / !n undashed+ | undashed*",
        "get-url": "--push --all | undashed",
        "add": "!w -f!n -t:undashed -m:undashed --tags --no-tags | undashed remote-name",
        # Not rename, remove and prune: they run a hook, whatever the settings say of hooks.
        "set-url": "!w --push | undashed remote-name undashed?",
        "update": "!w !n -p --prune | undashed*",
    },
    "stash": {
        "": "!w %alone -ukqa --include-untracked --keep-index --no-keep-index --quiet --all -m,--message:pattern",
        "list": "+diff +walk | undashed*",
        "show": "+diff -u --include-untracked --only-untracked | undashed?",
        "push": """
            !w -ukqaS --include-untracked --keep-index --no-keep-index --quiet --all --staged -m,--message:pattern |
            undashed*
        """,
        "pop apply": "!w -q --index --quiet | undashed?",
        "save": "!w -ukqa --include-untracked --keep-index --quiet --all | text*",
        "branch": "!w | undashed undashed?",
    },
    "reflog": {
        "": "%alone +diff +walk",
        "show": "+diff +walk | undashed*",
        "exists": "| undashed",
        "list": "|",
        "HEAD main master": "+diff +walk | undashed*",
    },
    "worktree": {
        "": "",
        "list": "-vz --porcelain --verbose |",
        "add": """
            !w -dq -b:undashed --detach --checkout --no-checkout --track --no-track --guess-remote --lock --quiet
            --orphan | write undashed?
        """,
        "lock": "!w --reason:text | write",
        "unlock": "!w | write",
        "move": "!w | write write",
        "prune": "!w -nv --dry-run --verbose |",
    },
    "notes": {
        "": "%alone --ref:undashed",
        "list show": "| undashed?",
        "add append": "!w -m,--message:pattern@1 | nothing+ | undashed?",
    },
    "update-index": """
        !w -q --assume-unchanged --no-assume-unchanged --skip-worktree --no-skip-worktree --refresh --really-refresh |
        undashed*
    """,
    "submodule": {
        "": "%alone -q,--quiet",
        "status": "--cached --recursive | undashed*",
        "summary": "--cached --files | undashed*",
        "init": "!w | undashed*",
        "sync": "!w --recursive | undashed*",
        # What the settings of the superproject name is fetched and checked out. No hook runs, see `environment`.
        "update": """
            !w !n -qN --init --recursive --remote --no-fetch --checkout --merge --rebase --recommend-shallow
            --no-recommend-shallow --single-branch --no-single-branch --progress --quiet --depth:number
            -j,--jobs:number --filter:name | undashed*
        """,
    },
    "config": """
        %first -z,--null --name-only --show-origin --show-scope --global!h --local --system!h --worktree --includes
        --no-includes --bool --int --bool-or-int --path --expiry-date --type:name -l,--list@1 --get,--get-all@2
        --get-regexp@3 --default:text | setting / =get|list / =get setting / !w harmless-setting text | |
        setting pattern? | pattern pattern?
    """,
    # Not -f, which deletes what was not committed. With these options, the files stay where they are.
    "rm": """
        !w -rq --cached@1 -n,--dry-run@1 --quiet --ignore-unmatch --sparse | tracked-delete+ | undashed+
    """,
    "add": """
        !w -nvfAuNU --dry-run --verbose --force --all --no-all --update --intent-to-add --refresh --ignore-errors
        --ignore-missing --sparse --renormalize --chmod:mode | undashed*
    """,
    # Without a message it starts an editor.
    "commit": """
        !w -aqvsnou -m,--message:pattern@1 -F,--file:read@1 -C,--reuse-message:undashed@1 --no-edit@1 --dry-run@1
        --short@1 --porcelain@1 --long@1 --fixup:fixed@1 --squash:undashed --amend --all --quiet --verbose --signoff
        --no-signoff --no-verify --allow-empty --allow-empty-message --author,--date:text --reset-author
        --branch --only --include --cleanup:name --no-gpg-sign --no-status --status --no-post-rewrite -i |
        !e undashed* | undashed*
    """,
    "push": """
        !w !n -nuqv46 -o,--push-option:text --all --branches --tags --follow-tags --set-upstream --dry-run --porcelain
        --quiet --verbose --progress --no-progress --atomic --no-verify --thin --no-thin --recurse-submodules:name |
        remote? refspec*
    """,
    "pull fetch": """
        !w !n -aknpqtvr46 -j,--jobs:number --all --append --atomic --depth,--deepen:number --shallow-since:text
        --shallow-exclude:undashed --unshallow --dry-run --keep --multiple --prune --prune-tags --no-prune --no-tags
        --tags --refetch --no-recurse-submodules --recurse-submodules?name --quiet --verbose --progress --no-progress
        --rebase?false|true|merges --no-rebase --ff --no-ff --ff-only --squash --no-squash --commit --no-commit --stat
        --no-stat --autostash --no-autostash --no-edit --allow-unrelated-histories --filter:name
        -X,--strategy-option:name --write-fetch-head --no-verify | remote? refspec*
    """,
    "clone": """
        !w !n -qvn -o,--origin:undashed -b,--branch:undashed -j,--jobs:number --depth:number --shallow-since:text
        --shallow-exclude:undashed --single-branch --no-single-branch --no-tags --no-checkout --bare --mirror --quiet
        --verbose --progress --filter:name --sparse --recurse-submodules?undashed --shallow-submodules
        --no-shallow-submodules --also-filter-submodules --no-local --no-hardlinks --dissociate --reject-shallow |
        cloned / remote write
    """,
    "init": "!w -q -b,--initial-branch:undashed --quiet --bare --object-format:name --shared?name | write?",
    "checkout": """
        !w -qdtl -b:undashed --quiet --detach -t,--track?direct|inherit --no-track --orphan:undashed --ours --theirs
        --guess --no-guess --progress --no-progress --merge -m --conflict:name --ignore-skip-worktree-bits |
        file-of-tree*
    """,
    "switch": """
        !w -qdm -c,--create:undashed --quiet --detach --guess --no-guess --merge -t,--track?direct|inherit --no-track
        --orphan:undashed --progress --no-progress --conflict:name | undashed*
    """,
    "restore": """
        !w -qm -s,--source:undashed -S,--staged@1 -W,--worktree@2 --ours --theirs --merge --quiet --progress
        --no-progress --conflict:name | file-of-tree+ | undashed+ | file-of-tree+
    """,
    "reset": "!w -qN --mixed --soft --quiet --no-refresh --refresh --intent-to-add | undashed*",
    "merge": """
        !w -nqv -m:pattern -F,--file:read -X,--strategy-option:name --no-ff --ff --ff-only --squash --no-squash
        --commit --no-commit --no-edit --stat --no-stat --quiet --verbose --abort --continue --quit --no-verify
        --allow-unrelated-histories --signoff --autostash --no-autostash --log?number --no-gpg-sign
        --into-name:undashed --progress --no-progress | undashed*
    """,
    "rebase": """
        !w -qvnfmkr -X,--strategy-option:name --onto:undashed --keep-base --continue --skip --abort --quit --autostash
        --no-autostash --autosquash --no-autosquash --quiet --verbose --stat --no-stat --no-verify --fork-point
        --no-fork-point --root --rebase-merges?name --no-rebase-merges --update-refs --no-update-refs --apply --merge
        --empty:name --keep-empty --committer-date-is-author-date --reset-author-date --signoff --no-ff --force-rebase
        --show-current-patch | undashed*
    """,
    "cherry-pick revert": """
        !w -nxrs -m,--mainline:number -X,--strategy-option:name --no-edit --no-commit --signoff --ff --allow-empty
        --allow-empty-message --keep-redundant-commits --continue --abort --quit --skip --cleanup:name --no-gpg-sign
        --reference | undashed*
    """,
    # Only what would be deleted.
    "clean": "-n,--dry-run@1 -dxXfq --quiet --force -e,--exclude:glob | nothing+ | undashed*",
    "mv": "!w -knv --dry-run --verbose --sparse | write+",
    "apply": """
        -Rvqz -p:number -C:number --stat,--numstat,--summary,--check@1 --index!w --cached!w -3,--3way!w --reverse
        --reject!w --recount --ignore-space-change --ignore-whitespace --whitespace:name --include,--exclude:glob
        --verbose --quiet -N,--intent-to-add!w --unidiff-zero --allow-empty --no-add --inaccurate-eof --apply!w |
        !w read* | read*
    """,
    "bisect filter-branch difftool mergetool hook shell daemon instaweb send-email credential help": "%never",
}

GIT_SPECS: ProgramSpecTable = expand_table_groups(
    {
        "git": {
            "": """
                -C:here -Pvh --no-pager --no-optional-locks --literal-pathspecs --glob-pathspecs --icase-pathspecs
                --no-replace-objects --no-lazy-fetch --no-advice --version
            """,
            **_LOOKING,
            **_CHANGING,
        }
    },
    _GIT_GROUPS,
)


# -- Tools of developers that read their input, and some that rewrite it: viewers, linters, data bases, archives.
#
# Not here: what loads settings or plug-ins of the project that are code (eslint, prettier, pytest, mypy, pylint,
# flake8).


_TOOL_GROUPS = {
    "sqlite": """
        %words -readonly,--readonly@1 -header,--header -noheader,--noheader -csv,--csv -json,--json -column,--column
        -line,--line -list,--list -table,--table -box,--box -markdown,--markdown -html,--html -tabs,--tabs
        -quote,--quote -ascii,--ascii -batch,--batch -bail,--bail -safe,--safe -echo,--echo -stats,--stats
        -separator,--separator:char -nullvalue,--nullvalue:text
    """,
    "csv": """
        -tSHKLnliv -c,--columns:names -C,--not-columns:names -d,--delimiter:char -q,--quotechar:char -e,--encoding:name
        -m,--match:pattern -r,--regex:pattern --names --linenumbers --no-header-row --no-inference --csv --json
        --freq-count:few --max-rows:width --max-columns:width --max-column-width:width -p,--escapechar:char
    """,
    "seven": "%words -y -bd -ba -bb:few -r -t:name -x:seven-name -i:seven-name -scs:name -p:text",
}

DEVELOPER_TOOL_SPECS: ProgramSpecTable = expand_table_groups(
    {
        "bat batcat": """
            -nApPuf -l,--language:name -r,--line-range:numbers -H,--highlight-line:numbers --paging:=never
            --style:names --color:auto|never|always --decorations:auto|never|always --theme:text --plain --number
            --show-all --tabs:width --wrap:auto|never|character --terminal-width:width --squeeze-blank
            --list-languages --list-themes | read*
        """,
        "eza exa": """
            -1lGxaAdDfFghimnUuHSZorsB -R,--recurse@1 -T,--tree@1 -L,--level:few -I,--ignore-glob:glob -s,--sort:name
            -t,--time:name --all --long --oneline --grid --across --header --inode --links --git --git-ignore --group
            --group-directories-first --only-dirs --only-files --reverse --bytes --binary --modified --created
            --accessed --icons?always|never|auto --no-icons --no-permissions --no-filesize --no-user --no-time
            --color,--colour?always|never|auto --time-style:printed --classify | listed* | walked*
        """,
        "ag": """
            -ilLvcnsSwQaoHrRuz0 -G,--file-search-regex:pattern -A,--after?number -B,--before?number -C,--context?number
            -m,--max-count:number --depth:number --ignore,--ignore-dir:glob --hidden --nocolor --color --nogroup
            --group --heading --noheading --nonumbers --numbers --python --js --ts --go --rust --java --cpp --cc
            --ruby --php --html --css --json --yaml --markdown --nobreak --break --column --stats --literal
            --word-regexp --case-sensitive --ignore-case --smart-case --invert-match --files-with-matches
            --files-without-matches --only-matching --count --list-file-types --vimgrep | pattern read*
        """,
        "tokei": """
            -fC -t,--types:names -e,--exclude:glob --files --hidden --no-ignore --no-ignore-parent --no-ignore-vcs
            -s,--sort:name -o,--output:json|yaml|cbor | walked*
        """,
        # Not -o, which writes a file.
        "scc": """
            %at -w -c -f,--format:json|csv|tabular|wide|html|cloc-yaml -s,--sort:name --by-file --no-ignore --no-cocomo
            --no-complexity --wide | walked*
        """,
        "cloc": """
            --by-file --by-file-by-lang --json --yaml --csv --md --xml --quiet --hide-rate --sum-one
            --exclude-dir,--exclude-ext,--exclude-lang,--include-lang,--include-ext:names
            --not-match-d,--match-d:pattern --not-match-f,--match-f:pattern | counted+
        """,
        "lsdiff": """
            -nsEHvN -p,--strip-match:few --strip:few -i,--include:glob -x,--exclude:glob --status --number-files
            --line-number --files:numbers | read*
        """,
        "datamash": """
            -sHWiCfn -g,--group:names -t,--field-separator:char -R,--round:few --sort --header-in --header-out --headers
            --whitespace --ignore-case --full --narm --skip-comments --no-strict --filler:text | pattern+
        """,
        "clang-format": """
            %at -n,--dry-run -Werror,--Werror. -i!o --verbose --style,--fallback-style:name --lines:numbers
            --sort-includes --assume-filename:pattern | read*
        """,
        "diffstat": "-bcCklmqsuKt -p:few -w:width -n:width -f:few -r:few | shell-word*",
        "colordiff": "-abBcdeEinNpqrstTuwyZ -CU:number --unified?number --brief --side-by-side | read read",
        "sdiff": """
            -iEZbWBatlsdH -w,--width:width -I,--ignore-matching-lines:pattern --ignore-case --ignore-all-space
            --ignore-blank-lines --suppress-common-lines --left-column --expand-tabs --minimal --text | read read
        """,
        "diff3": "-AeEx3iamT -L,--label:text --show-all --merge --text --initial-tab | read read read",
        "wdiff dwdiff": "-123sni --no-deleted --no-inserted --no-common --statistics --ignore-case | read read",
        "zdiff zcmp xzdiff": "-uqbwiB | read read?",
        "bzgrep xzgrep zstdgrep lzgrep": """
            -EFGPiyvwxcHhnlLoqsabI -e:pattern@1 -A:number -B:number -C:number -m:number | pattern read+ | read+
        """,
        "csplit": """
            !w -ksqz -f,--prefix:prefix -b,--suffix-format:split-name -n,--digits:few --keep-files --silent --quiet
            --elide-empty-files --suppress-matched | read pattern+
        """,
        "dos2unix unix2dos mac2unix": """
            !w -qfkosv -n,--newfile@1 -i,--info@2 --quiet --force --keepdate --oldfile --verbose | write+ | read write
            | read+
        """,
        "hexyl": "-v -n,--length:number -s,--skip:number -o,--display-offset:number -c,--bytes:number | read?",
        "crc32 sum": "| read+",
        "gron": "-umscjv --ungron --monochrome --stream --colorize --no-sort --json --values | local?",
        "csvcut csvlook csvgrep csvsort csvstat csvjson": "+csv | local?",
        # Not qsv: a file of the directory, `.env`, tells it what to write, and where.
        "xsv": {
            "": "",
            "headers count flatten table stats frequency": """
                -jn -d,--delimiter:char -s,--select:names -l,--limit:number --everything --median --mode --no-headers
                --just-names | local*
            """,
            "fixlengths": "-d,--delimiter:char -l,--length:width -o,--output:write | local?",
            "select search slice sort sample cat": """
                -inrNRv -d,--delimiter:char -s,--select:pattern -l,--len:number -e,--end:number --start:number
                -o,--output:write --no-headers --ignore-case --reverse --numeric --invert-match | pattern local* / local
            """,
        },
        "gofmt": "%words -l -d -s -e -r:text -w!o | read*",
        "shfmt": """
            %words -i:few -d -l -s -mn -ci -sr -kp -bn -fn -f -ln:name -p -w!o | read+
        """,
        "yamllint": """
            -s -f,--format:parsable|standard|colored|github|auto -d:lint-settings -c,--config-file:read --strict
            --no-warnings | read+
        """,
        "shellcheck": """
            -f,--format:checkstyle|diff|gcc|json|json1|quiet|tty -s,--shell:sh|bash|dash|ksh|busybox
            -S,--severity:error|warning|info|style -e,--exclude:names -i,--include:names -o,--enable:names
            -W,--wiki-link-count:few -C,--color?auto|always|never --norc --list-optional -V | read*
        """,
        # No option that loads what a document names: --noent, --loaddtd, --valid, --xinclude, --schema, --c14n.
        "xmllint": """
            %words -format,--format -noout,--noout --nonet --noblanks --pretty:0|1|2 --encode:name --xpath:text --html
            --xmlout --recover --dropdtd --nocdata --nsclean --nowarning --quiet --stream
            --sax --timing --debug --push --pattern:text -o,-output,--output:write | local+
        """,
        "ruff": {
            "": "-Vq --version --quiet",
            "check": """
                %at -vqs -n,--no-cache@1 --fix!w --unsafe-fixes --no-fix --diff --select,--ignore,--extend-select:names
                --extend-ignore,--fixable,--unfixable:names --output-format:name --statistics --show-fixes --preview
                --exit-zero --isolated --line-length:width --target-version:name --exclude,--extend-exclude:glob
                --quiet --verbose --silent | !w read* | read*
            """,
            "format": """
                %at -vqs -n,--no-cache@1 --check --diff --line-length:width --target-version:name --preview --isolated
                --exclude:glob --quiet --verbose | !w read* | !w read*
            """,
            "rule": "%at --output-format:text|json | name",
            "linter": "|",
            "version": "--output-format:text|json |",
        },
        "black isort": """
            !w -qvlS -l,--line-length:width -t,--target-version:name --check --check-only --diff --color --quiet
            --verbose --skip-string-normalization --profile:name --exclude,--extend-exclude:text | read+
        """,
        "sqlite3": "+sqlite | !w local-write sql* | local sql-asking*",
        "7z 7za 7zr 7zz": {
            "": "",
            "l t": "+seven -slt | seven-archive seven-name*",
            "h": "+seven -scrc:name | seven-name+",
            "x e": """
                !w +seven -aoa -aos -aou -aot -o:write | seven-archive seven-member*
            """,
            "a u": "!w +seven -mx,-m,-ms,-mhe:seven-set -ssc -stl | local-write seven-source+",
        },
        "unrar": {"": "", "l lb lt v vt t": "| object undashed*"},
        "ar": "%at | =t|tv object undashed*",
        "pdfinfo": "%words -f:number -l:number -box -meta -isodates -rawdates -enc:name | read",
        "pdftotext": """
            %words -f:number -l:number -layout -raw -nopgbrk -enc:name -q -eol:unix|dos|mac | read =- / !w write /
            !w read write
        """,
        "c++filt": "%at -npirt | undashed*",
        "addr2line": "%at -aCfips -e,--exe:object --functions --demangle --pretty-print --inlines | undashed+",
        "pkg-config pkgconf": """
            --modversion --exists --cflags --libs --static --list-all --print-errors --short-errors --print-variables
            --print-requires --print-provides --variable:name --cflags-only-I --libs-only-l --libs-only-L
            --atleast-version,--exact-version,--max-version:name | name*
        """,
        "ssh-keygen": "-v -l@1 -E:sha256|md5 -f:read | nothing+ |",
        "units": "-tvq1s --terse --verbose --quiet --one-line --strict | pattern pattern?",
        "uuidgen": "-rt --random --time |",
        "mcookie clear": "|",
        "tput": "-V@1 | name+ |",
        "namei": "-xmolv --long --modes --owners --mountpoints --vertical | listed+",
        "pathchk": "-pP --portability | pattern+",
        "lsattr": "-adlvp | listed*",
        "getfacl": "-acdestpn | listed+",
        "findmnt": """
            -lnDuvJrP -t,--types:names -o,--output:names --json --list --noheadings --df --real | listed?
        """,
        "swapon": "-s,--show?names@1 --bytes --noheadings | nothing+ |",
        "sysctl": "-nNaqe --values --names --all | setting*",
        "ipcs": "-amqstplcuh |",
        "sensors": "-ufjA |",
        "nvidia-smi": "%words -L -q -i:name --list-gpus --query-gpu:names --format:names |",
        "iostat mpstat": "-cdhkmxyztN -p?name -P:name |",
        "getent": "| =services|protocols|networks|rpc name*",
        "ldconfig": "-v -p,--print-cache@1 | nothing+ |",
        "whatis": "-lre -s:name | pattern+",
        "apropos": "-lrea -s:name | pattern+",
        # Without a number of rounds, it never ends.
        "top": """
            -bcHiS1 -n:few -d:few -o:name -u,-U:name -w:width -E:k|m|g|t|p|e -e:k|m|g|t|p &>-b &>-n |
        """,
        "command": "-v,-V@1 | nothing+ | name+",
        "printenv": "-0 --null | variable+",
        "rpm": "-q,--query@1 -ailfdcRs --all --info --list --last --requires --provides | nothing+ | text*",
        "pacman": "-Q@1 -deglimnoqstu | nothing+ | name*",
        "dpkg-query": "-lLsSWp --list --listfiles --status --search --show -f,--showformat:package-fields | text*",
        "go": {
            "": "",
            "version": "|",
            "env": "-json | names*",
            "help": "| name*",
            "get": "!w !n -u -t -v | package*",
            "mod": {
                "": "",
                "init": "!w | package?",
                "tidy download verify": "!w !n -v |",
                "graph why": "!n | package*",
            },
        },
    },
    _TOOL_GROUPS,
)

# What an interpreter does with a file, or a module of its own, without running the project's code.
SYNTAX_CHECK_SPECS: ProgramSpecTable = {
    "bash -n": "| read",
    "sh -n": "| read",
    "dash -n": "| read",
    "zsh -n": "| read",
    "ksh -n": "| read",
    "node --check": "| read",
    "php -l": "| read",
    "luac -p": "| read+",
    **{
        f"python{version} -m {module}": rules
        for version in ("", "3")
        for modules, rules in {
            "json.tool": """
                --sort-keys --no-ensure-ascii --compact --tab --no-indent --json-lines --indent:few | read? /
                !w read write
            """,
            "venv": """
                !w --system-site-packages --symlinks --copies --upgrade --without-pip --prompt:name
                --upgrade-deps!n | touched
            """,
            "py_compile": "!w -q | write+",
            # Without a directory, it compiles all that Python can import.
            "compileall": "!w -qfl | write+",
            "tabnanny": "-qv | read+",
            "ast dis tokenize": "| read",
            "calendar": "| whole? whole?",
            "site": "|",
            "this": "|",
            "zipfile": "-l,--list,-t,--test@1 | nothing+ | local",
            "tarfile": "-l,--list,-t,--test@1 -v | nothing+ | local",
        }.items()
        for module in modules.split()
    },
}
"""The first words of a command → how the others are read."""
