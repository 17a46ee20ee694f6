#!/bin/sh
# install.sh LOCK: makes .venv where there is none, and puts what LOCK pins into it, and Homing
# itself, editable. Needs Python 3.11 or newer with its venv module, and nothing else; uv, where it
# is there, makes it quicker and stands in for a Python that is too old or came without venv.
set -eu
cd "$(dirname "$0")/.."
lock=$1

# An executable may be a shim that only complains, so each one is asked.
find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
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
# Locks are complete, so nothing is resolved: a resolver takes a newer release than the pinned one for the
# `psycopg[pool]` that a package asks for, and then refuses it, because it has no hash.
install() {
    if ! uv --version >/dev/null 2>&1; then
        with_pip "$@"
    elif ! uv pip install --quiet --no-deps --python .venv/bin/python "$@"; then
        echo "uv could not install this, trying pip ..." >&2
        with_pip "$@"
    fi
}

with_pip() {
    make_pip
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "$@"
}

make_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
}

# What nobody resolved may not fit together: a lock that was edited by hand, or made for another Python.
check() {
    if uv --version >/dev/null 2>&1; then
        uv pip check --quiet --python .venv/bin/python
    else
        make_pip
        .venv/bin/python -m pip check --disable-pip-version-check >&2
    fi
}

# make marks a .venv that is finished. One without a mark is made anew, because both installers take a package for
# installed that they left half unpacked. The Python behind it may be gone as well, as after an upgrade of the system.
if [ ! -e .venv/.installed ] || ! .venv/bin/python -c '' 2>/dev/null; then
    make_venv
fi
rm -f .venv/.installed .venv/.installed-dev
echo "installing $(grep -c '==' "$lock") pinned packages into .venv ..."
install --require-hashes -r "$lock"
# The build backend is among the pinned packages, so nothing else is fetched for this.
install --no-build-isolation -e .
if ! problems=$(check 2>&1); then
    printf '%s does not fit together:\n%s\n' "$lock" "$problems" >&2
    exit 1
fi
