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

has_uv() {
    uv --version >/dev/null 2>&1
}

complain() {
    if python=$(find_python pass); then
        echo "$python came without its venv module. On Debian and Ubuntu: apt install python3-venv" >&2
    elif [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON is no Python 3.11 or newer, or cannot be run." >&2
    else
        echo "Homing needs Python 3.11 or newer, and there is none in PATH (or name one: make PYTHON=/path/to/python3)." >&2
    fi
    exit 1
}

make_venv() {
    if python=$(find_python 'import ensurepip, venv'); then
        echo "making .venv with $python ..."
        "$python" -m venv --clear .venv
    elif has_uv; then
        uv venv --quiet --clear --python '>=3.11' .venv
    else
        complain
    fi
}

with_uv() {
    command=$1
    shift
    uv pip "$command" --python .venv/bin/python "$@"
}

# Isolated, because pip takes what it finds in PYTHONPATH for installed. A .venv that uv made has no pip.
with_pip() {
    .venv/bin/python -I -m pip --version >/dev/null 2>&1 || .venv/bin/python -I -m ensurepip >/dev/null
    .venv/bin/python -I -m pip --disable-pip-version-check "$@"
}

# Locks are complete, so nothing is resolved: a resolver takes a newer release than the pinned one for the
# `psycopg[pool]` that a package asks for, and then refuses it, because it has no hash. The build backend is among
# the pinned packages, so nothing else is fetched for Homing.
install() {
    $installer install --quiet --no-deps --require-hashes -r "$lock" &&
        $installer install --quiet --no-deps --no-build-isolation -e .
}

# Who ends this waits until the installer has ended, or it would write into what the next make begins.
trap 'exit 1' INT TERM

# make marks a .venv that is finished, and only such a one is added to: both installers take a package for installed
# that they left half unpacked. The Python behind it may be gone as well, as after an upgrade of the system.
kept=no
if [ -e .venv/.installed ] && .venv/bin/python -c '' 2>/dev/null; then
    kept=yes
fi
rm -f .venv/.installed .venv/.installed-dev
[ $kept = yes ] || make_venv
echo "installing $(grep -c '==' "$lock") pinned packages into .venv ..."

# uv takes two seconds where pip takes twenty, but it may be a dead shim or know another index. What it leaves half
# unpacked, pip would take for installed.
installer=with_pip
if has_uv; then
    installer=with_uv
fi
if ! install; then
    [ $installer = with_uv ] || exit 1
    echo "uv could not install this, trying pip ..." >&2
    installer=with_pip
    make_venv
    install
fi

# What nobody resolved may not fit together: a lock that was edited by hand, or is not for this Python, or packages
# that are in .venv and in no lock (any more). An empty .venv tells the last from the others.
if ! problems=$($installer check 2>&1); then
    if [ $kept = yes ]; then
        printf '.venv does not fit together, making it anew:\n%s\n' "$problems" >&2
        exec scripts/install.sh "$lock"
    fi
    printf '%s does not fit together, or not on this Python; make lock pins everything anew:\n%s\n' \
        "$lock" "$problems" >&2
    exit 1
fi
echo ".venv is ready"
