# `make` lists the targets. Each one does all of its own set-up and is quick the second time.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
export PYTHON
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN_READY := .venv-run/.ready
FUZZ_READY := .venv-fuzz/.ready
TRANSPARENCY_READY := .venv-transparency/.ready
PY_FOLDERS := $(wildcard src tests benchmarks docs examples hatch_build.py)
TYPED_FOLDERS := $(wildcard src tests benchmarks)

# Measuring coverage doubles the time of what is measured, and only the core has a bar: these tests reach all of it.
CORE_TESTS := $(filter-out %/test_invariants.py,$(wildcard tests/core/test_*.py)) tests/telemetry/test_telemetry_events.py \
	$(foreach name,arguments asgi_answers correlation gate keys prefer problems rules,tests/http/test_$(name).py)

.PHONY: help run test lint types bench trace docs mutants fuzz lock format ci clean

help: ## list these targets
	@echo "semel: make retries safe. Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-13s %s\n", $$1, $$2 }'

run: $(RUN_READY) ## a shop, a bank and everything that goes wrong between them, at http://127.0.0.1:8000 (ARGS="--port 9000")
	@PYTHONPATH=src exec .venv-run/bin/python -m semel demo $(ARGS)

test: $(READY) ## all tests on real servers, two at a time; core at 100 % branch coverage (ARGS="-k name" to choose)
	@echo "==> servers for the tests"
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@$(BIN)/python -m compileall -q src tests
	@echo "==> tests"
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS) || $(BIN)/python tests/again.py $$?
ifndef ARGS
	@echo "==> branch coverage of the core by the tests that need no server, which must be complete"
	@$(BIN)/python -m pytest -q --cov --cov-report= $(CORE_TESTS)
	@$(BIN)/python -m coverage report --include='*/semel/core/*' --fail-under=100
endif

.PHONY: test-newest
test-newest: ## the core, functions and HTTP on the newest Python that is there, if it is newer than yours
	@newest=$$(tools/newest); \
	if [ -z "$$newest" ]; then echo "==> SKIPPED: there is no Python newer than 3.11 here"; exit 0; fi; \
	PYTHON=$$newest tools/venv .venv-newest requirements/dev.txt; \
	pip=".venv-newest/bin/python -m pip install -qq --disable-pip-version-check"; \
	$$pip --no-deps --no-build-isolation -e .; \
	.venv-newest/bin/python -m pytest -q -n 2 -k "not wire" tests/core tests/functions tests/http

lint: $(READY) ## ruff: rules and layout
	@echo "==> ruff"
	@$(BIN)/ruff check $(PY_FOLDERS)
	@$(BIN)/ruff format --check $(PY_FOLDERS)

types: $(READY) ## mypy (strict) and pyright
	@echo "==> mypy"
	@$(BIN)/mypy $(TYPED_FOLDERS)
	@echo "==> pyright"
	@$(BIN)/pyright

bench: $(READY) ## measure everything, half an hour; figures are ratios within one run (ARGS="--only http --quick" for less)
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

trace: $(READY) ## the functions that one operation enters, for each way; ARGS=sqlite-first prints every step
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.trace $(ARGS)

docs: $(READY) ## build the documentation into site/, tables and diagrams from the code
	@echo "==> generating pages from the code"
	@$(BIN)/python docs/generate.py
	@PYTHONPATH=tests $(BIN)/python -m simulation.page
	@echo "==> mkdocs"
	@$(BIN)/mkdocs build --strict --quiet

.PHONY: tiered
tiered: $(READY) ## the contract on the tiered store with both faces on both databases, also with an unsteady front (SEMEL_SEED=n)
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@SEMEL_TIERED_ALL=1 $(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS) tests/stores/test_tiered.py

.PHONY: dynamodb
dynamodb: $(READY) ## the whole contract and the faults of the DynamoDB store, both faces, on moto's server and on dynalite
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@SEMEL_DYNAMODB_ALL=1 $(BIN)/python -m pytest -n 2 --dist loadscope -k dynamodb tests/stores tests/fire $(ARGS)

mutants: $(READY) ## seed faults into the stores and show that the contract suite finds each one
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@$(BIN)/python tests/mutants/run.py

fuzz: $(FUZZ_READY) ## coverage-guided fuzzing of everything that reads what others wrote (SECONDS=20 each, KEEP=0 new inputs)
	@echo "==> fuzzing"
	@PYTHONPATH=src .venv-fuzz/bin/python tests/fuzz/run.py --seconds $(or $(SECONDS),20) --keep $(or $(KEEP),0) $(TARGETS)
	@echo "==> schemathesis against the demo"
	@PYTHONPATH=src .venv-fuzz/bin/python tests/fuzz/demo.py

.PHONY: blackbox blackbox-long blackbox-exactly-once
blackbox: $(READY) ## three servers, three stores, a nemesis: 40 seconds; the report is build/blackbox-report.json
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m blackbox $(ARGS)

blackbox-long: $(READY) ## the same, run after run, for HOURS (4)
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m blackbox --hours $(or $(HOURS),4) $(ARGS)

