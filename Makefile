# The front door. Every target sets up what it needs (virtual environment, locked packages, Java) without asking.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"
# Only queries with state need Java, so a machine where none can be had goes on without it.
FIND_JAVA := $(BIN)/python deploy/java-home >/dev/null || true
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Containers set it. Without bytecode each worker of pytest compiles all tests anew, which takes it five seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check soak static bench experiment compose-test java lock clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## An airline, a library, a shop and a telescope on five peers, with a kill -9 in the middle of each.
	@$(FIND_JAVA)
	@$(BIN)/peer demo --for 10

test: $(READY) ## Run all that a commit must pass: formatting, lint, types and every test, containers where they changed.
	@$(FIND_JAVA)
	@$(BIN)/python -m tests.suite

check: $(READY) ## Run the quick part of it: formatting, lint, types, fast tests; takes less than a minute.
	@$(BIN)/python -m tests.suite check

soak: $(READY) ## Play all seeds of all scenarios, hunt all planted bugs, run every test at its largest; goes on where it was.
	@$(FIND_JAVA)
	@$(BIN)/python -m tests.soak $(ARGS)

static: $(READY)
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy

bench: $(READY) ## Measure everything here, and other systems beside it; ends with one table of ratios.
	@$(FIND_JAVA)
	@deploy/bench-venv .venv-bench || true # Without it only the comparison with Pathway is missing.
	$(BIN)/python -m experiments.benches.all

experiment: $(READY) ## Run an experiment of docs/experiments.md: make experiment E=sand.figure_6 ARGS="--scale 0.1".
	@$(FIND_JAVA)
	$(BIN)/python -m experiments.$(or $(E),$(error Say which, as in: make experiment E=sand.figure_6)) $(ARGS)

compose-test: $(READY) ## Run the containers of docker-compose.yml: cut one off, kill others in the middle of queries, tear down.
	$(BIN)/python deploy/compose-test

java: $(READY) ## Find Java 17 or newer, or install one into the virtual environment; print its home.
	@$(BIN)/python deploy/java-home

lock: $(READY) ## Renew the lock files from pyproject.toml, with the newest versions it allows.
	$(LOCK) --upgrade pyproject.toml -o requirements.lock
	$(LOCK) --upgrade pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) --upgrade --group build -c requirements-dev.lock -o requirements-build.lock
	$(LOCK) --upgrade --group java -o requirements-java.lock
	$(LOCK) --upgrade --group bench -o requirements-bench.lock

clean: ## Remove what the targets made, the virtual environment included.
	rm -rf $(VENV) .venv-bench .soak.json .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements-dev.lock pyproject.toml peerd/__init__.py deploy/make-venv
	@deploy/make-venv $(VENV)
	@touch $@
