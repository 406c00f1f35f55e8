# `make demo` and `make test` set up everything; they need python3, make and a package registry.

PYTHON     ?= python3
JOBS       ?= 2
OLD_TRITON := 3.6.0

PY    := .venv/bin/python
PIP   := $(PY) -m pip install -qq --disable-pip-version-check
LANES := $(PY) tests/lanes.py --jobs $(JOBS)

.PHONY: help setup demo examples test test-all checks pure compile interpreter smoke \
        format ruff types layers tiny map golden clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## */\1\t/' | expand -t 36

setup: .venv/ready  ## the environment alone

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv (some minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) -c constraints.txt -e '.[test,demo]'
	@touch $@

.triton36/ready: | .venv/ready
	@echo "setting up .triton36: Triton $(OLD_TRITON), the oldest that is served"
	@rm -rf .triton36
	@$(PIP) --no-deps --target .triton36 triton==$(OLD_TRITON)
	@touch $@

demo: .venv/ready  ## real images and a language model; draws into build/
	@$(PY) examples/demo.py
	@printf '\n== A language model, with fused attention, norms and loss\n\n'
	@$(PY) examples/08_language_model.py

examples: .venv/ready  ## every numbered example, in order
	@set -e; for example in examples/[0-9]*.py; do \
	    printf '\n== %s\n' "$$example"; $(PY) "$$example"; done

test: .venv/ready .triton36/ready  ## checks, pure, compile, interpreter, smoke: what CI runs
	@$(LANES)

test-all: .venv/ready .triton36/ready  ## slow tests too, and every kernel test on Triton 3.6.0
	@$(LANES) --all

checks pure compile interpreter: .venv/ready  ## one lane
	@$(LANES) $@

smoke: .venv/ready .triton36/ready  ## one lane, on Triton 3.6.0
	@$(LANES) smoke-interpreter smoke-compile

format: .venv/ready  ## let ruff rewrite what it can
	@$(PY) -m ruff check --quiet --fix . ; $(PY) -m ruff format .

map: .venv/ready  ## write docs/map.md anew
	@$(PY) docs/make_map.py

golden: .venv/ready  ## print the golden kernels anew; read the diff
	@$(PY) -m pytest -q tests/golden --update-golden

# The four hooks of pre-commit.

ruff: .venv/ready
	@$(PY) -m ruff format --check --quiet . && $(PY) -m ruff check --quiet .

types: .venv/ready
	@$(PY) -m mypy

layers: .venv/ready
	@$(PY) -m pytest -q tests/door/test_layers.py

tiny: .venv/ready
	@$(PY) -m pytest -q tests/test_tiny.py

clean:  ## remove both environments and all caches
	rm -rf .venv .triton36 .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
