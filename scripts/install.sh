#!/bin/sh
# install.sh LOCK: makes .venv where there is none, and puts what LOCK pins into it, and Homing
# itself, editable. Needs Python 3.11 or newer with its venv module, and nothing else; uv, where it
# is there, makes it quicker and stands in for a Python that is too old or came without venv.
set -eu
cd "$(dirname "$0")/.."
lock=$1

# An executable may be a shim that only complains, so each one is asked.
find_python() {
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if "$name" -c "import sys; sys.version_info >= (3, 11) or sys.exit(1); $1" 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

complain() {
    if python=$(find_python pass); then
        echo "$python came without its venv module. On Debian and Ubuntu: apt install python3-venv" >&2
    else
        echo "Homing needs Python 3.11 or newer, and there is none in PATH (or name one: make PYTHON=/path/to/python3)." >&2
    fi
    exit 1
}

make_venv() {
    if python=$(find_python 'import ensurepip, venv'); then
        "$python" -m venv --clear .venv
    elif uv --version >/dev/null 2>&1; then
        uv venv --quiet --clear --python '>=3.11' .venv
    else
        complain
    fi
}

# uv takes two seconds where pip takes twenty, but it may be a dead shim or know another index.
install() {
    if ! uv --version >/dev/null 2>&1; then
        with_pip "$@"
    elif ! uv pip install --quiet --python .venv/bin/python "$@"; then
        echo "uv could not install this, trying pip ..." >&2
        with_pip "$@"
    fi
}

with_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

# Also when the Python behind it is gone, as after an upgrade of the system.
if ! .venv/bin/python -c '' 2>/dev/null; then
    make_venv
fi
echo "installing $(grep -c '==' "$lock") pinned packages into .venv ..."
install --require-hashes -r "$lock"
# The build backend is among the pinned packages, so nothing else is fetched for this.
install --no-deps --no-build-isolation -e .
