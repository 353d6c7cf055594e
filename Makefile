# `make help` lists the targets. All of them use the virtual environment that `make setup` builds.

.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin

# The first interpreter that runs and is new enough.
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$name $(IS_NEW_ENOUGH); then echo $$name; break; fi; done)
endif

# What to test: `make test TESTS=tests/unit/client`.
TESTS ?= tests
# How many files are tested at once. More than cores have tests wait for each other.
WORKERS ?= 2
# How long `make fuzz` goes on with each fuzz test.
FUZZ_SECONDS ?= 60

# Python keeps compiled modules beside their sources, whatever the surroundings say: tests start hundreds of processes,
# and each would compile all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run test cover check proto docs fmt lint type bench torture fuzz lock clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## builds .venv with the three distributions, both programs and all tools; quick where nothing changed
	@$(PYTHON) $(IS_NEW_ENOUGH) || { \
	    echo "Millrace needs Python 3.11 or newer, and $(or $(PYTHON),no python3 on the path) is not;" \
	        "name one with: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/set_up.py "$(VENV)"

run: setup ## sends a log file through two agents into Spark and shows the result: make run [LOG=path]
	@$(BIN)/python examples/access_log/run.py $(if $(LOG),"$(LOG)")

test: setup ## runs the tests, but not the long ones: make test [TESTS=path] [WORKERS=2]
	@$(BIN)/python -m pytest $(TESTS) --numprocesses $(WORKERS) --dist loadfile

cover: setup ## runs the tests and shows which lines they leave out
	@$(BIN)/python -m pytest $(TESTS) --cov --cov-report term-missing

check: lint type test ## runs everything that a change must pass

proto: setup ## makes the generated code anew from protos/
	@$(BIN)/python tools/generate_protos.py

docs: setup ## makes docs/settings.md anew from the settings in the code
	@$(BIN)/python tools/generate_settings_page.py

fmt: setup ## formats the code and mends what the linter can mend
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format --write

lint: setup ## checks style, the one-way imports, the wire contract, and that what is generated is fresh
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/buf format --diff --exit-code
	@$(BIN)/buf lint
	@$(BIN)/python tools/check_breaking.py
	@$(BIN)/python tools/generate_protos.py --check
	@$(BIN)/python tools/generate_settings_page.py --check

type: setup ## checks the types of code and tests
	@$(BIN)/mypy

bench: setup ## measures against a bare gRPC echo, or another checkout: make bench [AGAINST=path]
	@$(BIN)/python tests/bench/run.py $(if $(AGAINST),--against "$(AGAINST)")

torture: setup ## runs the tests that take long: crashes, and random histories
	@$(BIN)/python -m pytest $(TESTS) -m "torture or hypothesis" --hypothesis-profile torture --timeout 3600

fuzz: setup ## feeds random input: make fuzz [FUZZ_SECONDS=60]
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest $(TESTS) -m fuzz --timeout 3600

lock: ## locks the requirements anew, once there is a .venv: make lock [UPGRADE=1]
	@$(BIN)/python tools/lock_requirements.py $(if $(UPGRADE),--upgrade)

clean: ## removes what the other targets made, .venv too
	@rm -rf "$(VENV)" build .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
