# Two commands from a fresh clone, with nothing but Python 3.11+ and make:
#   make app     the dashboard, on http://127.0.0.1:8501 (PORT=9000 to choose)
#   make test    every test
# The tests need torch, of any build. Plain pip on Linux takes the CUDA one, which is large: for the
# CPU one, set PIP_EXTRA_INDEX_URL to PyTorch's CPU index, or install it into .venv after `make setup`.

PYTHON  ?= python3
PORT    ?= 8501
JOBS    ?= 2
OUT     ?= results
ARGS    ?=
BENCHES ?= benchmarks/sweeps.py benchmarks/slider_latency.py

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check install -qq -c requirements.txt
PINS := requirements.txt pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help app test setup setup-dev validate lint types bench evidence lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

app: setup ## open the dashboard (PORT=9000 to choose the port)
	@exec $(BIN)/python scripts/serve.py $(PORT)

test: setup-dev ## run every test (ARGS="-k memory" to choose)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

validate: setup-dev ## measure on this machine what the formulas predict (OUT=folder to choose)
	@$(BIN)/python -m validation run --out $(OUT) $(ARGS)

setup: $(VENV)/.app ## create .venv with what the dashboard needs

setup-dev: $(VENV)/.dev ## add the tools of the tests, torch among them

lint: setup-dev ## style, by ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup-dev ## types, by mypy
	@$(BIN)/mypy

bench: setup-dev ## run the benchmarks (BENCHES="benchmarks/one.py" to choose)
	@for file in $(BENCHES); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

evidence: setup ## write the back-test's tables into the README anew
	@$(BIN)/python scripts/evidence.py

# CUDA libraries are left out: torch pins its own, and a CPU build needs none.
lock: ## pin the dependencies anew (for maintainers: needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --all-extras \
	    --no-annotate --no-header pyproject.toml -o requirements.lock
	@{ grep '^#' requirements.txt; grep -vE '^(nvidia-|cuda-|triton==)' requirements.lock; } > requirements.new
	@rm requirements.lock; mv requirements.new requirements.txt

clean: ## remove .venv and every cache
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed; choose one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot create environments; on Debian or Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/.app: $(PINS) | $(BIN)/python
	@echo "Installing the dashboard into $(VENV); once, it takes a minute or so ..."
	@$(PIP) -e '.[app]'
	@touch $@

$(VENV)/.dev: $(PINS) | $(VENV)/.app
	@echo "Installing the test tools into $(VENV); once, it takes a minute or so ..."
	@$(PIP) -e '.[app,dev,validation]'
	@touch $@
