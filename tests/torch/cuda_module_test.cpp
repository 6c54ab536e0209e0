// SPDX-License-Identifier: Apache-2.0
// The calls of NVIDIA's driver, asked of one that only writes them down.
#include "cuda/module.h"

#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace penstock::cuda {
namespace {

constexpr const char* kDriver = "libpenstock_fake_driver.so";

std::string calls() {
  return reinterpret_cast<const char* (*)()>(dlsym(dlopen(kDriver, RTLD_NOW), "fake_driver_calls"))();
}

template <class Action>
std::string failure_of(Action action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(CudaModule, LoadsFindsAndLaunches) {
  char stream[] = "a stream";
  {
    const Module module("image", kDriver);
    void* const kernel = module.find_kernel("twice");
    const std::int64_t n = std::int64_t{1} << 40;
    const KernelArgument arguments[] = {at::ones({2}), n, -3, 0.5f, true}, without[] = {at::Tensor(), n, -3, 0.5f, false};
    module.launch(kernel, {5, 2, 96}, arguments, stream);
    module.launch(kernel, {1, 1, 32}, without, stream);
  }
  EXPECT_EQ(calls(),
            "init, load, twice 5x2x96 on a stream: memory 1099511627776 -3 0.500000 1, "
            "twice 1x1x32 on a stream: null 1099511627776 -3 0.500000 0, unload");
}

TEST(CudaModule, ErrorsHaveTheDriversNames) {
  EXPECT_EQ(failure_of([] { Module("no image", kDriver); }), "kernels cannot be loaded: CUDA_ERROR_INVALID_IMAGE");
  const Module module("image", kDriver);
  EXPECT_EQ(failure_of([&] { module.find_kernel("thrice"); }), "kernel thrice: CUDA_ERROR_NOT_FOUND");
  EXPECT_EQ(failure_of([&] { module.launch(module.find_kernel("twice"), {0, 1, 32}, {}, nullptr); }),
            "a kernel of 0 by 1 blocks of 32 threads: CUDA_ERROR_INVALID_VALUE (invalid argument)");
  EXPECT_EQ(failure_of([] { Module("image", "libno_driver.so.1"); }).substr(0, 48), "there is no NVIDIA driver: libno_driver.so.1: ca");
  EXPECT_EQ(failure_of([] { Module("image", "libm.so.6"); }),
            "kernels of Penstock's own need a driver of CUDA 12 or later: libm.so.6 has no cuInit");
}

}  // namespace
}  // namespace penstock::cuda
