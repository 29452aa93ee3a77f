# What is run here, locally and by CI. Needs make and Python 3.11, 3.12 or 3.13; `make PYTHON=python3.12 test` chooses one.

VENV ?= .venv
PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) python3)
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# One stamp per Python, so that another PYTHON= makes the environment anew.
FOR_DEMO := $(VENV)/.installed-demo-$(VERSION)
FOR_DEV := $(VENV)/.installed-dev-$(VERSION)
FOR_BENCH := .venv-bench/.installed-bench-$(VERSION)

# What was compiled is kept, whatever the environment says: each process of the tests, and each command that they start, would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test nightly check fix bench docs dist size clean lint types imports pure tests servers sabotage evidence mypy age
.NOTPARALLEL: # two cores are soon full, and pytest's closing line belongs at the end
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(FOR_DEMO) ## see it work: install, then run `ackwise demo`; HOST=faust for agents of Faust
	$(BIN)/ackwise demo $(if $(HOST),--host $(HOST))

test: lint types imports docs age tests ## everything that guards a promise, from nothing

nightly: $(FOR_DEV) servers ## the rest of the tests: further seeds, wide matrices, long runs; keeps the result in tests/nightly.json
	$(BIN)/python .ci/nightly.py

check: lint mypy imports pure ## what to run for each commit: no servers, about a minute

fix: $(FOR_DEV) ## format, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(FOR_DEV) $(FOR_BENCH) ## the benchmarks, with those whom Ackwise is compared with
	$(BIN)/python -m benchmarks

# With --quiet, --strict would see no warnings and never fail.
docs: $(FOR_DEV) ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(FOR_DEV) servers ## wheel and source distribution in dist/, tried in empty environments; PYTHONS="python3.12 …" chooses
	$(BIN)/python .ci/dist.py $(PYTHONS)

size: $(FOR_DEV) ## print how much code, tests, settings and commands there are; JSON=1 for JSON
	@$(BIN)/python .ci/size.py $(if $(JSON),--json)

clean: ## remove everything that was made here, the environment too
	rm -rf $(VENV) .venv-bench dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lint: $(FOR_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(FOR_DEV) # side by side: each has one core to itself, and what the second says is kept until the first is done
	@said=$$(mktemp); $(BIN)/pyright --pythonpath $(BIN)/python >$$said 2>&1 & second=$$!; \
	$(BIN)/mypy; first=$$?; wait $$second; second=$$?; cat $$said; rm -f $$said; [ $$first -eq 0 ] && [ $$second -eq 0 ]

mypy: $(FOR_DEV) # with its cache; pyright, which has none, is part of `make test`
	$(BIN)/mypy

age: # when the nightly tests ran last
	@$(PYTHON) .ci/nightly.py --age

imports: $(FOR_DEV)
	$(BIN)/lint-imports

pure: $(FOR_DEV) # two files at a time, as below
	$(BIN)/pytest -q -n 2 -m "not (embedded or kafka or servers or slow or spark or nightly)"

tests: $(FOR_DEV) servers # two files at a time, on one server of each kind; those with Spark and the long ones first (tests/scheduling.py)
	$(BIN)/pytest -n 2 -m "not nightly"

sabotage: $(FOR_DEV) servers ## break the library one line at a time; each time a test must fail
	$(BIN)/python -m tests.sabotage $(TWINS)

evidence: $(FOR_DEV) ## write docs/guarantees/evidence.md from the result of the last sabotage
	$(BIN)/python -m tests.sabotage --page

servers: # what the tests start Redis, PostgreSQL and MariaDB from; as root on Debian it is installed, elsewhere it is said
	@$(PYTHON) .ci/servers.py

$(FOR_DEMO) $(FOR_DEV): $(VENV)/.installed-%-$(VERSION): pyproject.toml .ci/install.py
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Ackwise needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $(or $(VERSION),not there): make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) .ci/install.py $(VENV) $*
	@touch $@

$(FOR_BENCH): pyproject.toml .ci/install.py
	@$(PYTHON) .ci/install.py .venv-bench bench
	@touch $@
