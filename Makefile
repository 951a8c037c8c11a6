# Everything starts from a fresh clone: each target makes the virtual environment and the C
# extension it needs. Needs Python 3.11 or newer, gcc/g++, make and a package registry.
#
#   make demo     compile real models: what was captured and generated, speed, error
#   make test     build and run the tests
#   make lint     ruff, mypy --strict, import contracts, size budget
#   make bench    eager, torch.compile and weft side by side

PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
JOBS   ?= 2
CASES  ?=

SOURCES := $(wildcard csrc/*.c csrc/*.h csrc/*/*.c csrc/*/*.h)

.PHONY: build demo test test-quick lint bench clean

build: $(VENV)/.built

# torch first and alone: pip's configuration may point at a local CPU wheel.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade -c constraints.txt setuptools wheel
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation -e '.[test,dev]'
	touch $@

$(VENV)/.built: $(VENV)/.installed setup.py $(SOURCES)
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

demo: build
	$(BIN)/weft demo

test: build
	$(PY) -m pytest -n $(JOBS)

test-quick: build
	$(PY) -m pytest -n $(JOBS) -m "not slow"

lint: build
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src:. $(BIN)/lint-imports --no-cache --no-logo
	PYTHONPATH=src:. $(PY) -m tools.size_budget

bench: build
	$(PY) -m benchmarks $(CASES)

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find src -name '_frame*.so' -delete
