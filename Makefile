# What is run here, locally and by CI. Needs make and Python 3.11, 3.12, 3.13 or 3.14; `make PYTHON=python3.12 test` chooses one.

VENV ?= .venv
PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) python3)
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# One stamp per Python, so that another PYTHON= makes the environment anew.
FOR_DEMO := $(VENV)/.installed-demo-$(VERSION)
FOR_DEV := $(VENV)/.installed-dev-$(VERSION)
FOR_BENCH := .venv-bench/.installed-bench-$(VERSION)

# What was compiled is kept, whatever the environment says: each process of the tests, and each command that they start, would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check fix bench docs dist size clean lint types imports pure tests
.NOTPARALLEL: # two cores are soon full, and pytest's closing line belongs at the end
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(FOR_DEMO) ## see it work: install, then run `ackwise demo`; HOST=faust for agents of Faust
	$(BIN)/ackwise demo $(if $(HOST),--host $(HOST))

test: lint types imports docs tests ## everything that CI runs, from nothing

check: lint types imports docs pure ## what to run while editing: no servers, about two minutes

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

imports: $(FOR_DEV)
	$(BIN)/lint-imports

pure: $(FOR_DEV) # two files at a time, as below
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not (embedded or kafka or servers or slow or spark)"

tests: $(FOR_DEV) servers # two files at a time, each with servers of its own; in their order, since the long ones must not come last
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

servers: # what the tests start Redis, PostgreSQL and MariaDB from; as root on Debian it is installed, elsewhere it is said
	@$(PYTHON) .ci/servers.py

$(FOR_DEMO) $(FOR_DEV): $(VENV)/.installed-%-$(VERSION): pyproject.toml .ci/install.py
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Ackwise needs Python 3.11, 3.12, 3.13 or 3.14, and $(PYTHON) is $(or $(VERSION),not there): make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) .ci/install.py $(VENV) $*
	@touch $@

$(FOR_BENCH): pyproject.toml .ci/install.py
	@$(PYTHON) .ci/install.py .venv-bench bench
	@touch $@
