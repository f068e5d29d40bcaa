.PHONY: setup demo test lint real clean help

help: ## Say what there is to make.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## Make .venv ready (idempotent).
	@scripts/setup

demo: setup ## Set up, then: two real agents on a real task with a real model, and one GRPO step.
	@scripts/demo

lint: setup ## ruff, mypy, import-linter.
	.venv/bin/ruff check src tests
	.venv/bin/ruff format --check src tests
	.venv/bin/mypy
	.venv/bin/lint-imports

test: lint ## Set up, then all checks and tests.
	.venv/bin/python -m pytest

clean: ## Remove what can be made again (not runs/).
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
