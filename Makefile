# The commands of the README. Each sets up what it needs: a .venv by pip, reused when it is there.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test docs bench bench-peers test-slow test-flower test-ray test-faults lint types pytest clean

setup: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "fedrecall needs Python 3.11 or newer: make PYTHON=python3.11"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup  ## the main job, on embedded data
	$(BIN)/fedrecall run

test: lint types docs pytest  ## what CI runs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

pytest: setup
	$(BIN)/python -m pytest -n 2 -m "not slow and not flower and not faults and not ray"

# Not --quiet: what it leaves unsaid, --strict does not count.
docs: setup  ## the documentation as a site in build/site; whatever is wrong with it is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## measure, print tables, write build/benchmarks.json
	$(BIN)/python -m benchmarks

bench-peers: setup  ## the same rounds by Flower, pfl-research and a plain loop; their environments take 5 GB in build/
	$(BIN)/python -m benchmarks.peers --check

test-slow: setup  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

# Flower wants older versions of typer and protobuf than the trackers: it has an environment of its own.
.venv-flower/ready: pyproject.toml
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check --editable '.[flower]' 'pytest>=8.3'
	touch $@

test-flower: .venv-flower/ready  ## real federations: SuperLinks and SuperNodes on loopback; takes about half an hour
	.venv-flower/bin/python -m pytest -m flower tests/flower

test-ray: setup  ## a cluster of several nodes on this machine, whose actors and nodes are killed
	$(BIN)/python -m pytest -m ray tests/simulation

test-faults: setup  ## kill, damage, fill the disk, lie: prints how often, and how often data was lost
	$(BIN)/python -m pytest -m faults tests/system/faults

clean:
	rm -rf .venv .venv-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis
