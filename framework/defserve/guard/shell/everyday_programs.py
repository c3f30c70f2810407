"""Programs that show, search and reshape text, look at and copy files, compute, and tell about the machine."""

from __future__ import annotations

from defserve.guard.shell.grammar import ProgramSpecTable, expand_table_groups

_TEXT_GROUPS = {
    "color": "--color,--colour?always|never|auto",
    "grep": """
        -EFGPiyvwxcHhnlLoqsaIbrzZTUu --extended-regexp --fixed-strings --basic-regexp --perl-regexp --ignore-case
        --no-ignore-case --invert-match --word-regexp --line-regexp --count --with-filename --no-filename
        --line-number --files-with-matches --files-without-match --only-matching --quiet --silent --no-messages --text
        --byte-offset --recursive --null-data --null --initial-tab --binary --line-buffered -V
        --no-group-separator --group-separator:char --label:text -e,--regexp:pattern@1 -f,--file:read@1
        -m,--max-count:number -A,--after-context:number -B,--before-context:number -C,--context:number -#
        --include:glob --exclude:glob --exclude-dir:glob --exclude-from:read -d,--directories:read|recurse|skip
        -D,--devices:=skip --binary-files:binary|text|without-match +color | pattern read* | read*
    """,
    "checksum": """
        -bctwz --binary --check --tag --text --zero --ignore-missing --quiet --status --strict --warn
        -l,--length:number -a,--algorithm:name --base64 --raw --debug --untagged | read*
    """,
    "zcat": "-fqvLVhk --force --quiet --verbose | read*",
}

