# All targets need Python 3.11, git and make. Only `engines` needs root.

PYTHON ?= python3
# Another interpreter has its own environment, such as .venv-3.12 or .venv-3.14t.
VENV   := .venv$(if $(filter command environment,$(firstword $(origin PYTHON))),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)'))
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# The release line of Mermaid that most sites use.
MERMAID := 11.17.2
NODEMON := 3.1.14
# Libraries of the Dashboard page, which are part of the package; their licences allow that.
LIT    := 3.3.3
DAGRE  := 3.1.3
VENDOR := lifecycle/observe/page/vendor

.PHONY: demo test suite uvloop eager matrix lint style types mypy pyright audit chaos soak bench bench-check coverage mutants repeats release lock docs pictures page engines clean

# uv installs the locked versions. Without it, pip installs the newest ones. pyright needs Node.js.
GROUPS := --group dev $(shell command -v node >/dev/null || echo --group node)
$(STAMP): pyproject.toml uv.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	if $(BIN)/python -m pip install --quiet uv; then \
	  UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --locked --inexact --python $(BIN)/python --no-default-groups $(GROUPS); \
	else \
	  $(BIN)/python -m pip install --quiet --editable . $(GROUPS); \
	fi
	touch $@

# The installation of a user; the tools for developers take minutes to install.
$(DEMO): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(BIN)/python -m pip install --quiet --editable ".[cli]"
	touch $@

demo: $(DEMO)  ## run the hot reloader on examples/site, with a prompt and a webhook
	@$(BIN)/python -m examples.demo

# The type checkers use the time in which tests wait, at a lower priority than the tests.
test: $(STAMP) style  ## run all tests, lint and type checks; PYTHON=python3.12 selects an interpreter
	@nice $(MAKE) --no-print-directory types >$(VENV)/types.log 2>&1 & checkers=$$!; \
	$(MAKE) --no-print-directory suite; tests=$$?; \
	wait $$checkers; types=$$?; cat $(VENV)/types.log; exit $$((tests || types))

# Without bytecode, each program that a test starts would compile the library again.
suite uvloop eager: export PYTHONDONTWRITEBYTECODE :=
suite: $(STAMP)  ## run all tests, without lint and type checks
	$(PYTEST)

uvloop: $(STAMP)  ## run the tests in real time on uvloop
	LIFECYCLE_LOOP=uvloop $(PYTEST) tests/realtime

eager: $(STAMP)  ## run the tests in virtual time with asyncio.eager_task_factory; needs Python 3.12
	LIFECYCLE_LOOP=eager $(PYTEST) --ignore tests/realtime

matrix: $(STAMP)  ## run all tests on each installed Python, on uvloop and with eager tasks; PYTHONS="python3.12 …" selects interpreters
	@$(BIN)/python -m tools.matrix $(PYTHONS)

lint: $(STAMP) style  ## run ruff, the linter for English (tools/prose.py) and the type checkers
	@$(MAKE) --no-print-directory types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.prose

types: $(STAMP)  ## check the types of the library, of user code (tests/typing), and of every public name
	@$(MAKE) --no-print-directory --jobs=2 --output-sync mypy pyright

mypy: $(STAMP)
	$(BIN)/mypy

pyright: export PATH := $(CURDIR)/$(BIN):$(PATH)
pyright: $(STAMP)
	pyright
	pyright --verifytypes lifecycle --ignoreexternal >$(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }

chaos: $(STAMP)  ## run each storm of tests/chaos/all.py for a minute; LIFECYCLE_CHAOS=SECONDS sets the time, LIFECYCLE_SEED=… repeats a run
	$(BIN)/python -m tests.chaos.all

audit: $(STAMP)  ## compare the locked versions with the advisories of PyPI; exits with 2 if they cannot be reached
	$(BIN)/python -m tools.audit

soak: $(STAMP)  ## run a program that uses every package for half an hour, with kills and restarts; LIFECYCLE_SOAK=SECONDS sets the time, LIFECYCLE_SEED=… repeats a run
	$(BIN)/python -m tests.soak

bench: $(STAMP)  ## measure against other libraries and update docs/reference/performance.md and scaling.md; takes 20 minutes on an idle machine
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks --write

bench-check: $(STAMP)  ## compare the ratios with the stored ones; MODULES="router pool" selects some
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks --check $(MODULES)

coverage: $(STAMP)  ## measure the line and branch coverage of the tests, including the programs that they start
	$(BIN)/python -m pip install --quiet --group quality
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto --dist worksteal; $(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=miss

mutants: $(STAMP)  ## run mutation tests of patterns, states and the supervisor policy; takes half an hour
	$(BIN)/python -m pip install --quiet --group quality
	$(BIN)/mutmut run
	$(BIN)/mutmut results

repeats: $(STAMP)  ## run the tests 20 times, the last two under load, and report failures and slow tests; RUNS=… sets the number
	$(BIN)/python -m tools.repeats $(RUNS)

docs: $(STAMP)  ## build the documentation; warnings are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

pictures: $(STAMP)  ## make the pictures of the README and the documentation from running programs; needs tmux and chromium
	$(BIN)/python -m docs.make_recording
	$(BIN)/python -m docs.make_screenshots

release: $(STAMP)  ## build and check an sdist and a wheel in dist/, without an upload; PYTHONS="python3.12 …" selects interpreters
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m tools.release $(PYTHONS)

lock: $(STAMP)  ## update uv.lock to the newest versions of all development dependencies
	$(BIN)/python -m uv lock --upgrade --python $(BIN)/python

page:  ## download the libraries of the Dashboard page from npm
	rm -rf $(VENDOR) && mkdir -p $(VENDOR)/lit-html/directives $(VENDOR)/dagre
	cd $(VENDOR) && npm pack --silent lit-html@$(LIT) @dagrejs/dagre@$(DAGRE) >/dev/null
	cd $(VENDOR)/lit-html && tar -xzf ../lit-html-$(LIT).tgz --strip-components=1 package/LICENSE package/package.json \
	  package/lit-html.js package/directive.js package/directive-helpers.js package/directives/repeat.js package/directives/live.js
	cd $(VENDOR)/dagre && tar -xzf ../dagrejs-dagre-$(DAGRE).tgz --strip-components=1 package/LICENSE package/package.json
	cd $(VENDOR)/dagre && tar -xzf ../dagrejs-dagre-$(DAGRE).tgz --strip-components=2 \
	  package/dist/dagre.esm.js package/dist/dagre.esm.js.LEGAL.txt
	rm $(VENDOR)/*.tgz
	sed -i '/^\/\/# sourceMappingURL/d' $$(find $(VENDOR) -name '*.js')

engines: $(STAMP)  ## install programs for some tests and benchmarks (Debian, as root)
	$(BIN)/python -m pip install --quiet --group fuzz
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq tmux wrk chromium webhook iproute2 entr reflex >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc busybox-static runit pgbouncer openssl nginx-light systemd >/dev/null
	# Install only the programs: the tests start their own servers.
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/none.conf
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null
	command -v npm >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq npm >/dev/null
	npm install --prefix .engines --silent --no-audit --no-fund mermaid@$(MERMAID) nodemon@$(NODEMON)

clean:  ## remove the virtual environments, the built documentation and caches
	rm -rf .venv .venv-* .engines docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
