# Thin fronts over the CMake presets. Environment: PENSTOCK_PYTHON (a Python with torch) or PENSTOCK_LIBTORCH (an unpacked
# libtorch) is used instead of .venv; ARGS are handed to `penstock train`, or to the demonstration.
CMAKE ?= $(firstword $(wildcard /usr/bin/cmake) cmake)
CTEST ?= $(firstword $(wildcard /usr/bin/ctest) ctest)
JOBS ?= $(shell nproc)

ifdef PENSTOCK_PYTHON
configure_flags += -DPENSTOCK_PYTHON=$(PENSTOCK_PYTHON)
endif
ifdef PENSTOCK_LIBTORCH
configure_flags += -DTorch_DIR=$(PENSTOCK_LIBTORCH)/share/cmake/Torch
endif

.PHONY: build train demo test format setup

setup:
	@scripts/setup.sh

build: setup
	@$(CMAKE) --preset release $(configure_flags) >build-release.log || { cat build-release.log; exit 1; }
	@$(CMAKE) --build build

train: build
	@build/penstock train examples/gpt.toml --out runs/gpt-$$(date +%Y%m%d-%H%M%S) $(ARGS)

# Seven parts, each really run; the page is runs/demo/demo.html.
demo: build
	@$(or $(PENSTOCK_PYTHON),.venv/bin/python) examples/demo/demo.py $(ARGS)

# Everything in release; the core and its fuzzers under ASan and UBSan; the runtime under TSan.
test: build
	@$(CTEST) --test-dir build --output-on-failure --label-exclude fuzz -j $(JOBS)
	@$(CMAKE) --preset asan >build-asan.log || { cat build-asan.log; exit 1; }
	@$(CMAKE) --build build-asan
	@$(CTEST) --test-dir build-asan --output-on-failure -j $(JOBS)
	@$(CMAKE) --preset tsan >build-tsan.log || { cat build-tsan.log; exit 1; }
	@$(CMAKE) --build build-tsan
	@$(CTEST) --test-dir build-tsan --output-on-failure --label-exclude fuzz -j $(JOBS)

format:
	@git ls-files '*.cpp' '*.h' | xargs clang-format-19 -i
