// SPDX-License-Identifier: Apache-2.0
// Expressions of several ops, and the one op of ours that they are.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/builder.h"

namespace penstock {

// An expression as text: an op's name and its operands, "mul(x, y)". A name alone stands for any tensor, the same wherever it stands again;
// "r:rsqrt(x)" names what the op gives. In braces stands the number that an op has as attribute, "mul(x){0.5}", or a name for it. Sums and
// products of two tensors may have their operands in either order.
class Pattern {
 public:
  explicit Pattern(std::string_view text);

  struct Match {
    std::map<std::string, Tensor, std::less<>> tensors;  // by the pattern's names
    std::map<std::string, double, std::less<>> numbers;
  };
  // Returns how x was made by such ops; nothing where it was not. Numbers are equal to 1e-6 relative.
  std::optional<Match> match(Tensor x) const;
  const std::string& op() const { return op_; }  // of the whole expression

 private:
  Pattern() = default;
  static Pattern parse(std::string_view& text);
  static bool match(Tensor x, const Pattern& pattern, Match& found);
  bool match_operands(Tensor x, const Op& op, Match& found) const;
  bool match_number(const Op& op, Match& found) const;

  std::string name_;    // of the tensor; empty: none
  std::string op_;      // empty: any tensor
  std::string number_;  // as it stands in braces; empty: none
  std::vector<Pattern> operands_;
};

// The one op that x is, which is made then: a gelu, an RMS norm, or the gradient of one of these, written out. No tensor: nothing of these.
Tensor fused(Tensor x);

}  // namespace penstock
