# SPDX-License-Identifier: Apache-2.0
# Thin fronts over the CMake presets. Environment: PENSTOCK_PYTHON (a Python with torch) or PENSTOCK_LIBTORCH (an unpacked
# libtorch) is used instead of .venv; ARGS are handed to `penstock train`, or to the demonstration.
CMAKE ?= $(firstword $(wildcard /usr/bin/cmake) cmake)
CTEST ?= $(firstword $(wildcard /usr/bin/ctest) ctest)
JOBS ?= $(shell nproc)

# What two build folders compile alike is compiled once.
export CCACHE_BASEDIR ?= $(CURDIR)

ifdef PENSTOCK_PYTHON
configure_flags += -DPENSTOCK_PYTHON=$(PENSTOCK_PYTHON)
endif
ifdef PENSTOCK_LIBTORCH
configure_flags += -DPENSTOCK_LIBTORCH=$(PENSTOCK_LIBTORCH)
endif

configure = $(CMAKE) --preset $(1) $(configure_flags) $(2) >build-$(1).log || { cat build-$(1).log; exit 1; }

.PHONY: build train demo site wheel deb test test-release test-cuda test-asan test-tsan cuda soak install format
# One build at a time: each takes all cores.
.NOTPARALLEL:

# The program, and what only it needs.
build:
	@scripts/setup.sh
	@$(call configure,release)
	@$(CMAKE) --build build --target penstock

train: build
	@build/penstock train examples/gpt.toml --out runs/gpt-$$(date +%Y%m%d-%H%M%S) $(ARGS)

# Eight parts, each really run; the page is runs/demo/demo.html.
demo: build
	@$(or $(PENSTOCK_PYTHON),.venv/bin/python) examples/demo/demo.py $(ARGS)

# The site of docs/, in build-site/html; a link that leads nowhere is an error, and so is a declaration of include/ without a word about it.
site: build
	@scripts/setup.sh site
	@python3 site/assemble.py build/penstock build-site/source
	@mkdir -p build-site/html && doxygen site/Doxyfile
	@.venv-site/bin/sphinx-build -q -W --keep-going -c site -d build-site/doctrees build-site/source build-site/html

# The program for GPUs and what bench/gpu.sh runs, in build-cuda; no GPU is needed for it.
cuda:
	@scripts/setup.sh tests cuda
	@$(CMAKE) --preset cuda -DPENSTOCK_TESTS=ON -DPENSTOCK_MODULE=ON >build-cuda.log || { cat build-cuda.log; exit 1; }
	@$(CMAKE) --build build-cuda --target penstock penstock_backend penstock_cuda penstock_torch_tests penstock_module

# Everything in release; the program with libtorch for CUDA, without a GPU; the core and its fuzzers under ASan and UBSan; what has threads under TSan.
# Sanitizers watch a tenth of what is drawn, and ASan a third of the tests.
test: test-release test-cuda test-asan test-tsan

test-release:
	@scripts/setup.sh tests
	@$(call configure,release,-DPENSTOCK_TESTS=ON -DPENSTOCK_MODULE=ON)
	@$(CMAKE) --build build
	@$(CTEST) --test-dir build --output-on-failure -j $(JOBS)

test-cuda:
	@scripts/setup.sh tests cuda
	@$(CMAKE) --preset cuda >build-cuda.log || { cat build-cuda.log; exit 1; }
	@$(CMAKE) --build build-cuda --target penstock_cuda_tests
	@$(CTEST) --test-dir build-cuda --output-on-failure -j $(JOBS)

test-asan:
	@scripts/setup.sh tests
	@$(call configure,asan,-DPENSTOCK_TESTS=ON)
	@$(CMAKE) --build build-asan
	@$(CTEST) --test-dir build-asan --output-on-failure -j $(JOBS)

test-tsan:
	@scripts/setup.sh tests
	@$(call configure,tsan,-DPENSTOCK_TESTS=ON)
	@$(CMAKE) --build build-tsan --target penstock_core_tests
	@$(CTEST) --test-dir build-tsan --output-on-failure -j $(JOBS)

# PREFIX: where to.
install: build
	@$(CMAKE) --build build --target penstock_installed
	@$(CMAKE) --install build --prefix $(or $(PREFIX),/usr/local)

# Long tests (hours on a small machine): drawn ones anew each time and whole under sanitizers, the matrices of which `make test` runs a sample, and
# each file compiled by itself. PENSTOCK_SEED repeats what was drawn (docs/testing.md).
SOAK_SECONDS ?= 600
soak: build
	@scripts/setup.sh tests
	@$(call configure,release,-DPENSTOCK_TESTS=ON -DPENSTOCK_MODULE=ON)
	@$(CMAKE) --build build --target penstock_torch_tests
	@PENSTOCK_SOAK=1 build/tests/penstock_torch_tests --gtest_filter='BatchPrograms.*:ExportedModels.*:Models/Schedules.*:Chains.Random*:DrawnChecks.*:Shares.*:StreamRecorder.*:Updates.*'
	@PENSTOCK_SOAK=1 PENSTOCK_TEST_DEVICE=standin PENSTOCK_STANDIN_DELAY=50 build/tests/penstock_torch_tests --gtest_filter='Models/*:Shares.*:Updates.*'
	@$(CMAKE) --build build
	@PENSTOCK_SOAK=1 $(CTEST) --test-dir build --output-on-failure -j $(JOBS) --timeout 36000 -R '^(cli|python|torch_python)[.]'
	@$(call configure,asan,-DPENSTOCK_TESTS=ON -DPENSTOCK_TOGETHER=OFF -DPENSTOCK_ONE_TEST_IN=1)
	@$(CMAKE) --build build-asan
	@PENSTOCK_LANE_PROGRAMS=20000 build-asan/tests/penstock_core_tests
	@cd tests/fuzz/corpus && for form in *; do fuzzer=$(CURDIR)/build-asan/tests/fuzz/fuzz_$$form; [ -x $$fuzzer ] || fuzzer=$${fuzzer%/*}/fuzz_plan_graph; \
	  $$fuzzer --seconds=$(SOAK_SECONDS) --corpus=$$form --dictionary=../dictionaries/$$form.txt --current=$(CURDIR)/build-asan/$$form.input || exit 1; done
	@$(call configure,tsan,-DPENSTOCK_TESTS=ON)
	@$(CMAKE) --build build-tsan --target penstock_core_tests
	@build-tsan/tests/penstock_core_tests

# The package for Python, with the program in it, in dist/: for the Python and the PyTorch that .venv has, or PENSTOCK_PYTHON is.
wheel:
	@scripts/setup.sh wheel
	@CMAKE_EXECUTABLE=$(CMAKE) scripts/wheel.sh $(or $(PENSTOCK_PYTHON),.venv/bin/python)

# A Debian package of the program with libtorch for CPUs, in dist/.
deb:
	@scripts/setup.sh
	@$(call configure,deb)
	@$(CMAKE) --build build-deb --target penstock
	@cd build-deb && $(dir $(CMAKE))cpack -B $(CURDIR)/dist >$(CURDIR)/build-deb-cpack.log || { cat $(CURDIR)/build-deb-cpack.log; exit 1; }
	@ls dist/*.deb

format:
	@scripts/setup.sh format
	@git ls-files '*.cpp' '*.h' | xargs clang-format-19 -i
