# Everything a fresh machine needs is python3 (3.11 or newer) and make. `make` alone lists what there is.

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all coverage check bench conformance requirements fuzz properties faults chaos attack differential search peers migrations load soak e2e apps pictures docs site-check release-check campaigns events cluster lock sbom clean
MAKEFLAGS += --no-print-directory
# Without bytecode each of hundreds of processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough and runs; `make PYTHON=/path/to/python …` overrules it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo $(p))))

VENV ?= .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.tests
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check
INSTALL := $(PIP) --editable
SITE := $(VENV)/.site
RELEASE := $(VENV)/.release
LOCK := requirements-dev.lock
# Exact: what it makes of the pages is looked at before it is raised.
ZENSICAL := zensical==0.0.73
TWINE := twine>=6.1
CYCLONEDX := cyclonedx-bom>=7
# Options for pytest: make test ARGS="-k stdio -n 0"
ARGS ?=
# One file for all systems and every Python that we allow.
LOCKED := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --all-extras
# What a full run of the tests found out about the requirements.
OUTCOMES := .requirements.json
# One word: a file that exists would be taken for a place with tests.
RECORD := --requirements-report=$(OUTCOMES)

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /|/' | \
		while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

define environment
@test -n "$(PYTHON)" || { echo "defserve needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
@echo "== setting up $(VENV) ($$($(PYTHON) --version))"
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	{ rm -rf $(VENV); echo "python3 has no venv module; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
endef

# Stamped, so that a changed pyproject.toml installs again and nothing else does. The demo needs no test tools; who needs
# them gets all in one run of pip.
$(RUNS): pyproject.toml
	$(environment)
	@$(INSTALL) .
	@touch $@

# The versions and hashes of requirements-dev.lock, and nothing else. uv is many times faster than pip at checking them;
# its own block of the file is what pip installs it from.
$(READY): pyproject.toml $(LOCK)
	$(environment)
	@echo "== installing what the tests need"
	@sed -n '/^uv==/,/[^\\]$$/p' $(LOCK) >$(VENV)/uv.lock
	@$(PIP) --require-hashes --requirement $(VENV)/uv.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement $(LOCK)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(RUNS) $@

$(SITE): $(READY)
	@echo "== installing what builds the site"
	@$(PIP) '$(ZENSICAL)'
	@touch $@

$(RELEASE): $(READY)
	@echo "== installing what looks at a release"
	@$(PIP) '$(TWINE)' '$(CYCLONEDX)'
	@touch $@

demo: $(RUNS)  ## start an example server and talk to it, as a client of either era would
	@$(BIN)/python examples/_demo.py

test: $(READY)  ## run the tests
	@echo "== tests ($$($(BIN)/python --version))"
	@$(BIN)/python -m pytest -q -n auto $(RECORD) $(ARGS)

test-slow: $(READY)  ## run what `make test` leaves out: what takes long, and the rest of corpora and tables
	@echo "== tests, the slow ones ($$($(BIN)/python --version))"
	@$(BIN)/python -m pytest -q -n auto -m 'slow and not browser and not e2e' $(ARGS)

test-all:  ## run the tests on every Python 3.11 to 3.14 of this machine
	@sh tests/every_python.sh $(ARGS)

# Processes that tests start are not measured: many tests look at what such a process has imported.
coverage: $(READY)  ## run the tests and measure what they cover; fails below the floor in pyproject.toml
	@echo "== tests and coverage ($$($(BIN)/python --version))"
	@$(BIN)/python -m pytest -q -n auto -m 'not soak and not e2e and not browser and not release' --cov --cov-report=term-missing $(RECORD) $(ARGS)

check: $(READY)  ## ruff, pyright, prettier, eslint, zizmor, the import directions and the changelog
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format"
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted; run: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "== javascript (prettier, eslint)"
	@$(BIN)/python -m tests.javascript
	@echo "== pyright (strict)"
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@echo "== layers"
	@$(BIN)/python -m pytest -q tests/test_layers.py
	@echo "== changelog"
	@$(BIN)/python -m tests.repository.changelog
	@echo "== workflows (zizmor)"
	@$(BIN)/zizmor --quiet --offline --no-progress .github/workflows

bench: $(READY)  ## measure against a hand-written floor, the official SDK and FastMCP (ARGS="--against REV": another commit)
	@$(BIN)/python -m tests.bench $(ARGS)

conformance: $(READY)  ## the official conformance suite (ARGS="--through-kernel")
	@$(BIN)/python -m tests.conformance.suite $(ARGS)

requirements: $(READY)  ## which requirements the last `make test` has proven, which are failing or open
	@$(BIN)/python -m tests.conformance.report $(OUTCOMES)

# The fuzzer is for these targets alone, and has no wheel for every Python.
FUZZER := .fuzz/lib
fuzz: $(READY)  ## a coverage-guided fuzzer on every parser, judge and protocol (ARGS="--until 30 --only codec"), then `make properties`
	@mkdir -p .fuzz
	@test -d $(FUZZER) || $(BIN)/python -m pip install -qq --disable-pip-version-check --target $(FUZZER) 'atheris>=3' 2>.fuzz/install.log || true
	@PYTHONPATH=$(FUZZER) $(BIN)/python -m tests.fuzz $(ARGS)
	@test -n "$(ARGS)" || $(MAKE) properties

properties: $(READY)  ## run the property tests for minutes
	@echo "== property tests, the long profile"
	@$(BIN)/python -m pytest -q -n auto -m hypothesis --hypothesis-profile=long --timeout=0 $(ARGS)

faults: $(READY)  ## kill servers, Redis, Postgres and a kernel's servers at random moments: nothing acknowledged is lost (ARGS="--runs 1000")
	@echo "== faults"
	@$(BIN)/python -m tests.faults $(ARGS)

events: $(READY)  ## kill workers and webhook receivers while events are sent: all come, in order (ARGS="--events 100000 --kills 200")
	@echo "== events"
	@$(BIN)/python -m tests.events $(ARGS)

cluster: $(READY)  ## tear a cluster in network namespaces apart: nothing that was promised is lost (root; ARGS="--minutes 10 --seed 7 --json FILE", "--mutants")
	@echo "== cluster"
	@$(BIN)/python -m tests.cluster $(ARGS)

chaos: $(READY)  ## bad roads, full disks, jumping clocks, paused processes: nothing hangs or is lost (ARGS="--only HTTP --json FILE")
	@$(BIN)/python -m tests.chaos $(ARGS)

search: $(SITE)  ## how well each strategy finds tools, on the corpus (ARGS="--split fresh": those of another author), and the site's search pages
	@$(BIN)/python -m tests.search.evaluation $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python -m tests.site --questions

attack: $(READY)  ## attack servers on loopback, over raw sockets; fails if one attack is not held (ARGS="--only smuggling")
	@$(BIN)/python -m tests.attack $(ARGS)

differential: $(READY)  ## the same bytes to our HTTP server, uvicorn, nginx and Node: each difference is explained (ARGS="--streams 2000")
	@$(BIN)/python -m tests.differential $(ARGS)

peers: $(READY)  ## other people's clients, hosts, bridges and servers, on loopback (ARGS="--only claude", "--write" for the page)
	@$(BIN)/python -m tests.peers $(ARGS)

migrations: $(READY)  ## public servers, migrated, answer as their originals do (ARGS="--only tmux --notes --declared")
	@$(BIN)/python -m tests.migrations $(ARGS)

load: $(READY)  ## thousands of idle streams, slow readers and half-sent heads beside a healthy caller (ARGS="--only callers --scale 0.1")
	@echo "== load"
	@$(BIN)/python -m tests.load $(ARGS)

soak: $(READY)  ## servers under load for minutes or hours: nothing grows (ARGS="--minutes 30 --json FILE --svg FILE")
	@echo "== soak"
	@$(BIN)/python -m tests.soak $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python -m pytest -q -m soak --timeout=0

e2e: $(READY)  ## every template from `defserve new` to an installed package, type-checked; the Learn pages, step by step
	@echo "== templates and Learn pages, end to end"
	@$(BIN)/python -m pytest -q -n auto -m e2e --timeout=300 $$(grep -rl --include='test_*.py' mark.e2e tests) $(ARGS)

apps: $(READY)  ## the inspector, the page of a server and views of MCP apps, in a headless Chromium (Debian's chromium)
	@echo "== pages and views in a browser"
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m browser --timeout=300 -rs tests/browser $(ARGS)

pictures: $(READY)  ## take the pictures of pages in docs/pictures again, in a headless Chromium
	@DEFSERVE_PICTURES=1 $(BIN)/python -m pytest -q -n 0 -m pictures --timeout=300 -rs tests/browser $(ARGS)

docs: $(SITE)  ## build the site of the documentation and check its links (ARGS="--serve": read it on loopback)
	@$(BIN)/python -m tests.site $(ARGS)

site-check: $(SITE)  ## the site in a headless Chromium: search, contrast, nothing from elsewhere
	@echo "== the site in a browser"
	@$(BIN)/python -m pytest -q -n 0 -m browser --timeout=0 -rs tests/browser/test_site.py $(ARGS)

release-check: $(RELEASE)  ## build what would be released, install it from an index on loopback, follow README and Learn pages
	@echo "== what would be released"
	@$(BIN)/python -m pytest -n 0 -m release --timeout=0 -v --no-header tests/release $(ARGS)

campaigns: $(READY)  ## run what a release needs, and record how each went in docs/reliability.md (ARGS="--list", ARGS="attack chaos")
	@$(BIN)/python -m tests.reliability.campaigns $(ARGS)

lock: $(READY)  ## choose the newest allowed versions of what the tests need, and write them to requirements-dev.lock
	@$(BIN)/uv pip compile --quiet --upgrade $(LOCKED) --group test pyproject.toml --output-file $(LOCK)

sbom: $(RELEASE)  ## write what the package may bring along, with hashes, to build/sbom.json (CycloneDX)
	@mkdir -p build
	@$(BIN)/uv pip compile --quiet $(LOCKED) --constraints $(LOCK) pyproject.toml --output-file build/runtime.lock
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible --output-file build/sbom.json build/runtime.lock

clean:  ## remove what the other targets made
	@rm -rf .venv .venvs .bench-venv .conformance .browser .page-tools .fuzz .peers .migrations .campaigns bench-results build dist $(OUTCOMES) .pytest_cache .ruff_cache .hypothesis .coverage
	@find framework tests examples cookiecutter -name __pycache__ -type d -prune -exec rm -rf {} +
