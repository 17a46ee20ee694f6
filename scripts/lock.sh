#!/bin/sh
# Pins every dependency with its hashes: requirements.lock to run, requirements-dev.lock to develop.
# Versions stay as they are where they can; `make lock ARGS=--upgrade` takes the newest. Neither names the index it was made with, so they serve everywhere.
set -eu
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
    echo "make lock needs uv (any other target does without): python3 -m pip install uv" >&2
    exit 1
fi

# The build backend is pinned as well, so that installing Homing itself fetches nothing unseen.
build_requirements() {
    uv run --quiet --no-project --python '>=3.11' python -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], "editables", sep="\n")'
}

compile_lock() {
    build_requirements | uv pip compile pyproject.toml - --quiet --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header "$@"
}

# The smaller lock follows the larger one, so that both hold the same versions.
compile_lock "$@" --all-extras --group dev --output-file requirements-dev.lock
compile_lock "$@" --all-extras --constraint requirements-dev.lock --output-file requirements.lock

if grep -nE '://|file:|^-' requirements.lock requirements-dev.lock; then
    echo "a lock names a place of this machine" >&2
    exit 1
fi
