#!/bin/sh
# Runs the tests on every Python 3.11 to 3.14 found on the PATH or under pyenv, each in a venv of its own.
# Arguments go to pytest. Fails if one of them fails, or if there is none.
set -u
cd "$(dirname "$0")/.."

find_python() {
    for candidate in "python3.$1" "$HOME"/.pyenv/versions/3."$1"*/bin/python3."$1" python3; do
        if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (3, $1))" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
}

found="" failed=""
for minor in 11 12 13 14; do
    python=$(find_python "$minor")
    if [ -z "$python" ]; then
        echo "== Python 3.$minor: not on this machine"
        continue
    fi
    found="$found 3.$minor"
    make test PYTHON="$python" VENV=".venvs/3.$minor" ARGS="$*" || failed="$failed 3.$minor"
done

[ -n "$found" ] || { echo "no Python 3.11 to 3.14 found" >&2; exit 1; }
[ -z "$failed" ] || { echo "== failed on:$failed" >&2; exit 1; }
echo "== passed on:$found"
