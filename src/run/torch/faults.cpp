// SPDX-License-Identifier: Apache-2.0
#include "torch/faults.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/device.h"

namespace penstock {

Faults::Faults(c10::Device device)
    : noted_(at::zeros({2}, at::TensorOptions(at::kLong).device(device))),
      memory_(Arena::beside(2 * sizeof(std::int64_t), device)),
      told_(at::from_blob(memory_.data(), {2}, at::TensorOptions(at::kLong))) {
  synchronise(device);  // kernels come to it on other streams
}

std::int64_t Faults::add(const Text& text) {
  if (const auto known = std::ranges::find(texts_, text); known != texts_.end()) return known - texts_.begin() + 1;
  texts_.push_back(text);
  return std::ssize(texts_);
}

void Faults::note(const at::Tensor& wrong, const at::Tensor& values, std::int64_t code) const {
  const at::Tensor none = at::scalar_tensor(std::numeric_limits<std::int64_t>::min(), noted_.options());
  const at::Tensor found = at::stack({at::full({}, code, noted_.options()), at::where(wrong, values, none).amax()});
  noted_.copy_(at::where(wrong.any().logical_and(noted_[0].eq(0)), found, noted_));
}

void Faults::tell() const {
  told_.copy_(noted_, true);
  noted_.zero_();
}

void Faults::check() const {
  const auto* const told = static_cast<const std::int64_t*>(told_.const_data_ptr());
  if (told[0] == 0) return;
  texts_[static_cast<std::size_t>(told[0] - 1)].fail(told[1]);
}

void Faults::Text::fail(std::int64_t value) const {
  throw Error(concat(before, value, after), {}, hint);
}

IndexCheck::IndexCheck(Faults* faults, std::int64_t limit, const Faults::Text& text, std::optional<std::int64_t> ignored)
    : faults_(faults), text_(text), limit_(limit), ignored_(ignored) {
  if (faults_) code_ = faults_->add(text);
}

at::Tensor IndexCheck::operator()(const at::Tensor& indices) const {
  if (indices.numel() > 0) {
    at::Tensor wrong = indices.lt(0).logical_or(indices.ge(limit_));
    if (ignored_) wrong = wrong.logical_and(indices.ne(*ignored_));
    if (faults_)
      faults_->note(wrong, indices, code_);
    else if (const at::Tensor found = indices.masked_select(wrong); found.numel() > 0)
      text_.fail(found[0].item<std::int64_t>());
  }
  return indices.clamp(0, std::max<std::int64_t>(limit_ - 1, 0));
}

}  // namespace penstock
