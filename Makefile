# Everything happens in .venv, with the versions and hashes of the locks.
#
#   PYTHON=…      the Python to make .venv with (otherwise the first from 3.11 on in PATH)
#   ARGS=…        further arguments for what a target runs: make test ARGS="-k claim"
#   PROCESSES=4   how many processes the tests are spread over; most of them wait most of the time

BIN := .venv/bin
PROCESSES ?= 4
ARGS ?=
# Their presence says that .venv holds what the locks ask for.
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
CODE := $(wildcard src tests bench scripts)
START_CLOCK := begin=$$(date +%s)
STOP_CLOCK = echo "make $@ took $$(( $$(date +%s) - begin )) s"

export PYTHON
# Where this is set, each of the hundreds of processes that tests start would compile Homing anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install run test check format bench bench-scale clauses config pictures lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv with the pinned dependencies and the homing command

run: $(INSTALLED) ## start Homing on SQLite, with a mail catcher and the dashboard
	@$(BIN)/homing up $(ARGS)

test: $(INSTALLED_DEV) ## obtain and start the servers that the tests need, and run them all
	@$(START_CLOCK); \
	$(BIN)/python -m pytest -p tests.rerun -n $(PROCESSES) --dist worksteal $(ARGS); tests=$$?; \
	if test $$tests -eq 1; then $(BIN)/python -m tests.rerun $(ARGS); tests=$$?; fi; \
	$(BIN)/python scripts/clauses.py; clauses=$$?; \
	$(STOP_CLOCK); \
	test $$tests -eq 0 && test $$clauses -eq 0

check: $(INSTALLED_DEV) ## format, lint, types, imports and the fast tests, without any server
	@$(START_CLOCK); set -e; \
	$(BIN)/ruff format --check .; \
	$(BIN)/ruff check .; \
	$(BIN)/mypy $(CODE); \
	$(BIN)/lint-imports; \
	$(BIN)/python -m pytest -q -n $(PROCESSES) -m "not slow" --without-servers $(ARGS); \
	$(STOP_CLOCK)

format: $(INSTALLED_DEV) ## format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(INSTALLED_DEV) ## measure mails, webhooks and brokers beside their limits and their peers
	@$(BIN)/homing bench mail $(ARGS); mail=$$?; \
	$(BIN)/homing bench webhook $(ARGS); webhook=$$?; \
	$(BIN)/homing bench emails $(ARGS); emails=$$?; \
	$(BIN)/homing bench notifications $(ARGS); notifications=$$?; \
	$(BIN)/homing bench router $(ARGS); router=$$?; \
	$(BIN)/homing bench mongo; mongo=$$?; \
	$(BIN)/homing bench create $(ARGS); create=$$?; \
	$(BIN)/homing bench scale; scale=$$?; \
	$(BIN)/homing bench scale --lane dispatch_jobs; jobs=$$?; \
	test $$mail$$webhook$$emails$$notifications$$router$$mongo$$create$$scale$$jobs = 000000000

bench-scale: $(INSTALLED_DEV) ## measure claims as the table grows to 10,000,000 rows
	@$(BIN)/homing bench scale --rows 10000 --rows 1000000 --rows 10000000 $(ARGS)
	@$(BIN)/homing bench scale --lane dispatch_jobs --rows 10000 --rows 1000000 --rows 10000000 $(ARGS)
	@$(BIN)/homing bench search --rows 5000000

clauses: $(INSTALLED) ## print which clause of docs/contracts.md is proven, by which tests of the last run
	@$(BIN)/python scripts/clauses.py

config: $(INSTALLED) ## write config.default.toml anew from the settings
	@$(BIN)/python -c "from homing.settings import default_config; print(default_config(), end='')" > config.default.toml

pictures: $(INSTALLED_DEV) ## take the pictures of docs/images anew, in Chromium
	@$(BIN)/python scripts/pictures.py docs/images
	@PYTHONPATH=. $(BIN)/python scripts/desk_pictures.py docs/images

lock: ## pin the dependencies again (needs uv; ARGS=--upgrade takes the newest)
	@scripts/lock.sh $(ARGS)

clean: ## remove .venv and caches, and no data
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml scripts/install.sh
	@scripts/install.sh requirements.lock
	@touch $@

# The larger lock holds the smaller one, in the same versions.
$(INSTALLED_DEV): requirements-dev.lock pyproject.toml scripts/install.sh
	@scripts/install.sh requirements-dev.lock
	@touch $(INSTALLED) $@
