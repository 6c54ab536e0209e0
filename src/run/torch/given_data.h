// SPDX-License-Identifier: Apache-2.0
// Data that are given as tensors by name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/text.h"
#include "devices/cluster.h"
#include "penstock/error.h"
#include "penstock/session.h"

namespace penstock {

class GivenData : public DataSource {
 public:
  // `others_are_zero`: a port that no tensor is given for reads zeros; else that is an Error.
  explicit GivenData(bool others_are_zero = false) : others_are_zero_(others_are_zero) {}

  const HostTensors* tensors = nullptr;  // given to the step that is running; null: none is

  // A port of one micro-batch has a tensor of its own, which holds no rows of others.
  void fill(const Port& port, const StepInput&, std::int64_t first_row, std::int64_t, std::span<std::byte> out) const override {
    const auto found = tensors->find(port.name);
    if (found == tensors->end() && others_are_zero_) {
      std::ranges::fill(out, std::byte{0});
      return;
    }
    if (found == tensors->end()) throw Error(concat("a step reads ", quote(port.name), ", which is not given"));
    const std::vector<std::byte>& bytes = found->second.bytes;
    if (port.row >= 0) first_row -= port.row;
    const std::size_t row = port.type.shape.empty() ? 0 : bytes.size() / static_cast<std::size_t>(port.type.shape[0]);
    std::ranges::copy(std::span(bytes).subspan(static_cast<std::size_t>(first_row) * row, out.size()), out.begin());
  }

 private:
  bool others_are_zero_;
};

}  // namespace penstock
