// SPDX-License-Identifier: Apache-2.0
// A kernel on a device may find data wrong, such as an index outside of its table, while no host looks. It notes that on the device, the
// step goes on with an index that there is, and the host is told at the step's end. A recorded step does the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch/arena.h"

namespace penstock {

class Faults {
 public:
  explicit Faults(c10::Device device);

  // The message about a value: `before`, the value, `after`; and a hint.
  struct Text {
    std::string before, after, hint;
    bool operator==(const Text&) const = default;
    [[noreturn]] void fail(std::int64_t value) const;
  };
  std::int64_t add(const Text& text);  // its code

  // On the current stream: notes a value of those that are wrong (bool, of the values' shape), unless one was noted in this step.
  void note(const at::Tensor& wrong, const at::Tensor& values, std::int64_t code) const;
  bool has_checks() const { return !texts_.empty(); }
  // On the current stream, behind the step's last kernel: tells the host, and begins anew.
  void tell() const;
  // When that is done. Throws Error.
  void check() const;
  // Where kernels of our own note (cuda/kernels.cu): code and value, both i64.
  const at::Tensor& noted() const { return noted_; }

 private:
  at::Tensor noted_;         // on the device: code and value; code 0: nothing
  Arena memory_;             // of the host
  at::Tensor told_;          // the same on the host
  std::vector<Text> texts_;  // by code - 1
};

// Indices that are to be at least 0 and below a limit.
class IndexCheck {
 public:
  // `ignored`: an index that is let pass. No faults: of the host, which throws.
  IndexCheck(Faults* faults, std::int64_t limit, const Faults::Text& text, std::optional<std::int64_t> ignored = {});
  // The indices, those that are wrong or ignored replaced by the nearest that is right. Throws Error on the host.
  at::Tensor operator()(const at::Tensor& indices) const;
  // For kernels of our own, which check by themselves: where they note, undefined where nothing is to be, and the code.
  at::Tensor noted() const { return faults_ ? faults_->noted() : at::Tensor(); }
  std::int64_t code() const { return code_; }

 private:
  Faults* faults_;
  Faults::Text text_;
  std::int64_t limit_, code_ = 0;
  std::optional<std::int64_t> ignored_;
};

}  // namespace penstock
