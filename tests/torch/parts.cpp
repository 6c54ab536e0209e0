#include "torch/parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace penstock::test {
namespace {

// The tensor's split dim as two: blocks, and what is in a block.
at::Tensor in_blocks(const at::Tensor& x, const Layout& split) {
  Shape shape = x.sizes().vec();
  shape[static_cast<std::size_t>(split.dim)] /= split.outer;
  shape.insert(shape.begin() + split.dim, split.outer);
  return x.reshape(shape);
}

}  // namespace

at::Tensor cut(const at::Tensor& x, const Layout& layout, std::int64_t members, std::int64_t member) {
  if (!layout.is_split()) return x;
  const at::Tensor blocks = in_blocks(x, layout);
  const LayoutRange range = range_of(layout, blocks.size(layout.dim + 1), members, member);
  return blocks.narrow(layout.dim + 1, range.begin, range.size()).flatten(layout.dim, layout.dim + 1).contiguous();
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const Layout& layout) {
  at::Tensor out = parts[0];
  if (layout.is_term())
    for (std::size_t m = 1; m < parts.size(); ++m) out = out + parts[m];
  if (!layout.is_split()) return out;
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& x : parts) blocks.push_back(in_blocks(x, layout));
  return at::cat(blocks, layout.dim + 1).flatten(layout.dim, layout.dim + 1);
}

}  // namespace penstock::test
