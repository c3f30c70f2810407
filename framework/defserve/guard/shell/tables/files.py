"""Programs that look at files and directories, make, copy, pack and unpack them."""

from __future__ import annotations

from defserve.guard.shell.specs import Table, with_groups

_GROUPS = {
    "packer": """
        %early -fkqv -# -c,--stdout,--to-stdout@1 -t,--test@1^test --keep --verbose --quiet --force --best --fast
    """,
    "tar": """
        -zjJZavpSkm --gzip --gunzip --bzip2 --xz --zstd --lzma --compress --auto-compress --verbose --totals
        --exclude:glob --exclude-vcs --wildcards --no-wildcards --no-recursion --ignore-case
        --numeric-owner --utc --full-time --block-number --same-order --preserve-permissions --anchored --no-anchored
    """,
    "unpack": """
        -O,--to-stdout -C,--directory:write --keep-old-files --skip-old-files --keep-newer-files --overwrite --touch
        --strip-components:number --no-same-owner --no-same-permissions --one-top-level?write
    """,
    "copy": """
        -t,--target-directory:write@1 -T,--no-target-directory -S,--suffix:suffix -b
        --backup?none|off|numbered|t|existing|nil|simple|never --verbose --force --interactive --no-clobber
        --update?all|none|older
    """,
}

FILES: Table = with_groups(
    {
        "ls dir vdir": """
            -aAbBcCdDfFgGhiklmnNopqQrsStuUvxXZ1WOey -R,--recursive@1 -I,--ignore:ignored
            -w,--width:width -T,--tabsize:width --all
            --almost-all --author --escape --ignore-backups --directory --dired --classify?always|never|auto
            --file-type --format:across|commas|horizontal|long|single-column|verbose|vertical --full-time
            --group-directories-first --no-group --human-readable --si --hide:glob --hyperlink?always|never|auto
            --indicator-style:none|slash|file-type|classify --inode --kibibytes --numeric-uid-gid
            --literal --hide-control-chars --show-control-chars --quote-name --quoting-style:name --reverse
            --size --sort:none|size|time|version|extension|width|name --time:name --time-style:text --context --zero
            --block-size:name --color?always|never|auto | listed* | walked*
        """,
        "tree": """
            -adfxpsugDFrtcUCnNQqSvAiJXh0 -L:number -P:glob -I:glob -H:text -T:text -o:write --noreport --dirsfirst
            --filesfirst --prune --du --si --inodes --device --matchdirs --ignore-case --gitignore --metafirst
            --nolinks --filelimit:number --timefmt:text --charset:name --sort:name --hintro:read --houtro:read
            --gitfile:read | walked*
        """,
        "find": """
            %words -P -O1 -O2 -O3 -E -X -x -d -s -a -and -o -or -not -daystart -depth -empty -executable -false
            -true -help -ls -mount -noleaf -nogroup -nouser -nowarn -warn -print -print0 -prune -quit
            -readable -writable -version -xdev -ignore_readdir_race -noignore_readdir_race
            -amin,-cmin,-mmin,-atime,-ctime,-mtime,-used,-size,-links,-inum,-gid,-uid,-maxdepth,-mindepth:number
            -anewer,-cnewer,-newer,-samefile,-neweraa,-neweram,-newermm,-newerma,-newercc,-newercm:listed
            -newerat,-newerct,-newermt,-newerBt:when -fstype,-user,-group,-flags:name
            -iname,-name,-path,-ipath,-wholename,-iwholename,-regex,-iregex,-lname,-ilname:glob -perm:pattern
            -regextype:name -type,-xtype:name -printf:printed | walked*
        """,
        "fd fdfind": """
            -HIuspagF0iqV1 -e,--extension:name -t,--type:name -d,--max-depth,--maxdepth:number --min-depth:number
            --exact-depth:number -E,--exclude:glob -S,--size:number -o,--owner:owner -c,--color:never|auto|always
            -j,--threads:few --changed-within,--newer,--changed-before,--older,--changed-after:text
            --max-results:number --and:pattern --base-directory,-C,--search-path:inside --ignore-file:read
            --path-separator:char --hidden --no-hidden --no-ignore --no-ignore-vcs --no-ignore-parent --unrestricted
            --case-sensitive --ignore-case --glob --regex --fixed-strings --absolute-path --relative-path
            --full-path --print0 --prune --quiet --one-file-system --show-errors --strip-cwd-prefix | pattern? walked*
        """,
        "stat": "-LftxnqrsF -c,--format:printed --printf:printed --dereference --file-system --terse | listed*",
        "file": """
            -bhiklLnNrEv0I -e,--exclude:name -F,--separator:char -P:assignment --brief --mime --mime-type
            --mime-encoding --extension --apple --keep-going --dereference --no-dereference --no-buffer --no-pad
            --print0 --raw --list | read*
        """,
        "du": """
            -0abchklmPsSxgA -d,--max-depth:number -B,--block-size:name -t,--threshold:number -X,--exclude-from:read
            -I,--exclude:glob --all --apparent-size --bytes --total --human-readable --inodes
            --kilobytes --count-links --no-dereference --separate-dirs --si --summarize
            --one-file-system --null --time?atime|access|use|ctime|status --time-style:text | walked*
        """,
        "df": """
            -ahHiklmPTgY -B,--block-size:name -t,--type:name -x,--exclude-type:name --all --human-readable --si
            --inodes --local --no-sync --output?name --portability --print-type --total | listed*
        """,
        "basename dirname": "%plain | pattern*",
        "realpath": """
            -eLmPsqz -E --canonicalize-existing --canonicalize-missing --logical --physical --quiet --strip
            --no-symlinks --zero --relative-to:listed --relative-base:listed | listed+
        """,
        "readlink": """
            -efmnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent
            --verbose --zero | listed+
        """,
        "pwd": "-LP --logical --physical |",
        "test": """
            %words -b,-c,-d,-e,-f,-g,-G,-h,-k,-L,-N,-O,-p,-r,-s,-S,-u,-w,-x:listed -t:number -n,-z:pattern
            -eq,-ne,-lt,-le,-gt,-ge:pattern -nt,-ot,-ef:listed -a -o | pattern*
        """,
        "objdump": """
            -aCdDfhprstTx --all-headers --archive-headers --demangle --disassemble --dynamic-syms --file-headers
            --full-contents --headers --private-headers --reloc --section-headers --syms | object*
        """,
        "nm readelf size": """
            -aABCDdeghInprsStTuVvx --all --demangle --debug-syms --defined-only --dynamic --extern-only --file-header
            --headers --notes --numeric-sort --program-headers --relocs --reverse-sort --section-headers --sections
            --segments --size-sort --symbols --syms --undefined-only --version-info --wide -W | object*
        """,
        "unzip": """
            %leading -jnoquCXaL -l,-v@1^list -t@1^test -z@1^comment -p@1^print -c@1^cat -Z1.@1^info -d:write |
            !w local member* / !w local member* =-d write | local undashed*
        """,
        "zipinfo": "%leading -12slmvhMtTz | local undashed*",
        "mkdir": "!w -pvZ -m,--mode:mode --parents --verbose | touched+",
        "touch": """
            !w -acmfh -d,--date:when -t:text -r,--reference:listed --no-create --no-dereference --time:name | touched+
        """,
        "tee": "-aip --append --ignore-interrupts --output-error?warn|warn-nopipe|exit|exit-nopipe | write*",
        "cp": """
            !w +copy -adfilnPpRrsuvxXcZ --archive --recursive --no-dereference --link --symbolic-link
            --parents --one-file-system --preserve?names --no-preserve:names --attributes-only --remove-destination
            --sparse:name --reflink?always|auto|never --strip-trailing-slashes --copy-contents --debug | copied+ write
            | copied+
        """,
        "mv": "!w +copy -finuvZh --strip-trailing-slashes --debug --exchange --no-copy | write+ | write+",
        "ln": "!w +copy -sfinrvPh --symbolic --relative --physical --no-dereference | write+ | write+",
        "install": """
            !w +copy -cCpvDZ -d@2 -m,--mode:mode -o,--owner:name -g,--group:name --compare --preserve-timestamps
            --directory@2 | copied+ write | copied+ | write+
        """,
        "chmod": """
            !w -Rcfvh --recursive --changes --silent --quiet --verbose --preserve-root -rwx@1 | mode touched+ | touched+
        """,
        "mktemp": "!w -dqtu --directory --dry-run --quiet --suffix:suffix -p,--tmpdir:write | write?",
        # Only with the file that is patched: else the patch names what is written.
        "patch": """
            !w -fNRstblu -p,--strip:number -i,--input:read -F,--fuzz:number --dry-run@1 --forward --reverse --batch
            --force --quiet --silent --verbose --backup --ignore-whitespace --unified --no-backup-if-mismatch | write
            read? | read? read?
        """,
        "split": """
            !w -dxez -a,--suffix-length:1|2|3|4 -b,--bytes:number -C,--line-bytes:number -l,--lines:number
            -n,--number:pieces -t,--separator:char --additional-suffix:suffix --numeric-suffixes?number
            --hex-suffixes?number --elide-empty-files --verbose -# | read? prefix?
        """,
        # Not -N: it unpacks to a name that stands in the archive.
        "gzip": """
            +packer -n -r,--recursive^walk -l,--list@1^list -d,--decompress,--uncompress^unpack --no-name --rsyncable |
            packed* | read*
        """,
        "gunzip": "+packer -n -l,--list@1^list -d,--decompress,--uncompress^unpack --no-name | packed* | read*",
        "bzip2 bunzip2": """
            +packer -s -d,--decompress^unpack -z,--compress^pack --small --repetitive-best --repetitive-fast | packed*
            | read*
        """,
        "xz unxz lzma unlzma": """
            +packer -e -l,--list@1^list -d,--decompress,--uncompress^unpack -z,--compress^pack --extreme
            -T,--threads:few -C,--check:name -F,--format:name -M,--memlimit:number --robot --no-warn | packed* |
            read*
        """,
        "zstd unzstd": """
            -fkqv -# -c,--stdout@1 -t,--test@1^test -l,--list@1^list -d,--decompress,--uncompress^unpack
            -z,--compress^pack -r^walk -o:write --keep --verbose --quiet --force --ultra --fast?number --long?number
            -T,--threads:few --no-progress --no-check --check | packed* | read*
        """,
        "zip": "-rqvjuyXlog9D -# -x,-i,--exclude,--include | local-write source*",
        "rsync": """
            -avrznuhPlptioOgDHSxWC0cmJ -b --archive --verbose --recursive --progress --dry-run --exclude:glob
            --include:glob --stats --human-readable --update --checksum --itemize-changes --times --links --perms
            --compress --partial --ignore-existing --existing --size-only --max-size:number --min-size:number
            --bwlimit:number --list-only --info:names --no-perms --no-owner --no-group --cvs-exclude
            --exclude-from:read --include-from:read | local-copied+ local-write
        """,
    },
    _GROUPS,
)

TAR: Table = with_groups(
    {
        "-t --list": """
        -t,--list +tar -f,--file:local -C,--directory:inside --occurrence?number --strip-components:number | glob*
    """,
        "-d --diff --compare": "-d,--diff,--compare +tar -f,--file:local -C,--directory:inside | glob*",
        "-x --extract --get": "!w -x,--extract,--get +tar +unpack -f,--file:local | member*",
        "print": """
        -x,--extract,--get -O,--to-stdout +tar -f,--file:local -C,--directory:inside --occurrence?number | undashed*
    """,
        "-c --create": """
        !w -c,--create +tar -f,--file:local-write -C,--directory:inside --sort:name --mtime:text --format:name
        --owner:name --group:name | source*
    """,
        "-r -u --append --update": """
        !w -r,-u,--append,--update +tar -f,--file:local-write -C,--directory:inside | source*
    """,
    },
    _GROUPS,
)
"""The forms of tar, by the option that says what it does."""