blackbox-exactly-once: $(READY) ## rows and record in one transaction, under fire: 20 000 requests, 200 faults (ARGS=--short, ARGS=--control)
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m blackbox.exactly_once $(ARGS)

.PHONY: fire-long losses
fire-long: $(READY) ## three service processes while a server of their engine is killed every few seconds: 10 minutes (ARGS="--minutes 1 --engine redis-sentinel")
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m fire.long $(ARGS)

losses: $(READY) ## what a failover of Redis loses of what was acknowledged, with each way against it
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m fire.long.losses $(ARGS)

.PHONY: chain orders
chain: $(READY) ## HTTP, outbox, relay, broker, inbox and ledger under 240 kill -9 on each broker (ARGS="--broker nats --kills 50")
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m chain $(ARGS)

orders: $(READY) ## the example in examples/orders: a shop, a relay and shipping (ARGS=--stay to leave it running)
	@$(BIN)/python examples/orders/run.py $(ARGS)

.PHONY: calls
calls: $(READY) ## 300 kill -9 of callers with a journal, through every adapter (ARGS=--control shows the doubles without one)
	@PYTHONPATH=tests $(BIN)/python -m client.kills $(ARGS)

.PHONY: pictures
pictures: $(READY) ## the screenshots in the documentation, from the demo in a real browser
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m demo.pictures

.PHONY: sim sim-long spin
sim: $(READY) ## deterministic simulation: 5 000 histories of leases, of exactly-once, of messages and of callers (SEMEL_SEED=n tells one of them)
	@PYTHONPATH=tests $(BIN)/python -m simulation $(ARGS)

sim-long: $(READY) ## a million histories of each on all cores; the reports are build/simulation*.json
	@PYTHONPATH=tests $(BIN)/python -m simulation --long $(ARGS)

spin: $(READY) ## model checking: three workers, four workers, and every fault of the model
	@PYTHONPATH=tests $(BIN)/python -m servers.install
	@PYTHONPATH=tests $(BIN)/python -m spin.check

.PHONY: words
words: $(READY) ## how plain the English is: words that hide who acts, long sentences (ARGS=src shows each place)
	@$(BIN)/python tests/words.py $(ARGS)

.PHONY: dist
dist: $(READY) ## sdist and wheel into dist/, by the locked tools (TAG=v1.2.3 must be the version)
	@if [ -n "$(TAG)" ]; then $(BIN)/python tools/tag "$(TAG)"; fi
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist

.PHONY: transparency
transparency: $(TRANSPARENCY_READY) ## the frameworks' own test suites, bare and behind semel (FRAMEWORKS="starlette flask" to choose)
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR)/tests .venv-transparency/bin/python -m transparency $(FRAMEWORKS) $(ARGS)

lock: ## renew the hashed locks in requirements/ from pyproject.toml
	@test -x .venv-lock/bin/uv || { echo "==> installing uv"; $(PYTHON) -m venv .venv-lock; .venv-lock/bin/pip install -qq uv; }
	@echo "==> resolving"
	@uv=".venv-lock/bin/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-header --no-annotate"; \
	$$uv --universal --python-version 3.11 pyproject.toml --extra demo -o requirements/run.txt; \
	$$uv --universal --python-version 3.11 pyproject.toml --all-extras --group dev -o requirements/dev.txt; \
	frameworks='django|djangorestframework|fastapi|flask|litestar|starlette|werkzeug'; \
	$$uv --universal --python-version 3.11 requirements/transparency.in -o requirements/transparency.txt \
		-c <(sed -nE "s/^(($$frameworks)==[^\\\\]*).*/\1/p" requirements/dev.txt); \
	$$uv --no-deps --python-version 3.12 requirements/servers.in -o requirements/servers.txt
	@wc -l requirements/*.txt

format: $(READY) ## let ruff rewrite the code
	@$(BIN)/ruff check --fix $(PY_FOLDERS)
	@$(BIN)/ruff format $(PY_FOLDERS)

ci: ## what the continuous integration runs
	@.ci/run

clean: ## remove everything that make made
	@rm -rf $(VENV) .venv-run .venv-lock .venv-fuzz .venv-newest .venv-transparency .servers build dist site .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): requirements/dev.txt pyproject.toml tools/venv
	@tools/venv $(VENV) requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# What the demo needs and nothing else: `make run` starts within seconds.
$(RUN_READY): requirements/run.txt tools/venv
	@tools/venv .venv-run requirements/run.txt
	@touch $@

# What the frameworks' suites import is not in the main lock: nothing else needs it.
$(TRANSPARENCY_READY): requirements/transparency.txt tools/venv
	@tools/venv .venv-transparency requirements/transparency.txt
	@touch $@

# The fuzzers are not in the lock: they have wheels for few Pythons, and no test needs them.
$(FUZZ_READY): pyproject.toml
	@$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@.venv-fuzz/bin/pip install -qq --disable-pip-version-check --group fuzz -e '.[postgres,redis,json,demo,gateway,sealed,quota]'
	@touch $@
