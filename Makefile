# Two commands for a fresh machine with Python 3.10 or newer and git: `make demo` and `make test`. Each makes its own environment.
PYTHON ?= python3
DEMO_FLASHINFER ?= 0.6.18
PYTEST_ARGS ?=
SIMULATED ?= 0.6.9 0.7.4
ENGINE_WHEELS ?= vllm==0.33.0 sglang==0.5.23

VENV := .venv
BIN := $(VENV)/bin
EVERYDAY = $(BIN)/python -m pytest -m "not matrix and not gpu" --ignore tests/testing --ignore tests/engines $(PYTEST_ARGS)
ENGINES = $(BIN)/python -m pytest -m "not matrix and not gpu" $(PYTEST_ARGS) tests/engines
ALONE := --last-failed --last-failed-no-failures none
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEPENDENCIES := pyproject.toml Makefile

.PHONY: demo test lint matrix matrix-releases matrix-long matrix-engines bench clean
.NOTPARALLEL:

demo: $(VENV)/host
	$(BIN)/python tools/fetch_flashinfer.py $(DEMO_FLASHINFER) >$(VENV)/demo-flashinfer
	PYTHONPATH="$$(cat $(VENV)/demo-flashinfer)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/fi-shim demo all

test: $(VENV)/dev
	$(BIN)/python tools/fetch_flashinfer.py $$($(BIN)/python tools/releases.py --tested) >/dev/null
	$(BIN)/python tools/fetch_engine.py $(ENGINE_WHEELS) >/dev/null
	@# A busy machine can starve a rank beyond a short limit: what failed is run once more, alone, and must pass then.
	$(EVERYDAY) -n 2 || $(EVERYDAY) $(ALONE)
	@# Engines' real modules take seconds to load: a file of tests stays in one worker.
	$(ENGINES) -n 2 --dist loadfile || $(ENGINES) $(ALONE)
	@# The simulated devices' own tests run under a FlashInfer that is on the path: one of each way of sharing memory.
	for release in $(SIMULATED); do \
	    PYTHONPATH="$$($(BIN)/python tools/fetch_flashinfer.py $$release)" && export PYTHONPATH FI_SHIM=0 && \
	    { $(BIN)/python -m pytest -n 2 tests/testing || $(BIN)/python -m pytest $(ALONE) tests/testing; } || exit 1; \
	done

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows

matrix: matrix-releases matrix-long

matrix-releases: $(VENV)/dev
	$(BIN)/python tools/fetch_flashinfer.py $$($(BIN)/python tools/releases.py) >/dev/null
	$(BIN)/python tools/matrix.py

# What takes too long for every day: all faults, all losses, all broken functions.
matrix-long: $(VENV)/dev
	$(BIN)/python tools/fetch_flashinfer.py $$($(BIN)/python tools/releases.py) >/dev/null
	$(BIN)/python -m pytest -n 2 --dist worksteal -m matrix --ignore tests/real_flashinfer/test_releases.py --ignore tests/engines --ignore tests/testing $(PYTEST_ARGS)

matrix-engines: $(VENV)/dev
	$(BIN)/python tools/fetch_engine.py --all >/dev/null
	@# A release of an engine is loaded in one worker.
	$(BIN)/python -m pytest -n 2 -m matrix --dist loadgroup $(PYTEST_ARGS) tests/engines

bench: $(VENV)/dev
	$(BIN)/python tools/fetch_flashinfer.py $(DEMO_FLASHINFER) >$(VENV)/bench-flashinfer
	PYTHONPATH="$$(cat $(VENV)/bench-flashinfer)" $(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist

# What a host needs to import flashinfer.comm without a GPU, and the package itself. The stamp says that the step is complete.
$(VENV)/host: $(DEPENDENCIES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fi_shim needs Python 3.10 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) --group host-cpu
	$(PIP) --editable '.[cli]'
	touch $@

$(VENV)/dev: $(VENV)/host
	$(PIP) --group dev
	touch $@
