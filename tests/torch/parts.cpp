// SPDX-License-Identifier: Apache-2.0
#include "torch/parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>

namespace penstock::test {
namespace {

// The tensor's split dim as two: blocks, and what is in a block.
at::Tensor in_blocks(const at::Tensor& x, const Layout& split) {
  Shape shape = x.sizes().vec();
  shape[static_cast<std::size_t>(split.dim)] /= split.outer;
  shape.insert(shape.begin() + split.dim, split.outer);
  return x.reshape(shape);
}

// The tensor block by block; `of_block` takes a block and whether the members' order is reversed there.
template <class OfBlock>
at::Tensor by_block(const Layout& split, const OfBlock& of_block) {
  std::vector<at::Tensor> out;
  for (std::int64_t b = 0; b < split.outer; ++b) out.push_back(of_block(b, split.mirrored && b % 2 == 1));
  return at::cat(out, split.dim);
}

}  // namespace

at::Tensor cut(const at::Tensor& x, const Layout& layout, std::int64_t members, std::int64_t member) {
  if (layout.is_flat()) {
    const LayoutRange range = range_of(layout, x.numel(), members, member);
    return x.flatten().narrow(0, range.begin, range.size());
  }
  if (!layout.is_split()) return x;
  const at::Tensor blocks = in_blocks(x, layout);
  return by_block(layout, [&](std::int64_t b, bool reversed) {
    const LayoutRange range = range_of(layout, blocks.size(layout.dim + 1), members, reversed ? members - 1 - member : member);
    return blocks.select(layout.dim, b).narrow(layout.dim, range.begin, range.size());
  });
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const Layout& layout) {
  if (layout.is_flat()) return at::cat(parts);
  at::Tensor out = parts[0];
  if (layout.is_term())
    for (std::size_t m = 1; m < parts.size(); ++m) out = out + parts[m];
  if (!layout.is_split()) return out;
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& x : parts) blocks.push_back(in_blocks(x, layout));
  return by_block(layout, [&](std::int64_t b, bool reversed) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& of_member : blocks) pieces.push_back(of_member.select(layout.dim, b));
    if (reversed) std::reverse(pieces.begin(), pieces.end());
    return at::cat(pieces, layout.dim);
  });
}

}  // namespace penstock::test
