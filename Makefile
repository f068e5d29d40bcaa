.PHONY: help setup assets engine browser demo test fuzz test-vllm chaos ray lint bench oracle docs clean

help: ## Say what there is to make.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## Make .venv ready (idempotent).
	@scripts/setup

assets: setup ## Build the agent bundles, the model and a task ahead (kept in ~/.cache/drivetrain).
	.venv/bin/drivetrain prepare --task pypi__xmltodict-0.14.2

engine: ## Docker and its test images, for the sandbox tests (root, or sudo).
	scripts/docker-engine install
	scripts/docker-engine images

browser: ## Chromium, for the tests of the trace viewer (root, or sudo).
	scripts/browser install

demo: setup ## Set up, then: two real agents on a real task with a real model, and one GRPO step.
	@scripts/demo

lint: setup ## ruff, mypy, import-linter.
	.venv/bin/ruff check src tests benchmarks examples
	.venv/bin/ruff format --check src tests benchmarks examples
	.venv/bin/mypy
	.venv/bin/lint-imports

test: lint assets engine browser ## Set up, then all checks and tests.
	scripts/run-tests

fuzz: setup ## 10,000 hostile inputs for each API, 500 for each operation, 100,000 by coverage (docs/security.md).
	DRIVETRAIN_FUZZ=10000 OMP_NUM_THREADS=1 .venv/bin/python -m pytest -s --timeout 0 tests/abuse/test_fuzz_dialects.py tests/abuse/test_fuzz_slices.py tests/abuse/test_openapi_requests.py
	.venv/bin/python -m pip install -q -c constraints.txt atheris
	.venv/bin/python -m tests.abuse.coverage_slices -runs=100000

VLLM ?= 0.31.0
test-vllm: setup ## The engine, the probe, the fence and a rollout before a live vLLM on CPU (its own venv, about 3 GB).
	scripts/vllm-venv $(VLLM)
	.venv/bin/drivetrain prepare --task pypi__xmltodict-0.14.2
	DRIVETRAIN_VLLM=1 DRIVETRAIN_VLLM_VERSION=$(VLLM) OMP_NUM_THREADS=1 .venv/bin/python -m pytest -s tests/real/vllm

SECONDS ?= 600
SEED ?= 7
chaos: setup ## Faults over a running gateway, its engine and 54 agents, then a checker (SECONDS=600 SEED=7).
	OMP_NUM_THREADS=1 .venv/bin/python -m tests.chaos.stack.run --seconds $(SECONDS) --seed $(SEED)

ROLLOUTS ?= 200
ray: setup ## Two Ray nodes here, real agents, one node killed midway; then what is on disk is counted (ROLLOUTS=200).
	OMP_NUM_THREADS=1 .venv/bin/python -m tests.rollout.on_ray.scenario --rollouts $(ROLLOUTS)

bench: setup ## drivetrain's gateway beside its peers: CPU and memory per call; fails when a ratio got worse (10 minutes).
	scripts/peers-venv
	.venv/bin/python benchmarks/peers.py --check

oracle: setup ## Every task: the reference fix must score 1.0 and doing nothing 0.0.
	scripts/oracle

docs: ## Build the documentation site (build/site/index.html); a broken link fails.
	@scripts/docs

clean: ## Remove what can be made again (not runs/).
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
