# Two commands do everything from nothing but Python 3.11+ and pip:
#   make demo   sets up, then PGDR learns five tasks of ambiguous digits; runs/demo/report.html
#   make test   sets up, then checks style and types and runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow check install-test clean

demo: $(VENV)/installed
	$(BIN)/ipll demo --out runs/demo --overwrite

test: $(VENV)/installed-test check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -m slow

install-test: $(VENV)/installed-test

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ipll needs Python 3.11 or newer; try: make PYTHON=python3.11 demo")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing ipll and what it needs into $(VENV) ..."
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP_INSTALL) -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
