# Each target does its own set-up in $(VENV), on a machine with Python and nothing else.
# `make accept` uses the torch that $(PYTHON) already has and never replaces it; where there is none, it installs the tested one.
# Without a network: `make bundle` where there is one, `make accept OFFLINE=1` in what it packed (docs/air-gapped.md).

PYTHON  ?= python3
VENV    ?= .venv
REPORTS ?= reports
ARGS    ?=
RANKS   ?=

EVERY_EXTRA = debug,images,tensorboard
INSTALLED = $(if $(OFFLINE),$(EVERY_EXTRA) wheels,debug)

ifneq ($(filter-out 1,$(OFFLINE)),)
$(error OFFLINE=$(OFFLINE): it is 1, or not given)
endif
ifneq ($(and $(OFFLINE),$(filter test test-fast test-system lint faults soak fuzz docs,$(MAKECMDGOALS))),)
$(error OFFLINE=1 is for `make accept`, `make plan` and `make bench`: a bundle does not hold the tools of our own tests)
endif

# In words that every Python knows: what an older one is given to read would end in a traceback.
NEW_PYTHON = @$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("PYTHON=$(PYTHON) is Python %d.%d: name one of 3.11 or newer, PYTHON=python3.12" % sys.version_info[:2])'

# One thread of torch in each of many processes; and byte code is kept, whatever the shell says: each process would compile our modules anew.
FOR_TESTS = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONDONTWRITEBYTECODE=

# Where somebody names one: $(VENV) may be there already, of another one with another torch.
SAME_PYTHON = $(if $(filter command,$(origin PYTHON)),@$(PYTHON) tools/make_venv.py $(VENV))

.DEFAULT_GOAL := help
.PHONY: help accept drill plan bundle test-system test test-fast lint bench faults soak fuzz docs clean whole-bundle

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  ARGS="..." goes on to `gpu-acceptance run`, REPORTS=DIR names the folder of all runs, RANKS=N the ranks of this node'
	@echo '  OFFLINE=1 asks no network, in an unpacked bundle; PY=3.12 PLATFORM=linux-aarch64 say whom a bundle is for, else machines like this one'

accept: $(VENV)/.ready ## judge this machine: one rank per GPU (2 on a CPU), one verdict, one report
	$(SAME_PYTHON)
	@exec $(VENV)/bin/gpu-acceptance run --report-dir='$(REPORTS)' $(if $(RANKS),--ranks='$(RANKS)') $(ARGS)

drill: $(VENV)/.ready ## plant faults in the validations, and say which limits find them; accepts nothing
	$(SAME_PYTHON)
	@exec $(VENV)/bin/gpu-acceptance drill --report-dir='$(REPORTS)' $(if $(RANKS),--ranks='$(RANKS)') $(ARGS)

plan: $(VENV)/.ready ## print what would run, judged by what, for how long; touches no GPU
	$(SAME_PYTHON)
	@$(VENV)/bin/gpu-acceptance run --plan $(ARGS)

bundle: ## pack HEAD and its wheels (not torch) into one archive for machines without a network
	$(NEW_PYTHON)
	@$(PYTHON) tools/make_bundle.py dist $(if $(PY),--python=$(PY)) $(if $(PLATFORM),--platform=$(PLATFORM))

test-system: ## install the Debian packages without which `make test` leaves tests out; as root
	$(NEW_PYTHON)
	@$(PYTHON) tools/system_packages.py

test: $(VENV)/.ready-dev ## our own tests, on a CPU
	$(FOR_TESTS) $(VENV)/bin/python -m pytest tests -n 6 --dist=loadfile --no-loadscope-reorder --durations=30 --durations-min=10 $(ARGS)

test-fast: $(VENV)/.ready-dev ## those of our own tests that take no launcher and little time
	$(FOR_TESTS) $(VENV)/bin/python -m pytest tests -n logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder -m 'not (launcher or repository or slow)' $(ARGS)

lint: $(VENV)/.ready-dev ## ruff and mypy
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

bench: $(VENV)/.ready ## what the plugin costs per validation over a bare pytest function, as a ratio inside one run; what a large report costs
	$(VENV)/bin/python benchmarks/overhead.py $(ARGS)
	PYTHONPATH=. $(VENV)/bin/python benchmarks/report_scale.py

faults: $(VENV)/.ready-dev ## run the fault matrix on a CPU and write docs/faults.md from what was seen
	$(VENV)/bin/python tools/make_faults.py $(ARGS)

soak: $(VENV)/.ready-dev ## 200 validations with a fault in every third, on 4 CPU ranks: verdicts right, nothing hangs, nothing grows
	$(VENV)/bin/python tests/soak.py $(ARGS)

fuzz: $(VENV)/.ready-dev ## any signal to any process of a run, at a random time: it ends in time, with the right exit code, and leaves nothing
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/signal_fuzz.py $(ARGS)

docs: $(VENV)/.ready-dev ## write the pages that are made from code and the words of committed runs, and build the site of all documents in site/
	$(VENV)/bin/python -m tools.rebuild_runs
	$(VENV)/bin/python -m tools.make_pages
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo 'open site/index.html'

clean: ## remove the virtual environment; reports stay
	rm -rf $(VENV)

$(VENV)/.ready: pyproject.toml setup.py constraints.txt tools/make_venv.py $(if $(OFFLINE),| whole-bundle)
	$(NEW_PYTHON)
	$(PYTHON) tools/make_venv.py $(VENV) $(INSTALLED)
	@touch $@

whole-bundle:
	$(NEW_PYTHON)
	@$(PYTHON) tools/check_bundle.py

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PYTHON) tools/make_venv.py $(VENV) dev
	@touch $@
