// SPDX-License-Identifier: Apache-2.0
#include "standin/kernels.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "standin/emulate.h"
#include "standin/memory.h"
#include "standin/streams.h"

namespace penstock::standin {
namespace {

#include "cuda/kernels.cu"

struct Known {
  std::string name;
  emulate::Kernel kernel;
  std::atomic<std::int64_t> launches = 0;
};
using ByName = std::map<std::string, Known, std::less<>>;

template <auto kernel>
void enter(ByName& known, const char* name) {
  Known& entry = known[name];
  entry.name = name;
  entry.kernel = emulate::emulated<kernel>();
}

ByName& kernels() {
  static ByName* const all = [] {
    auto* const out = new ByName;
    enter<cross_entropy>(*out, "cross_entropy");
    enter<cross_entropy_backward>(*out, "cross_entropy_backward");
    enter<sum>(*out, "sum");
    enter<row_norm>(*out, "row_norm");
    enter<row_norm_backward>(*out, "row_norm_backward");
    enter<row_norm_backward_columns>(*out, "row_norm_backward_columns");
    enter<sum_columns>(*out, "sum_columns");
    enter<adamw>(*out, "adamw");
    enter<random_key>(*out, "random_key");
    enter<dropout>(*out, "dropout");
    enter<embedding>(*out, "embedding");
    enter<embedding_backward>(*out, "embedding_backward");
    return out;
  }();
  return *all;
}

Known& known(const char* name) {
  const auto found = kernels().find(std::string_view(name));
  TORCH_CHECK(found != kernels().end(), "stand-in: there is no kernel ", name);
  return found->second;
}

// Throws what CUDA says of a grid; of arguments CUDA says nothing.
void require_launchable(const emulate::Kernel& kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments) {
  TORCH_CHECK(grid.x > 0 && grid.x <= 0x7FFFFFFF && grid.y > 0 && grid.y <= 65'535 && grid.threads > 0 && grid.threads <= 1'024,
              "stand-in: invalid argument: a grid of ", grid.x, " by ", grid.y, " blocks of ", grid.threads, " threads");
  TORCH_CHECK(arguments.size() == kernel.count, "stand-in: a kernel of ", kernel.count, " arguments is given ", arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i)
    TORCH_CHECK(arguments[i].size == kernel.parameters[i].size, "stand-in: argument ", i, " of a kernel has ", kernel.parameters[i].size,
                " bytes, not ", arguments[i].size);
}

}  // namespace

void* find_kernel(const char* name) {
  return &known(name);
}

void* enter_compiled(const emulate::Kernel& kernel, const char* name) {
  auto* const entry = new Known;  // graphs may outlive whoever launched it
  entry->name = name;
  entry->kernel = kernel;
  return entry;
}

void launch_kernel(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, int stream) {
  auto& launched = *static_cast<Known*>(kernel);
  require_launchable(launched.kernel, grid, arguments);
  ++launched.launches;
  std::vector<std::array<std::byte, sizeof(void*)>> values;
  std::vector<std::shared_ptr<const void>> held;
  Touched touched{launched.name};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& [tensor, bytes, size] = arguments[i];
    values.push_back(bytes);
    if (!tensor.defined()) continue;
    const void* const place = memory().bytes_of(tensor.const_data_ptr());
    std::memcpy(values.back().data(), &place, sizeof(place));
    held.push_back(memory().hold(tensor.storage().data()));
    touched.bytes.push_back(access_of(tensor, launched.kernel.parameters[i].writes));
  }
  const auto work = [kernel = launched.kernel, grid, values = std::move(values), held = std::move(held)] {
    std::vector<const void*> places;
    for (const auto& value : values) places.push_back(value.data());
    emulate::run_kernel(kernel, grid, places.data());
  };
  enqueue(stream, work, std::move(touched));
}

}  // namespace penstock::standin

std::int64_t penstock_standin_launches(const char* name) {
  return penstock::standin::known(name).launches;
}
