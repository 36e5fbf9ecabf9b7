# Start here: `make` lists the targets. Each target first creates .venv and installs labkit with the exact versions
# of constraints.txt, unless that is already done.

PYTHON ?= python3
# One file per process, in the given order: notebooks are short, come last and keep both processes busy.
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder
TESTS ?= tests notebooks solutions
# For example COVERAGE=--cov, which prints how much of labkit the tests execute; .ci/run does.
COVERAGE ?=
SEEDS ?= 5
FIRST ?= 0
NBVAL = --nbval-lax --nbval-current-env --nbval-cell-timeout 120
# The extras installed for the tests. A test that needs another one is skipped and names it; .ci/run installs all.
TEST_EXTRAS ?= dev,instructor

VENV = .venv
RUN = $(VENV)/bin/python -m

# Empty files that record a completed install. Each is written last, so a failed install leaves none.
BASE = $(VENV)/.installed
LAB = $(VENV)/.installed-lab
TEST = $(VENV)/.installed-$(TEST_EXTRAS)
PLAY = $(VENV)/.installed-dashboard
SITE = $(VENV)/.installed-site
SITE_ARGS ?=

.PHONY: help poster lab play site lessons test hostile contract lint format bench doctor clean
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

poster: $(BASE) ## train the headline failures and draw them on one page
	$(RUN) labkit poster

lab: $(LAB) ## open JupyterLab on the course
	$(RUN) labkit lab

play: $(PLAY) ## serve the panels as a web page without code
	$(RUN) labkit play

site: $(SITE) ## build the web edition in site/ (make site SITE_ARGS="--serve")
	$(RUN) labkit site $(SITE_ARGS)

doctor: $(LAB) ## check this machine: can the lab run here, and how fast?
	$(RUN) labkit doctor

contract: $(BASE) ## check every failure mode over five seeds and regenerate the table of results
	$(RUN) labkit clinic --contract --seeds $(SEEDS) --first $(FIRST) --jobs 2 --out labkit/failures/CONTRACT.md

bench: $(BASE) ## compare labkit's speed with plain PyTorch and with tutorial code
	$(RUN) labkit bench

lessons: $(TEST) ## generate notebooks/ and the syllabus from solutions/ (make lessons LESSONS="--run 06", or "--nbgrader ../course")
	$(RUN) labkit lessons $(LESSONS)

# One thread per process and per notebook kernel: more would compete for the same cores.
test: export OMP_NUM_THREADS = 1
test: $(TEST) ## run tests and notebooks (some of them: make test TESTS=tests/test_packaging.py)
	$(RUN) pytest $(PYTEST_ARGS) $(COVERAGE) $(NBVAL) $(TESTS)

# Hostile input, 1,000 of each kind, and 20 kills of each command. In one process: the kills depend on timing.
hostile: export OMP_NUM_THREADS = 1
hostile: export LABKIT_HOSTILE = 1000
hostile: export LABKIT_KILLS = 20
hostile: $(TEST) ## 1,000 hostile inputs of each kind, and kill -9 at 100 random moments: half an hour
	$(RUN) pytest tests/hostile

lint: $(TEST) ## check style, the direction of imports and types, changing nothing
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(VENV)/bin/lint-imports
	$(RUN) mypy labkit

format: $(TEST) ## fix style where ruff can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

clean: ## remove .venv, caches and build output, for a fresh start
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installing. After a change to pyproject.toml or constraints.txt the stamps are out of date.

$(BASE): pyproject.toml constraints.txt
	$(make_venv)
	$(RUN) pip install -e . -c constraints.txt
	@touch $@

# The extras that are installed here, `dev`, `dashboard` and `site`, include `lab`.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	$(make_venv)
	$(RUN) pip install -e '.[$*]' -c constraints.txt
	@touch $(BASE) $(LAB) $@

# pip is installed last in a new environment: where it is missing, the environment is incomplete.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "labkit needs Python 3.11 or later, and '$(PYTHON)' is not that."; \
	echo "Choose one that is, for example: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
endef
