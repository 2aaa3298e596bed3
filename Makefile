# Every target builds what it needs. The first run makes .venv and installs into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-ray test-browser check docs bench clean no-torchvision

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/.base no-torchvision  ## digits, then published results run again, in coset-demo/report.html
	@$(BIN)/coset demo --studies

test: $(VENV)/.test no-torchvision  ## the test suite, without the slow tests
	@$(BIN)/python -m pytest -q -rs -n 2 --dist loadfile -m "not slow and not browser"

test-all: $(VENV)/.test no-torchvision  ## the whole test suite
	@$(BIN)/python -m pytest -q -rs -n 2 --dist loadfile -m "not browser"

test-ray: $(VENV)/.test $(VENV)/.ray no-torchvision  ## what needs the extra ray, the slow parts too
	@$(BIN)/python -m pytest -q -rs tests/engines/test_engine_table.py -k ray

test-browser: $(VENV)/.test $(VENV)/.browser no-torchvision  ## reports, looked at in Chromium
	@$(BIN)/python -m pytest -q -rs -m browser tests/report

check: $(VENV)/.lint no-torchvision  ## lint, format, types, layers, dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/deptry src
	@twice=$$(find tests -name '*.py' ! -name conftest.py ! -name __init__.py -exec basename {} \; | sort | uniq -d); \
	  if [ -n "$$twice" ]; then echo "two test files of one name: $$twice"; exit 1; fi

docs: $(VENV)/.docs no-torchvision  ## the site, in docs/_build/html
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "Site: docs/_build/html/index.html"

bench: $(VENV)/.base no-torchvision  ## the benchmarks, one line a case
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:  ## remove what was built, but not .venv
	@rm -rf docs/_build dist build coset-demo .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# torch is tied to the CPU build that the constraints name; torchvision in the environment breaks
# everything that looks for it.
no-torchvision: | $(VENV)/.base
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torchvision") is None)'; then \
	  echo "torchvision is in $(VENV) and breaks torch here: run '$(BIN)/pip uninstall torchvision'" >&2; exit 1; fi

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "needed Python 3.11 or newer: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing coset (once; torch is large)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/.base
	@echo "Installing what '$*' needs"
	@$(PIP) --editable '.[$*]'
	@touch $@
