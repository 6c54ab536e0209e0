// SPDX-License-Identifier: Apache-2.0
#include "torch/copy.h"

#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace penstock {
namespace {

constexpr std::size_t kOuterDims = 3;

// A copy of runs of bytes at up to three levels of strides (in bytes), outermost first. The tensors may move between calls, so each call
// says where they are.
struct RunCopy {
  char* to;
  const char* from;
  std::int64_t run;
  std::array<std::int64_t, kOuterDims> size{1, 1, 1}, to_stride{}, from_stride{};
};

void copy_run(char* to, const char* from, std::int64_t bytes) {
  // Inline: calling memcpy for each run would cost more than the run.
  for (; bytes >= 64; bytes -= 64, to += 64, from += 64) std::memcpy(to, from, 64);
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void copy_runs(const RunCopy& c) {
  for (std::int64_t i = 0; i < c.size[0]; ++i)
    for (std::int64_t j = 0; j < c.size[1]; ++j) {
      char* to = c.to + i * c.to_stride[0] + j * c.to_stride[1];
      const char* from = c.from + i * c.from_stride[0] + j * c.from_stride[1];
      for (std::int64_t k = 0; k < c.size[2]; ++k, to += c.to_stride[2], from += c.from_stride[2]) copy_run(to, from, c.run);
    }
}

struct Dim {
  std::int64_t size, to, from;  // strides in elements
};

// The common dims of both, without those of size 1; neighbours that follow one another in both tensors are joined.
std::vector<Dim> joined_dims(const at::Tensor& to, const at::Tensor& from) {
  std::vector<Dim> dims;
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    const Dim dim{to.size(d), to.stride(d), from.stride(d)};
    if (dim.size == 1) continue;
    if (!dims.empty() && dims.back().to == dim.to * dim.size && dims.back().from == dim.from * dim.size)
      dims.back() = {dims.back().size * dim.size, dim.to, dim.from};
    else
      dims.push_back(dim);
  }
  return dims;
}

std::optional<RunCopy> as_runs(const at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() != from.scalar_type() || to.numel() == 0) return std::nullopt;
  const std::vector<Dim> dims = joined_dims(to, from);
  const std::int64_t width = to.element_size();
  RunCopy copy{nullptr, nullptr, width};
  std::size_t outer = dims.size();
  if (!dims.empty() && dims.back().to == 1 && dims.back().from == 1) copy.run = dims[--outer].size * width;
  if (outer > kOuterDims || (outer > 0 && copy.run < 16)) return std::nullopt;  // single elements: libtorch transposes these better
  for (std::size_t d = 0; d < outer; ++d) {
    const std::size_t level = kOuterDims - outer + d;
    copy.size[level] = dims[d].size;
    copy.to_stride[level] = dims[d].to * width;
    copy.from_stride[level] = dims[d].from * width;
  }
  return copy;
}

}  // namespace

Bound bind_copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() == from.data_ptr() && to.strides() == from.strides() && to.scalar_type() == from.scalar_type()) return {};
  if (!to.is_cpu()) return [to, from] { to.copy_(from, true); };
  if (const auto runs = as_runs(to, from))
    return [runs = *runs, to, from]() mutable {
      runs.to = static_cast<char*>(to.data_ptr());
      runs.from = static_cast<const char*>(from.data_ptr());
      copy_runs(runs);
    };
  return [to, from] { to.copy_(from); };
}

}  // namespace penstock
