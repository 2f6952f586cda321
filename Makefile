# make demo and make test each work as the first command in a fresh clone: they make .venv and then do their job.
# PYTHON names the interpreter (3.11 to 3.13); EXTRAS overrides the choice of CUDA or OpenCL packages.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
# The CUDA major the driver supports, from nvidia-smi's banner; empty where there is no NVIDIA driver.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
comma := ,
GPU := $(if $(filter 13 14 15,$(CUDA)),$(comma)cuda13,$(if $(filter 12,$(CUDA)),$(comma)cuda12))
EXTRAS ?= opencl$(GPU)
# Tests compile CUDA also where there is no GPU.
TEST_EXTRAS := $(EXTRAS)$(if $(GPU),,$(comma)nvrtc)$(comma)test
BIN := .venv/bin
# Tests start hundreds of interpreters: where the environment forbids to keep bytecode, each would compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint schema docs clean help
help:
	@echo "make demo      tune a kernel on this machine (a few minutes)"
	@echo "make test      the tests, without the slow ones (two to five minutes on two cores)"
	@echo "make test-all  all tests that this machine can run"
	@echo "make lint      ruff, mypy, the import contract, the line budget"
	@echo "make docs      the documentation site, in docs/_build; a broken link is an error"
	@echo "make schema    write docs/summary.schema.json"

define install
	@if command -v uv >/dev/null 2>&1; then \
		echo "Setting up .venv with uv: $(1)"; \
		uv venv -q --allow-existing --python $(or $(PYTHON),'>=3.11$(comma)<3.14') .venv && uv pip install -q --compile-bytecode --python $(BIN)/python -e '.[$(1)]'; \
	elif [ -n "$(PYTHON)" ]; then \
		echo "Setting up .venv with $(PYTHON) and pip: $(1) (a minute or two)"; \
		$(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(1)]'; \
	else \
		echo "Python 3.11, 3.12 or 3.13 with venv is needed (on Debian: apt install python3-venv), or uv." >&2; exit 1; \
	fi
	@touch $@
endef

.venv/.ready: pyproject.toml
	$(call install,$(EXTRAS))

# With the tools of tests, which a demo does without.
.venv/.ready-test: pyproject.toml
	$(call install,$(TEST_EXTRAS))

demo: .venv/.ready
	@rm -rf runs/demo
	$(BIN)/tunesmith tune silu_and_mul --evaluations 40 --rounds 1 --run-dir runs/demo

# Where a worker crashes, a new one in its place would wait for ever: with none, the run ends and names the test.
test: .venv/.ready-test
	$(BIN)/python -m pytest -q -m "not slow" -n 4 --dist loadgroup --max-worker-restart 0

test-all: .venv/.ready-test
	$(BIN)/python -m pytest -q

lint: .venv/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/lines.py

schema: .venv/.ready-test
	$(BIN)/python -c "from tunesmith.graph.results.summary import summary_schema; print(summary_schema(), end='')" > docs/summary.schema.json

# The packages of the extra `docs` are only installed for it: neither tests nor tuning need them.
.venv/.docs: .venv/.ready
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install -q --compile-bytecode --python $(BIN)/python -e '.[docs]'; \
	else \
		$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'; \
	fi
	@touch $@

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf docs/_build .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
