# Everything starts from a fresh clone: each target makes the virtual environment and the C
# extension it needs. Needs Python 3.11 or newer, gcc/g++, make and a package registry.
#
#   make demo     compile real models: what was captured and generated, speed, error
#   make test     build and run the tests
#   make test TORCH=2.14.1 PYTHON=python3.12
#                 the same with another PyTorch, in an environment outside of the repository that is
#                 made once (the registry's build has CUDA: several GB)
#   make test-integrations
#                 Trainer, accelerate, diffusers, Lightning, PyG, gpytorch, pyro, ... with weft in
#                 torch.compile's place, and the programs of docs/using
#   make wheel    an sdist, and from it manylinux wheels for WHEEL_PYTHONS (3.11 to 3.13), in dist/
#   make test-package
#                 the sdist and PYTHON's wheel installed into environments without weft, and tried
#   make lint     ruff, mypy --strict, import contracts, size budget
#   make replay   what this commit's sources generate, against AGAINST (HEAD~1): is it the same?
#   make bench    eager, torch.compile and weft side by side
#   make figures  docs/benchmarks.md and the README's pictures, from the runs in docs/results, and
#                 what programs of docs/using print

PYTHON ?= python3.11
VENV   ?= .venv
BUILT  := $(VENV)/.built
TORCH_PACKAGE := torch
ifdef TORCH
ENVIRONMENTS ?= $(HOME)/.cache/weft-environments
VENV   := $(ENVIRONMENTS)/torch-$(TORCH)-$(notdir $(PYTHON))
BUILT  := build/built-for-$(notdir $(VENV))
TORCH_PACKAGE := torch==$(TORCH)
export PYTHONPATH := src:.
endif
BIN    := $(VENV)/bin
PY     := $(BIN)/python
JOBS   ?= 2
WHEEL_PYTHONS ?= python3.11 python3.12 python3.13
CASES  ?=
AGAINST ?= HEAD~1
REPLAY ?=

SOURCES := $(wildcard csrc/*.c csrc/*.h csrc/*/*.c csrc/*/*.h)

.PHONY: build demo test test-quick test-integrations lint replay bench figures wheel test-package clean

build: $(BUILT)

# torch first and alone: pip's configuration may point at a local CPU wheel.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	sed '$(if $(TORCH),/^torch==/d)' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --upgrade -c $(VENV)/constraints.txt setuptools wheel
	$(BIN)/pip install --quiet -c $(VENV)/constraints.txt $(TORCH_PACKAGE)
	$(BIN)/pip install --quiet -c $(VENV)/constraints.txt --no-build-isolation -e '.[test,dev]'
	touch $@

$(BUILT): $(VENV)/.installed setup.py $(SOURCES)
	$(PY) setup.py --quiet build_ext --inplace
	mkdir -p $(dir $@) && touch $@

demo: build
	$(BIN)/weft demo

test: build
	$(PY) -m pytest -n $(JOBS)

test-quick: build
	$(PY) -m pytest -n $(JOBS) -m "not slow"

# The libraries are installed here, not by `make test`, which skips these tests.
test-integrations: build
	$(BIN)/pip install --quiet -c $(VENV)/constraints.txt -e '.[integrations]' --no-build-isolation
	$(PY) -m pytest -n $(JOBS) tests/integrations tests/api/test_pages.py

lint: build
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src:. $(BIN)/lint-imports --no-cache --no-logo
	PYTHONPATH=src:. $(PY) -m tools.size_budget

replay: build
	PYTHONPATH=src:. $(PY) -m tools.replay against $(AGAINST) --jobs $(JOBS) $(REPLAY)

bench: build
	$(PY) -m benchmarks $(CASES)

figures: build
	PYTHONPATH=src:. $(PY) -m benchmarks.figures
	PYTHONPATH=src:. $(PY) -m tools.screens

# The C extensions link only libc and libdl: auditwheel finds the oldest glibc that has their symbols.
wheel: build
	rm -rf dist
	$(PY) setup.py --quiet sdist
	for python in $(WHEEL_PYTHONS); do \
		$$python -m pip wheel --quiet --no-deps -w dist dist/weft-*.tar.gz || exit 1; done
	for wheel in dist/weft-*-linux_*.whl; do \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair -w dist $$wheel || exit 1; \
		rm $$wheel; done
	ls dist

# The other wheels need a PyTorch for their Python: tools/try_package.py tries one with any.
test-package: wheel
	PYTHONPATH=. $(PY) -m tools.try_package \
		dist/weft-*-$$($(PY) -c "import sys; print(sys.implementation.cache_tag.replace('cpython-', 'cp'))")-*.whl \
		dist/weft-*.tar.gz

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find src -name '_frame*.so' -delete
