# The commands of this repository, for people and for CI. Needs make and Python 3.11, 3.12, 3.13 or 3.14; `make PYTHON=python3.12 test` chooses one.

VENV ?= .venv
PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) python3)
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# One stamp per Python, so that another PYTHON= makes the environment anew.
FOR_DEMO := $(VENV)/.installed-demo-$(VERSION)
FOR_DEV := $(VENV)/.installed-dev-$(VERSION)
FOR_BENCH := .venv-bench/.installed-bench-$(VERSION)

# Keep compiled modules, whatever the environment says. Without them each process compiles everything again: collecting tests takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

# The folders with tests that need neither a server nor a process. The others import more than they test, or start something: Faust, Spark, documentation.
PURE := tests/middleware tests/plugin tests/sabotage tests/stores tests/testing

.PHONY: help demo test nightly check fix bench docs dist size sizelimit clean lint mypy types imports pure tests servers sabotage evidence age
.NOTPARALLEL: # two cores are soon full, and pytest's closing line belongs at the end
.DELETE_ON_ERROR:

help: ## list these commands
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(FOR_DEMO) ## install Ackwise and run `ackwise demo`; with HOST=faust on Faust
	$(BIN)/ackwise demo $(if $(HOST),--host $(HOST))

# The website and the type checkers take what the tests leave of both cores, since many tests wait. What they say is printed if they find something.
test: lint imports age servers ## run everything that guards a promise; starts Kafka, Redis, PostgreSQL, MariaDB and Spark
	@said=$$(mktemp); nice $(MAKE) --no-print-directory docs types >$$said 2>&1 & others=$$!; \
	$(MAKE) --no-print-directory tests; result=$$?; wait $$others || { cat $$said; result=1; }; rm -f $$said; exit $$result

nightly: $(FOR_DEV) servers ## run the other tests: further seeds, wide matrices, long runs; writes tests/nightly.json
	$(BIN)/python .ci/nightly.py

check: lint ## run ruff, mypy and the fast tests, in about a minute; for each commit
	@said=$$(mktemp); $(MAKE) --no-print-directory mypy >$$said 2>&1 & mypy=$$!; \
	$(MAKE) --no-print-directory pure; result=$$?; wait $$mypy || result=1; cat $$said; rm -f $$said; exit $$result

fix: $(FOR_DEV) ## format the code and apply the fixes of the linter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(FOR_DEV) $(FOR_BENCH) ## run the benchmarks, which compare Ackwise with other libraries
	$(BIN)/python -m benchmarks

# With --quiet, --strict would see no warnings and never fail.
docs: $(FOR_DEV) ## build the documentation as a website in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(FOR_DEV) servers ## build and test wheel and source distribution in dist/; PYTHONS="python3.12 …" chooses the Pythons
	$(BIN)/python .ci/dist.py $(PYTHONS)

size: $(FOR_DEV) ## print how much code, tests, settings and commands there are; JSON=1 for JSON
	@$(BIN)/python .ci/size.py $(if $(JSON),--json)

sizelimit: $(FOR_DEV) ## fail where the repository grew without a reason in a commit
	@$(BIN)/python .ci/sizelimit.py

clean: ## remove all build products, caches and the virtual environment
	rm -rf $(VENV) .venv-bench dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lint: $(FOR_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(FOR_DEV) # side by side: each has one core to itself, and what the second says is kept until the first is done
	@said=$$(mktemp); NODE_OPTIONS=--max-old-space-size=6144 $(BIN)/pyright --pythonpath $(BIN)/python >$$said 2>&1 & second=$$!; \
	$(BIN)/mypy; first=$$?; wait $$second; second=$$?; cat $$said; rm -f $$said; [ $$first -eq 0 ] && [ $$second -eq 0 ]

mypy: $(FOR_DEV) # with its cache; pyright, which has none, is part of `make test`
	$(BIN)/mypy

age: # when the nightly tests ran last
	@$(PYTHON) .ci/nightly.py --age

imports: $(FOR_DEV)
	$(BIN)/lint-imports

pure: $(FOR_DEV) # in three processes on two cores, since tests wait for timers; a test that starts a process fails
	$(BIN)/python -m pytest -q -p tests.pure --hypothesis-profile=quick -n 3 -m "not (embedded or kafka or servers or slow or spark or nightly)" $(PURE)

tests: $(FOR_DEV) servers # four files at a time on two cores, since many tests wait; one server of each kind; those with Spark and the long ones first (tests/scheduling.py)
	$(BIN)/python .ci/unstable.py -n 4 -m "not nightly"

sabotage: $(FOR_DEV) servers ## break the library one line at a time and demand that a test fails
	$(BIN)/python -m tests.sabotage $(TWINS)

evidence: $(FOR_DEV) ## write docs/guarantees/evidence.md from the result of the last sabotage
	$(BIN)/python -m tests.sabotage --page

servers: # what the tests start Redis, PostgreSQL and MariaDB from; as root on Debian it is installed, elsewhere it is said
	@$(PYTHON) .ci/servers.py

$(FOR_DEMO) $(FOR_DEV): $(VENV)/.installed-%-$(VERSION): pyproject.toml .ci/install.py
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Ackwise needs Python 3.11, 3.12, 3.13 or 3.14, and $(PYTHON) is $(or $(VERSION),not there): make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) .ci/install.py $(VENV) $*
	@touch $@

$(FOR_BENCH): pyproject.toml .ci/install.py
	@$(PYTHON) .ci/install.py .venv-bench bench
	@touch $@
