# Every target sets up what it needs: a virtual environment in .venv with the pinned
# dependencies of requirements/dev.lock. Nothing outside this directory is changed, but for
# programs of the system that the tests need and do not find: see tools/system.sh.

# The Python that .venv is made with; left out, tools/python.sh chooses.
PYTHON ?=
# Processes that pytest spreads the tests over; 0 runs them in this one.
WORKERS ?= auto
# Extra arguments for pytest: make test ARGS="-k lease -x"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/dev.lock
LOCK_VENV := .venv-lock
# The extras that the lock pins. A store or pipeline that gets its tests adds its extra here.
LOCK_EXTRAS := cli dev rocksdb server spark
# Directories with Python in them; of the examples only some are.
CODE = $(wildcard src tests benchmarks tools) $(if $(wildcard examples/*.py),examples)
BENCHMARKS = $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests and benchmarks start hundreds of processes: what they import is compiled once, not in each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo serve test check test-long bench docs format lock clean \
	format-check lint types layers unit tests system

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything installed

$(READY): $(LOCK) pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		python=$$(tools/python.sh $(PYTHON)) && $$python -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --use-pep517 --require-hashes --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## A server, two workers and 440,000 mixed jobs, in about a minute
	$(BIN)/penstock demo

serve: $(READY) ## Start the network server
	$(BIN)/penstock serve

test: format-check lint types layers tests ## Run everything but the long tests

check: format-check lint types layers unit ## Format, lint, types, layers, unit tests: the fast loop

test-long: $(READY) system ## Repeat faults and random histories at length, soak for 30 minutes
	PENSTOCK_LONG=1 $(BIN)/python -m pytest -m long --timeout 0 $(ARGS)

bench: $(READY) ## Run every benchmark in benchmarks/
	@test -n "$(BENCHMARKS)" || { echo "there is no benchmark in benchmarks/" >&2; exit 1; }
	@set -e; for module in $(subst /,.,$(BENCHMARKS:.py=)); do \
		echo "== $$module"; $(BIN)/python -m $$module; \
	done

docs: $(READY) ## Write the generated pages; check that every link leads somewhere
	$(BIN)/python -m tools.docs

format: $(READY) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

lock: ## Pin the newest dependencies in requirements/dev.lock, and the newest peers
	test -x $(LOCK_VENV)/bin/pip-compile || { \
		$$(tools/python.sh $(PYTHON)) -m venv $(LOCK_VENV) && \
		$(LOCK_VENV)/bin/python -m pip install --quiet 'pip-tools==7.6.2'; }
	CUSTOM_COMPILE_COMMAND="make lock" $(LOCK_VENV)/bin/pip-compile --quiet --upgrade \
		--generate-hashes --strip-extras --no-emit-options \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		$(addprefix --extra ,$(LOCK_EXTRAS)) \
		--output-file $(LOCK) pyproject.toml requirements/dev.in
	@# The peers of a benchmark, each set for an environment of its own.
	set -e; for peers in $(basename $(wildcard benchmarks/peers-*.in)); do \
		CUSTOM_COMPILE_COMMAND="make lock" $(LOCK_VENV)/bin/pip-compile --quiet --upgrade \
			--generate-hashes --strip-extras --no-emit-options \
			--no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
			--output-file $$peers.txt $$peers.in; \
	done

clean: ## Remove everything that can be made again
	rm -rf $(VENV) $(LOCK_VENV) build dist .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache benchmarks/.peers
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

# The steps of check and test, each of which can be run alone.
format-check: $(READY)
	$(BIN)/ruff format --check --quiet $(CODE)

lint: $(READY)
	$(BIN)/ruff check --quiet $(CODE)

types: $(READY)
	$(BIN)/mypy $(CODE)

layers: $(READY)
	$(BIN)/lint-imports --no-logo

unit: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) tests/unit $(ARGS)

tests: $(READY) system
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

system:
	@tools/system.sh
