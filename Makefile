# `make help` lists the targets. They use the virtual environment that `make setup` creates.

.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin

# The first interpreter on the path that is new enough.
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
ifndef PYTHON
PYTHON := $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$name $(IS_NEW_ENOUGH); then echo $$name; break; fi; done)
endif

# The tests to run: `make test TESTS=tests/unit/client`.
TESTS ?= tests
# The number of test files that run in parallel: three more than cores, since tests wait a third of their time, for
# processes that start, leases that end, and elections.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 3)')
# How long `make fuzz` runs each fuzz test.
FUZZ_SECONDS ?= 60

# Compiled modules are always cached, even if the environment disables it: tests start hundreds of processes, and each
# would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run test cover check proto docs fmt lint type bench torture fuzz lock dist release clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## creates .venv with the three distributions, both programs and all tools; quick if nothing has changed
	@$(PYTHON) $(IS_NEW_ENOUGH) || { \
	    echo "Millrace needs Python 3.11 or newer, and $(or $(PYTHON),no python3 on the path) is not;" \
	        "name one with: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/set_up.py "$(VENV)"

run: setup ## sends a log file through two agents into Spark and shows the result: make run [LOG=path] [ENGINE=jetstream]
	@$(BIN)/python examples/access_log/run.py $(if $(ENGINE),--engine "$(ENGINE)") $(if $(LOG),"$(LOG)")

test: setup ## runs the tests except the long ones: make test [TESTS=path] [WORKERS=4]
	@$(BIN)/python -m pytest $(TESTS) --numprocesses $(WORKERS) --dist loadfile

cover: setup ## runs the tests and reports the lines that they do not cover
	@$(BIN)/python -m pytest $(TESTS) --cov --cov-report term-missing

check: lint type test ## runs everything that a change must pass

proto: setup ## regenerates the code from protos/
	@$(BIN)/python tools/generate_protos.py

docs: setup ## draws diagrams and plots, and builds the site in build/site; with PICTURES=1 also draws the pictures that need a running server
	@$(BIN)/python -m tools.generate_settings_page
	@$(BIN)/python -m tools.generate_errors_page
	@$(BIN)/python -m tools.site.diagrams
	@$(BIN)/python -m tools.site.performance_plots
	@$(if $(PICTURES),$(BIN)/python -m tools.site.terminals)
	@$(if $(PICTURES),$(BIN)/python -m tools.site.console_screenshots)
	@$(if $(PICTURES),$(BIN)/python -m tests.simulation.pictures)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The documentation is in build/site: open build/site/index.html"

fmt: setup ## formats the code and applies the linter's fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format --write

lint: setup ## checks style, import contracts, the wire contract, and that generated files are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/buf format --diff --exit-code
	@$(BIN)/buf lint
	@$(BIN)/python tools/check_breaking.py
	@$(BIN)/python tools/generate_protos.py --check
	@$(BIN)/python -m tools.generate_settings_page --check
	@$(BIN)/python -m tools.generate_errors_page --check

type: setup ## checks the types of code and tests
	@$(BIN)/mypy

bench: setup ## measures performance against a plain gRPC echo server, or another checkout: make bench [AGAINST=path]
	@$(BIN)/python tests/bench/run.py $(if $(AGAINST),--against "$(AGAINST)")

torture: setup ## runs the long tests: crashes and random histories
	@$(BIN)/python -m pytest $(TESTS) -m "torture or hypothesis" --hypothesis-profile torture --timeout 3600

fuzz: setup ## runs the fuzz tests with random input: make fuzz [FUZZ_SECONDS=60]
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest $(TESTS) -m fuzz --timeout 3600

lock: ## locks the requirements and the console's libraries; needs .venv and npm: make lock [UPGRADE=1]
	@$(BIN)/python tools/lock_requirements.py $(if $(UPGRADE),--upgrade)
	@$(BIN)/python tools/vendor_scripts.py $(if $(UPGRADE),--upgrade)

dist: setup ## builds the packages, with checksums and a bill of materials, in dist/
	@$(BIN)/python tools/build_distributions.py

release: setup ## dates the changelog, builds the packages and tags: make release [NEXT=0.2.0 for the version after it]
	@$(BIN)/python -m tools.release $(if $(NEXT),--next "$(NEXT)")

clean: ## removes everything that the other targets created, including .venv
	@rm -rf "$(VENV)" build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