TEXT_PROGRAM_SPECS: ProgramSpecTable = expand_table_groups(
    {
        "cat": """
            -AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs
            --show-nonprinting | read*
        """,
        "head": "-qvz --quiet --silent --verbose --zero-terminated -n,--lines:number -c,--bytes:number -# | read*",
        "tail": """
            -qvrz --quiet --silent --verbose --zero-terminated -n,--lines:number -c,--bytes:number -b:number -# | read*
        """,
        "wc": "-clmLw --bytes --chars --lines --words --max-line-length --total:auto|always|only|never | read*",
        "tac": "-br -s,--separator:char --before --regex | read*",
        "rev": "-V0 --zero | read*",
        "nl": """
            -p -b,--body-numbering:pattern -d,--section-delimiter:char -f,--footer-numbering:pattern
            -h,--header-numbering:pattern -i,--line-increment:number -l,--join-blank-lines:number
            -n,--number-format:ln|rn|rz -s,--number-separator:char -v,--starting-line-number:number
            -w,--number-width:width --no-renumber | read*
        """,
        "cut": """
            -snz -b,--bytes:numbers -c,--characters:numbers -d,--delimiter:char -f,--fields:numbers --complement
            --only-delimited --output-delimiter:char --zero-terminated | read*
        """,
        "paste": "-sz -d,--delimiters:char --serial --zero-terminated | read*",
        "join": """
            -iz -a:number -e:char -j:number -o:name -t:char -v:number -1:number -2:number --ignore-case
            --check-order --nocheck-order --header --zero-terminated | read read
        """,
        "comm": "-123iz --check-order --nocheck-order --output-delimiter:char --total --zero-terminated | read read",
        "tr": "-cCdst --complement --delete --squeeze-repeats --truncate-set1 | pattern pattern?",
        "sort": """
            -bdfgiMhnRrVcCmsuz -k,--key:key -t,--field-separator:char -S,--buffer-size:memory --parallel:few
            -o,--output:write --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort
            --ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse
            --version-sort --sort:general-numeric|human-numeric|month|numeric|random|version
            --check?quiet|silent|diagnose-first --merge --stable --unique --zero-terminated --debug
            --batch-size:width | read*
        """,
        "uniq": """
            %first -cdDiuz --count --repeated --all-repeated?none|prepend|separate
            --group?separate|prepend|append|both -f,--skip-fields:number -s,--skip-chars:number
            -w,--check-chars:number --ignore-case --unique --zero-terminated -# | read? write?
        """,
        "shuf": """
            -rz -i,--input-range:range -n,--head-count:count -o,--output:write -e,--echo@1 --repeat
            --zero-terminated &-r,--repeat>-n,--head-count | read? | text*
        """,
        "tsort": "| read?",
        "fold": "-bs -w,--width:number --bytes --spaces -# | read*",
        "fmt": """
            -cstu -p,--prefix:char -w,--width:number -g,--goal:number --crown-margin --tagged-paragraph --split-only
            --uniform-spacing -# | read*
        """,
        "pr": """
            -acdfFjJmrtTv -h,--header:text -l,--length:width -n?columns-of -o,--indent:width -s?char -S?char
            -w,--width:width -W,--page-width:width -# | read*
        """,
        "expand unexpand": "-ai -t,--tabs:widths --initial --all --first-only | read*",
        "column": """
            -tnexdLJ -s,--separator:char -o,--output-separator:char -c,--output-width:width -N,--table-columns:names
            -H,--table-hide:names -R,--table-right:names -O,--table-order:names -E,--table-noextreme:names
            -W,--table-wrap:names -T,--table-truncate:names --table --json --fillrows --keep-empty-lines | read*
        """,
        "colrm": "| number? number?",
        "look": "-adf -t:char | pattern read?",
        "grep egrep fgrep": "+grep",
        "zgrep zegrep zfgrep": """
            -EFGPiyvwxcHhnlLoqsabI --ignore-case --count --line-number --word-regexp --invert-match --extended-regexp
            --fixed-strings --files-with-matches --only-matching --quiet -e,--regexp:pattern@1
            -A,--after-context:number -B,--before-context:number -C,--context:number -m,--max-count:number -# |
            pattern read+ | read+
        """,
        "rg": """
            -.nNiSswxvcloHIhqFPUaub0pV -# -e,--regexp:pattern@1 -f,--file:read@1 -g,--glob:glob --iglob:glob
            -t,--type:name -T,--type-not:name --type-add:text --type-clear:name --type-list@2 --files@2
            -A,--after-context:number -B,--before-context:number -C,--context:number -m,--max-count:number
            -M,--max-columns:number --max-columns-preview --max-depth,-d,--maxdepth:number --max-filesize:number
            -j,--threads:few -E,--encoding:name -r,--replace:pattern --sort:none|path|modified|accessed|created
            --sortr:none|path|modified|accessed|created --color:never|auto|always|ansi --colors:text
            --context-separator:char --field-match-separator:char --field-context-separator:char --path-separator:char
            --ignore-file:read --dfa-size-limit:memory --regex-size-limit:memory --engine:default|pcre2|auto
            --line-number --no-line-number --ignore-case --smart-case --case-sensitive --word-regexp --line-regexp
            --invert-match --count --count-matches --files-with-matches --files-without-match --only-matching
            --with-filename --no-filename --quiet --fixed-strings --no-fixed-strings --pcre2 --no-pcre2 --multiline
            --multiline-dotall --no-multiline --text --no-text --unrestricted --byte-offset --null --null-data
            --pretty --heading --no-heading --hidden --no-hidden --no-ignore --no-ignore-vcs --no-ignore-parent
            --no-ignore-global --no-ignore-dot --no-ignore-exclude --no-ignore-files --no-ignore-messages --ignore
            --no-config --no-messages --no-follow --one-file-system --column --no-column --trim --no-trim
            --vimgrep --json --stats --no-stats --passthru --passthrough --crlf --mmap --no-mmap --line-buffered
            --block-buffered --debug --trace --no-unicode --auto-hybrid-regex --glob-case-insensitive --no-require-git
            --include-zero --binary --no-binary --no-encoding --no-pre --no-search-zip --no-context-separator
            --pcre2-version | pattern read* | read* | walked*
        """,
        "diff": """
            -abBcdeEinNpqrstTuwyZ -CU:number --context,--unified?number -F,--show-function-line:pattern
            -I,--ignore-matching-lines:pattern -L,--label:text -S,--starting-file:name -W,--width:width
            -x,--exclude:glob -X,--exclude-from:read -D,--ifdef:name --text --ignore-space-change --ignore-blank-lines
            --minimal --ed --ignore-tab-expansion --ignore-case --rcs --new-file --unidirectional-new-file
            --show-c-function --brief --recursive --report-identical-files --expand-tabs --initial-tab
            --ignore-all-space --side-by-side --ignore-trailing-space --normal --left-column --suppress-common-lines
            --no-dereference --strip-trailing-cr --suppress-blank-empty --speed-large-files --no-ignore-file-name-case
            --ignore-file-name-case --tabsize:width --horizon-lines:number --line-format:printed
            --old-line-format:printed --new-line-format:printed --unchanged-line-format:printed --palette:text +color -#
            | read read
        """,
        "cmp": """
            -bls --print-bytes --verbose --quiet --silent -i,--ignore-initial:numbers -n,--bytes:number | read read?
            number? number?
        """,
        "sed gsed": """
            -nErsuzb -e,--expression:sed@1 -l,--line-length:number -i,--in-place?suffix!o --quiet --silent
            --regexp-extended --separate --unbuffered --null-data --posix --debug --sandbox --binary
            | sed read* | read*
        """,
        "awk gawk mawk nawk": """
            %leading -F,--field-separator:text -v,--assign:assignment --posix --traditional --re-interval | awk
            undashed*
        """,
        "jq": """
            -rcnsSeajMCRhV --raw-output --compact-output --null-input --slurp --sort-keys --exit-status --ascii-output
            --join-output --monochrome-output --color-output --raw-input --raw-output0 --tab --unbuffered --stream
            --stream-errors --seq --indent:few --arg:name+pattern --argjson:name+pattern --slurpfile:name+read
            --rawfile:name+read --args@1 --jsonargs@1 | jq undashed* | jq pattern*
        """,
        # Two programs have this name. For one of them, -s writes files.
        "yq": """
            -rPCMNejyYn -o,--output-format:name -p,--input-format:name -i,--inplace,--in-place!o --raw-output
            --prettyPrint --unwrapScalar --no-colors --colors --exit-status --null-input --yaml-output | yq read* /
            =e|eval yq read*
        """,
        "openssl": {
            "": "",
            "rand": "%words -hex -base64 -out:write | width",
            "version": "-a -v -d -p -b -o -f %words |",
            "dgst": """
                %words -sha1 -sha224 -sha256 -sha384 -sha512 -sha3-256 -sha3-512 -md5 -blake2b512 -blake2s256 -hex -r -c
                -binary | local*
            """,
            "sha1 sha256 sha384 sha512 md5": "%words -hex -r -c -binary | local*",
            # Not -out, -passin, -engine, -config. A name with a colon would be an address.
            "req": "%words -in:local -inform:name -noout -text -subject -pubkey -verify -modulus &>-in |",
            "crl": "%words -in:local -inform:name -noout -text -issuer -lastupdate -nextupdate -fingerprint &>-in |",
            "rsa ec pkey": """
                %words -in:local -inform:name -noout -text -pubin -pubout -check -modulus -text_pub -pubcheck &>-in |
            """,
            "verify": "%words -CAfile:local -untrusted:local -partial_chain -purpose:name -verbose | local+",
            "asn1parse": "%words -in:local -inform:name -i -dump -offset:number -length:number &>-in |",
            "base64": "%words -in:local -d -e -A &>-in |",
            "ciphers": "%words -v -V -s -tls1_2 -tls1_3 | names?",
            "x509": """
                %words -in:local -inform:name -noout -text -subject -issuer -dates -enddate -startdate -fingerprint
                -sha256 -sha1 -serial -pubkey -email -hash -modulus -checkend:number -ext:names -nameopt:names |
            """,
        },
        "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum b3sum cksum shasum": "+checksum",
        "md5": "-qrpn -s:text | read*",
        "base64 base32 basenc": """
            -diDn --decode --ignore-garbage -w,--wrap,-b:number -i:read -o,--output:write --base64 --base64url
            --base32 --base32hex --base16 --base2msbf --base2lsbf --z85 | read?
        """,
        "od": """
            -abcdfhilosxv -A,--address-radix:d|o|x|n -j,--skip-bytes:number -N,--read-bytes:number -S,--strings?number
            -t,--format:name -w,--width?width --output-duplicates --traditional --endian:big|little | read*
        """,
        "hexdump hd": """
            -bcCdovxX -e:printed -n,--length:number -s,--skip:number --no-squeezing --canonical
            --color?always|never|auto -L?always|never|auto | read*
        """,
        "xxd": """
            %words %first -a -b -C -d -e -E -h -i -p -ps -plain -u -v -autoskip -bits -include -postscript -uppercase
            -c,-cols:number -g,-groupsize:number -l,-len:number -n,-name:name -o:number -s,-seek:number
            -R:always|never|auto | read? write?
        """,
        "strings": """
            %at -afwdhvV -n,--bytes:number -o -t,--radix:d|o|x -e,--encoding:s|S|b|l|B|L --all --print-file-name
            --include-all-whitespace --data -s,--output-separator:char -U:default|locale|escape|hex|highlight|invalid
            -# | object*
        """,
        "iconv": """
            -clsV -f,--from-code:charset -t,--to-code:charset -o,--output:write --list --silent --verbose | read*
        """,
        "zcat gzcat bzcat xzcat zstdcat lzcat": "+zcat",
    },
    _TEXT_GROUPS,
)


