# Everything that one does here is a target; each makes its environment first where it is missing.

# The first Python that runs and is one of ours (a version manager may offer names that do not run).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ENV := .venv/.complete
ARGS ?=
WORKERS ?= 2

# Nodes start in half of the time when what they import is compiled already.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test check format sim bench fuzz mutate soak dist lock docs clean
.DEFAULT_GOAL := test

env: $(ENV)

$(ENV): requirements.lock pyproject.toml tests/project/wheelhouse.py
	@test -n "$(PYTHON)" || { echo "make env: needs Python 3.11, 3.12 or 3.13 (set PYTHON=...)" >&2; exit 1; }
	@echo "make env: installing into .venv with $(PYTHON) (about a gigabyte, once)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m tests.project.wheelhouse
	@touch $@

demo: $(ENV)
	$(BIN)/broadsheet demo $(ARGS)

test: $(ENV)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.project.citations

format: $(ENV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(ENV)
	$(BIN)/python -m simulator all $(ARGS)

bench: $(ENV)
	$(BIN)/broadsheet bench all $(ARGS)

fuzz: $(ENV)
	$(BIN)/python -m simulator fuzz $(ARGS)

# Hours of work at low priority, resumable: make mutate SAMPLE=200 SEED=1 ARGS="log wire"
SAMPLE ?= 200
SEED ?= 1

mutate: $(ENV)
	$(BIN)/python -m tests.mutate --sample $(SAMPLE) --seed $(SEED) --workers $(WORKERS) $(ARGS)

soak: $(ENV)
	$(BIN)/python -m pytest -m "soak or windows" --timeout 0 $(ARGS)

dist: $(ENV)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --wheel --sdist

docs: $(ENV)
	$(BIN)/python -m tests.project.pages

# Rewrites requirements.lock from pyproject.toml: for every supported Python, with hashes, without index addresses.
lock: $(ENV)
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-emit-find-links --output-file requirements.lock

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
