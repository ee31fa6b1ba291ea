# The whole course from a fresh clone. `make help` lists the targets.
# On Windows, or without make, README.md says the same commands one by one.

BIN = .venv/bin
OUT = results

.PHONY: help install model course test lab book gpu clean

help:
	@echo 'make course  set up, run the notebooks on a real model, build the book from what they gave'
	@echo 'make test    ruff, all tests, all notebooks against their stored outputs'
	@echo 'make lab     your own copy of the exercises (student/) in JupyterLab'
	@echo 'make book    build the book from the stored outputs'
	@echo 'make gpu     tests, notebooks and benchmark on an NVIDIA card (OUT=folder for the results)'
	@echo 'make clean   remove what was built; keep .venv, student/ and the model'
	@echo 'PYTHON=/path/to/python chooses the Python (3.11 to 3.13)'

install:
	@python=$$(PYTHON='$(PYTHON)' sh scripts/find_python.sh) && "$$python" scripts/install.py

model: install
	@$(BIN)/kvcourse model

course: model
	@$(BIN)/kvcourse book execute --out _build/executed
	@$(BIN)/kvcourse book build --executed _build/executed

test: model
	@$(BIN)/python scripts/check.py

lab: model
	@$(BIN)/kvcourse start student
	@$(BIN)/jupyter-lab $$([ "$$(id -u)" = 0 ] && echo --allow-root) student  # root: in a container

book: install
	@$(BIN)/kvcourse book build

gpu:
	@PYTHON='$(PYTHON)' sh scripts/gpu.sh '$(OUT)'

clean:
	rm -rf _build build .pytest_cache .ruff_cache .hypothesis
	find kvcourse kernels tests scripts -name __pycache__ -prune -exec rm -rf {} +
