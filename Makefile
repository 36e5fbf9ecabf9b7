# Everything starts here: `make` lists what there is. Each target first makes .venv and installs labkit with
# the exact versions of constraints.txt, unless that has been done already.

PYTHON ?= python3
# A file to each process, in their order: the short ones, notebooks, come last and fill up both.
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder
TESTS ?= tests notebooks solutions
SEEDS ?= 5
FIRST ?= 0
NBVAL = --nbval-lax --nbval-current-env --nbval-cell-timeout 120
# The extras that the tests are installed with. Tests that need another one are skipped, and say which; .ci/run has all.
TEST_EXTRAS ?= dev,instructor

VENV = .venv
RUN = $(VENV)/bin/python -m

# An empty file that says "this was installed". It is written last, so a failed install leaves none.
BASE = $(VENV)/.installed
TEST = $(VENV)/.installed-$(TEST_EXTRAS)
PLAY = $(VENV)/.installed-dashboard

.PHONY: help poster lab play lessons test contract lint format bench doctor clean
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

poster: $(BASE) ## train the headline failures and draw them on one page
	$(RUN) labkit poster

lab: $(BASE) ## open JupyterLab on the course
	$(RUN) labkit lab

play: $(PLAY) ## turn the knobs on a page without code
	$(RUN) labkit play

doctor: $(BASE) ## check that the lab can run on this machine
	$(RUN) labkit doctor

contract: $(BASE) ## play every failure mode with five seeds and renew the table of what came of it
	$(RUN) labkit clinic --contract --seeds $(SEEDS) --first $(FIRST) --jobs 2 --out labkit/failures/CONTRACT.md

bench: $(BASE) ## measure labkit's speed beside the usual ways
	$(RUN) labkit bench

lessons: $(TEST) ## derive notebooks/ and the syllabus from solutions/ (make lessons LESSONS="--run 06", or "--nbgrader ../course")
	$(RUN) labkit lessons $(LESSONS)

# One thread in each process and in each kernel of a notebook: more would wait for each other.
test: export OMP_NUM_THREADS = 1
test: $(TEST) ## run tests and notebooks (some of them: make test TESTS=tests/test_packaging.py)
	$(RUN) pytest $(PYTEST_ARGS) $(NBVAL) $(TESTS)

lint: $(TEST) ## check style, changing nothing
	$(RUN) ruff check .
	$(RUN) ruff format --check .

format: $(TEST) ## put style right where ruff can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

clean: ## remove .venv, caches and build output, for a fresh start
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installing. A change of pyproject.toml or constraints.txt makes the stamps out of date.

$(BASE): pyproject.toml constraints.txt
	$(make_venv)
	$(RUN) pip install -e . -c constraints.txt
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt
	$(make_venv)
	$(RUN) pip install -e '.[$*]' -c constraints.txt
	@touch $(BASE) $@

# pip arrives last in a new environment: without it, the environment is not there or only half made.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "labkit needs Python 3.11 or later, and '$(PYTHON)' is not that."; \
	echo "Name one that is, for example: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
endef
