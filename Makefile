# The commands of the README. Each one installs what it needs into .venv with pip, once.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# One test process a core. Each has one thread: more threads than cores make all of them slower.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
NOT_DEFAULT := not slow and not flower and not faults and not ray
METHOD ?=
# Where this forbids bytecode (some containers set it), every start of Python would compile torch and this package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo quick test lint types docs pytest test-slow test-flower test-ray test-faults results bench bench-peers clean

# What running needs: no extra, no development tool. Python compiles the modules that it imports; all of them take 30 s.
.venv/core: pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "fedrecall needs Python 3.11 or newer: make PYTHON=python3.11"'
	$(PYTHON) -m venv .venv
	$(PIP) --no-compile --editable .
	touch $@

# The rest: extras, linters, test and documentation tools.
.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	touch $@

setup: .venv/dev  ## everything that development needs

demo: .venv/core  ## compare three methods on a federation whose clients forget, in about a minute
	$(BIN)/fedrecall compare fedavg fedlmd fedcad --seeds 3

quick: lint types  ## lint, types and core's tests in less than a minute; METHOD=fedlmd adds that method's tests
	$(PYTEST) -n $(CORES) -m "$(NOT_DEFAULT)" tests/core $(if $(METHOD),tests/methods --method $(METHOD))

test: lint types docs pytest  ## what CI runs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

pytest: setup
	$(PYTEST) -n $(CORES) -m "$(NOT_DEFAULT)"

# Without --quiet: mkdocs counts only the warnings that it prints as errors of --strict.
docs: setup  ## build the documentation into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: setup  ## run the plan of results/plan.toml where it was left, keep the records, write docs/results.md
	mkdir -p build/results && cp -rn results/. build/results
	$(BIN)/fedrecall reproduce results/plan.toml --out build/results --store build/store
	$(BIN)/python docs/make_results.py build/results

bench: setup  ## measure, print tables, write build/benchmarks.json
	$(BIN)/python -m benchmarks

bench-peers: setup  ## the same rounds by Flower, pfl-research and a plain loop; their environments take 5 GB in build/
	$(BIN)/python -m benchmarks.peers --check

# byzfl needs torchvision only for its data sets: it is installed without dependencies, in a folder of its own.
build/byzfl: .venv/dev
	$(PIP) --no-deps --target $@ 'byzfl==0.0.11'

test-slow: setup build/byzfl  ## the tests that take minutes
	$(PYTEST) -m slow

# Flower needs older versions of typer and protobuf than the trackers do: it has an environment of its own.
.venv-flower/ready: pyproject.toml
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check --editable '.[flower,privacy,text]' 'pytest>=8.3'
	touch $@

test-flower: .venv-flower/ready  ## real federations: SuperLinks and SuperNodes on loopback, about an hour
	.venv-flower/bin/python -m pytest --count-attacks -m flower tests/flower

test-ray: setup  ## a cluster of several nodes on this machine, whose actors and nodes are killed
	$(PYTEST) -m ray tests/simulation/ray

# Those that need Flower are in test-flower, which has it. Of Ray's only those that attack it.
ATTACKED := tests/system/faults tests/core/test_reply_validation.py tests/core/test_reply_distances.py tests/core/test_robust.py \
  tests/core/test_preaggregation.py tests/core/test_byzfl.py tests/simulation/test_collusion.py tests/simulation/test_failures.py \
  tests/runs/test_directory.py tests/studies/test_extend.py tests/system/test_rejected_replies.py tests/system/test_robust.py \
  tests/system/test_privacy.py tests/system/test_limits.py tests/system/test_hostile_files.py tests/system/test_decoders.py \
  tests/flower/test_codec.py tests/flower/test_certificates.py \
  tests/simulation/ray/test_runs.py::test_nothing_outlives_a_run_that_is_killed \
  tests/simulation/ray/test_runs.py::test_ray_of_a_run_listens_on_loopback_only

test-faults: setup build/byzfl  ## every attack of docs/security.md; prints how many were tried, held and lost in each group
	$(PYTEST) --count-attacks --deselect tests/system/test_robust.py::test_the_records_are_reproduced $(ATTACKED)

clean:
	rm -rf .venv .venv-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis
