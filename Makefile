# Everything runs inside .venv, made from requirements.txt (pinned, with hashes).
.DEFAULT_GOAL := help
SHELL := /bin/sh

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
PYTEST_ARGS ?=

.PHONY: help install demo test check format lock soak bench wheel clean

help: ## Print the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

.venv/.installed: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "aibs needs Python 3.11 or newer: install it, or name it with make PYTHON=..." >&2; exit 2; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

install: .venv/.installed ## Make .venv with everything pinned

demo: install ## The whole system on this machine, nothing configured; ends by itself
	@$(BIN)/aibs demo --exit

test: install ## All tests but the long drills
	$(BIN)/python -m pytest -n auto -m "not soak" $(PYTEST_ARGS)

soak: install ## The drills that take minutes
	$(BIN)/python -m pytest -m soak --timeout 900 $(PYTEST_ARGS)

bench: install ## The benchmarks, quick form
	@for bench in benchmarks/*.py; do echo "$$bench" && $(BIN)/python "$$bench" --quick || exit 1; done

check: install ## Lint, types, layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## Format, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: install ## Pin the newest dependencies into requirements.txt (needs uv)
	uv pip compile pyproject.toml --extra embedded --group dev --universal --generate-hashes \
		--no-header --no-annotate --python-version 3.11 --upgrade --output-file requirements.txt

wheel: install ## Build dist/*.whl
	$(BIN)/hatchling build -t wheel

clean: ## Remove what was made
	rm -rf .venv .aibs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