# -- Programs that look at files and directories, make, copy, pack and unpack them.


_FILE_GROUPS = {
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

FILE_PROGRAM_SPECS: ProgramSpecTable = expand_table_groups(
    {
        "ls dir vdir": """
            -aAbBcCdDfFgGhiklmnNopqQrsStuUvxXZ1WOey -R,--recursive@1 -I,--ignore:ignored
            -w,--width:width -T,--tabsize:width --all
            --almost-all --author --escape --ignore-backups --directory --dired --classify?always|never|auto
            --file-type --format:across|commas|horizontal|long|single-column|verbose|vertical --full-time
            --group-directories-first --no-group --human-readable --si --hide:glob --hyperlink?always|never|auto
            --indicator-style:none|slash|file-type|classify --inode --kibibytes --numeric-uid-gid
            --literal --hide-control-chars --show-control-chars --quote-name --quoting-style:name --reverse
            --size --sort:none|size|time|version|extension|width|name --time:name --time-style:printed --context --zero
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
            --one-file-system --null --time?atime|access|use|ctime|status --time-style:printed | walked*
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
        "test [": """
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
        # Not -N: it unpacks to a name that stands in the archive. Not -r: it replaces every file, those in .git, too.
        "gzip": """
            +packer -n -l,--list@1^list -d,--decompress,--uncompress^unpack --no-name --rsyncable |
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
    _FILE_GROUPS,
)

TAR_SPECS: ProgramSpecTable = expand_table_groups(
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
        %at !w -c,--create +tar -f,--file:local-write -C,--directory:inside --sort:name --mtime:text --format:name
        --owner:name --group:name | source*
    """,
        "-r -u --append --update": """
        %at !w -r,-u,--append,--update +tar -f,--file:local-write -C,--directory:inside | source*
    """,
    },
    _FILE_GROUPS,
)
"""The forms of tar, by the option that says what it does."""


# -- Programs that print, compute, and tell about the machine, its users and processes.


SYSTEM_PROGRAM_SPECS: ProgramSpecTable = {
    "echo expr true false": "%plain | pattern*",
    "printf": "%plain | printed pattern*",
    "factor": "| factored*",
    # Busybox counts for ever in steps of nothing. In small steps, only a short way.
    "seq": """
        %negative -w,--equal-width -s,--separator:char -f,--format:printed | whole whole? / whole step whole /
        small small? / small small-step small
    """,
    "numfmt": """
        -z -d,--delimiter:char --field:numbers --format:printed --from:none|auto|si|iec|iec-i
        --to:none|auto|si|iec|iec-i --from-unit:number --to-unit:number --grouping --header?number
        --invalid:abort|fail|warn|ignore --padding:width
        --round:up|down|from-zero|towards-zero|nearest --suffix:name --debug | number*
    """,
    "sleep": "| pause",
    "date": """
        -uRnj -d,--date:when -I,--iso-8601?date|hours|minutes|seconds|ns --rfc-3339:date|seconds|ns --rfc-email --utc
        --universal --debug --resolution -r,--reference:listed -v:pattern | format?
    """,
    "cal ncal": """
        -1369hjmsywYbeMNopS3 -n,--months:few -A:few -B:few -C  -d:name -H:name --one --three --sunday
        --monday --julian --year --twelve --week?number --color?always|never|auto | name*
    """,
    "hostname": "-aAdfiIsyv --alias --all-fqdns --all-ip-addresses --domain --fqdn --long --ip-address --short |",
    "uname": """
        -asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor
        --hardware-platform --operating-system |
    """,
    "arch nproc whoami users logname hostid tty": "-s --all --ignore:number --silent --quiet |",
    "uptime": "-psrc --pretty --since --raw |",
    "id": "-agGnruzpZ --group --groups --name --real --user --zero --context | name*",
    "groups": "| name*",
    "who": """
        -abdHlmpqrstTuw --all --boot --dead --heading --login --process --count --runlevel --short --time --users
        --mesg --writable --message | name? name?
    """,
    "w": "-hsfouiVp --no-header --short --from --old-style --ip-addr --pids | name?",
    "last": """
        -aFiRwx -# -n,--limit:number -s,--since:text -t,--until:text -p,--present:text --fulltimes --hostlast
        --nohostname --system --time-format:name | name*
    """,
    "free": """
        -bkmghltvwL --bytes --kilo --mega --giga --tera --kibi --mebi --gibi --human --si --lohi --total --wide --line
        -c,--count:few -s,--seconds:few &-s,--seconds>-c,--count |
    """,
    "vmstat": """
        -afmnsdDtwy -p,--partition:name -S,--unit:k|K|m|M --active --forks --slabs --one-header --stats --disk
        --disk-sum --timestamp --wide | / few few
    """,
    "pstree": """
        -aAclgGhnNpsStTuUZ -H:pid --arguments --ascii --compact-not --show-pids --long --numeric-sort | name?
    """,
    "pgrep": """
        -aAcfilnovwx -d,--delimiter:char -u,--euid:names -U,--uid:names -g,--pgroup:names -G,--group:names
        -P,--parent:numbers -s,--session:names -t,--terminal:names -r,--runstates:name --list-name --list-full --full
        --exact --newest --oldest --count --inverse --ignore-case --lightweight | pattern?
    """,
    "pidof": "-csxqtz -o:name -S:char | name+",
    # If the first reading fails, ps reads its words without their dashes, and then `e` shows environments. So `-e`
    # comes only with options that never fail.
    "ps": """
        %apart -AacdFfHjLlmNVwyZM -T^some -e@1^all -aux.,-auxw.,-auxww.,-ax.,-axu.,-axf.,-axw.,-axww.^second -oO:columns
        --format:columns -p,--pid,--ppid,-q,--quick-pid:numbers^some
        -u,-U,-g,-G,-t,-C,-s,--user,--User,--group,--Group,--tty,--sid:names^some
        --sort:columns -k:columns --forest --headers --no-headers --no-heading
        --cols,--columns,--width,--rows,--lines:number --cumulative --info | letters? / letters columns | =f|w|ww?
    """,
    # Only the names of the signals: another process belongs to somebody else.
    "kill": "-l,-L,--list@1 | nothing+ | signal?",
    "which": "-aspi --all --skip-dot --skip-tilde --show-dot | name+",
    "type": "-atPpf | name+",
    "whereis": "-bmsul | name+",
    "lscpu": """
        -abcCeEpJxyBV --all --online --offline --json --hex --physical --bytes --parse?names --extended?names
        --caches?names |
    """,
    "lsblk": """
        -abdDfhiJlmnNOpPrsStTVzAM -o,--output:names -I,--include:numbers -e,--exclude:numbers -x,--sort:name --all
        --bytes --nodeps --fs --json --list --perms --noheadings --output-all --paths --pairs --raw --inverse
        --topology --tree?name --ascii |
    """,
    "lsmod": "|",
    "lsusb": "-vtV -s:name -d:name --verbose --tree |",
    "lspci": "-vktnbmDx -s:name -d:name |",
    "lsb_release": "-vidrcas --version --id --description --release --codename --all --short |",
    "dmesg": """
        -HTtxkuLrPdeJ -l,--level:names -f,--facility:names --human --ctime --notime --decode --kernel --userspace
        --color?always|never|auto --nopager --since:text --until:text --time-format:name --reltime |
    """,
    "lsof": """
        -bChlnNoPRtUVwX -i?address@1 -s?name -F?name -T?name | object+ | address?
    """,
    "ss": """
        -tulnpaosemihxwd0460STHBOZzbMQ -f,--family:name -A,--query,--socket:names --tcp --udp --listening --numeric
        --processes --all --options --summary --extended --memory --info --raw --unix --ipv4 --ipv6 --no-header
        --oneline | socket*
    """,
    # Without -n, it looks up the names of addresses, unless it only counts.
    "netstat": """
        -tulpaeoMNCFvWLx46 -n,--numeric@1 -s,-i,--statistics,--interfaces@1^count -r,--route^route -g^groups -f:name
        -I:name --tcp --udp --listening --programs --all --extend --timers --wide | !n |
    """,
    "locale": "-ackV --all-locales --category-name --keyword-name --verbose | name*",
    "getconf": "-a | name? / name listed",
    "ip": {
        "": "-4,-6,-br,-brief,-c,-color,-d,-details,-o,-oneline,-s,-statistics,-j,-json,-p,-pretty %words",
        "a addr address link l route r neigh n rule": {"": "%alone", "show list ls": "| name*", "get": "| address"},
    },
    "ifconfig": "-as | name?",
    "route": "-ne -nee. |",
}
