# Every target that runs something does its own set-up in .venv. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.installed
PEERS  := .venv-peers
ARGS   ?=
# Two workers for two cores; the tests marked `soak` run in test-all alone.
PYTEST := $(BIN)/pytest -q -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup run test check test-all bench bench-smoke bench-dataflows peers lint format docs lock clean-shm clean-cache

help:  ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP)  ## create .venv from the lock file, compile and cache the kernels

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clusterd needs Python 3.11 or later; set PYTHON=")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	$(PY) -m clusterd warm
	touch $(STAMP)

run: setup  ## the main job on real data; ARGS=--serve leaves the replica up
	$(PY) -m bench.run $(ARGS)

test: setup lint  ## lint, types, all tests but the soak-like ones
	$(PYTEST) -m 'not soak' $(ARGS)

check: setup lint  ## what to run before a commit: lint, types, and the tests without processes
	$(PYTEST) -m 'not soak and not slow and not e2e' $(ARGS)

test-all: setup lint  ## every test
	$(PYTEST) $(ARGS)

lint: setup  ## ruff (format and rules) and mypy --strict
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup  ## let ruff rewrite the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup peers  ## every benchmark; JSON lines go to bench/results/
	$(PY) -m bench $(ARGS)

bench-smoke: setup  ## every benchmark, small, as a test that they still run
	$(PY) -m bench --smoke $(ARGS)

bench-dataflows: setup peers  ## views loaded and changed, with Pathway beside them
	$(PY) -m bench dataflows $(ARGS)

bench-%: setup  ## one benchmark, such as bench-isolation or bench-peeks
	$(PY) -m bench $* $(ARGS)

# An environment of its own: it pins many packages. What cannot be installed is left out, and said to be.
peers:  ## Pathway, for bench-dataflows
	test -e $(PEERS)/.installed || ( $(PYTHON) -m venv $(PEERS) \
	  && $(PEERS)/bin/pip install --quiet --requirement bench/peers-requirements.txt \
	  && touch $(PEERS)/.installed ) || { rm -rf $(PEERS); echo "Pathway cannot be installed" >&2; }

docs: setup  ## write docs/functions.md and docs/introspection.md anew
	$(PY) -m controller_proto.functions.page
	$(PY) -m clusterd.introspection.document

lock: setup  ## resolve the lock file anew
	$(BIN)/pip-compile --quiet --all-extras --strip-extras --no-annotate --no-header --no-emit-options \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --upgrade \
	  --output-file requirements.lock pyproject.toml

clean-shm: setup  ## remove the segments of every instance of this user that has ended
	$(PY) -m clusterd sweep

clean-cache:  ## forget compiled kernels
	find . -path ./$(VENV) -prune -o -path ./$(PEERS) -prune -o \( -name '*.nbi' -o -name '*.nbc' \) -print0 | xargs -0 -r rm -f
