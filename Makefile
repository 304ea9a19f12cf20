# Everything here works on a machine with Python 3.11, git and make; only `engines` needs root.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo
# What draws diagrams in most places is of this line.
MERMAID := 11.17.2
# What the page of a Dashboard is drawn with; it ships with us, as its licences allow.
LIT    := 3.3.3
DAGRE  := 3.1.3
VENDOR := lifecycle/observe/page/vendor

.PHONY: demo test lint types mypy pyright chaos soak bench bench-check coverage mutants repeats release lock docs pictures page engines clean

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

# What users install: with the tools of developers the first start would take minutes.
$(DEMO): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(BIN)/python -m pip install --quiet --editable ".[cli,watch]"
	touch $@

demo: $(DEMO)  ## the hot reloader with a prompt and a webhook, on examples/site
	@$(BIN)/python -m examples.demo

test: $(STAMP) lint  ## the suite, lint and types
	$(BIN)/python -m pytest -n auto

lint: $(STAMP)  ## ruff, and the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types

types: $(STAMP)  ## the library, what users write (tests/typing), and that every public name has a type; two checkers at a time
	@$(MAKE) --no-print-directory --jobs=2 --output-sync mypy pyright

mypy: $(STAMP)
	$(BIN)/mypy

pyright: export PATH := $(CURDIR)/$(BIN):$(PATH)
pyright: $(STAMP)
	pyright
	pyright --project tests/typing
	pyright --verifytypes lifecycle --ignoreexternal >$(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }

chaos: $(STAMP)  ## five minutes of it in a tree of fifty workers and in a pool, a million hostile webhooks; LIFECYCLE_SEED=… repeats one
	LIFECYCLE_CHAOS=$${LIFECYCLE_CHAOS:-300} $(BIN)/python -m pytest -s tests/realtime/test_supervisor_chaos.py tests/realtime/pool/test_pool_chaos.py tests/realtime/test_inbox_chaos.py tests/realtime/test_flow_chaos.py tests/realtime/flows/test_jobs.py tests/realtime/bridges/test_bridge_chaos.py tests/realtime/bridges/test_leader_deaths.py tests/flows/test_crash_points.py tests/conformance/test_flow_cases.py tests/workers/test_supervisor_model.py tests/sources/test_signatures_hostile.py

soak: $(STAMP)  ## half an hour of a program with every room in it, killed and started again; LIFECYCLE_SOAK=seconds, LIFECYCLE_SEED=… repeats one
	$(BIN)/python -m tests.soak

bench: $(STAMP)  ## ratios to the peers, onto docs/reference/performance.md: about a quarter of an hour on a quiet machine
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks --write

bench-check: $(STAMP)  ## whether a ratio has become worse than those that were kept; MODULES="router pool" for some
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks --check $(MODULES)

coverage: $(STAMP)  ## lines and branches that the suite runs, the programs that it starts among them
	$(BIN)/python -m pip install --quiet --group quality
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto; $(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=miss

mutants: $(STAMP)  ## whether tests see it when patterns, states and the policy of supervisors are altered: half an hour
	$(BIN)/python -m pip install --quiet --group quality
	$(BIN)/mutmut run
	$(BIN)/mutmut results

repeats: $(STAMP)  ## the suite twenty times, the last two beside busy loops: what failed, and what is slow; RUNS=…
	$(BIN)/python -m tools.repeats $(RUNS)

docs: $(STAMP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

pictures: $(STAMP)  ## those of the README and the documentation, of programs that run (tmux, chromium)
	$(BIN)/python -m docs.make_recording
	$(BIN)/python -m docs.make_screenshots

release: $(STAMP)  ## sdist and wheel in dist/, looked at from every side; nothing is uploaded; PYTHONS="python3.12 …" for some
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m tools.release $(PYTHONS)

lock: $(STAMP)  ## uv.lock: the versions of all that developers install, as they are now
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m uv lock --upgrade --python $(BIN)/python

page:  ## the libraries of the dashboard's page, as npm has them
	rm -rf $(VENDOR) && mkdir -p $(VENDOR)/lit-html/directives $(VENDOR)/dagre
	cd $(VENDOR) && npm pack --silent lit-html@$(LIT) @dagrejs/dagre@$(DAGRE) >/dev/null
	cd $(VENDOR)/lit-html && tar -xzf ../lit-html-$(LIT).tgz --strip-components=1 package/LICENSE package/package.json \
	  package/lit-html.js package/directive.js package/directive-helpers.js package/directives/repeat.js package/directives/live.js
	cd $(VENDOR)/dagre && tar -xzf ../dagrejs-dagre-$(DAGRE).tgz --strip-components=1 package/LICENSE package/package.json
	cd $(VENDOR)/dagre && tar -xzf ../dagrejs-dagre-$(DAGRE).tgz --strip-components=2 \
	  package/dist/dagre.esm.js package/dist/dagre.esm.js.LEGAL.txt
	rm $(VENDOR)/*.tgz
	sed -i '/^\/\/# sourceMappingURL/d' $$(find $(VENDOR) -name '*.js')

engines:  ## programs that some tests and benchmarks drive (Debian, as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq tmux wrk chromium webhook iproute2 >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc busybox-static runit >/dev/null
	# Only the programs: the tests start servers of their own, and no other is to run here.
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/none.conf
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null
	command -v npm >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq npm >/dev/null
	npm install --prefix .engines --silent --no-audit --no-fund mermaid@$(MERMAID)

clean:
	rm -rf $(VENV) .engines docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
