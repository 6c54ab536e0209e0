// SPDX-License-Identifier: Apache-2.0
#include "torch/chain.h"

#include <algorithm>

#include "base/invariant.h"
#include "ops/infer.h"
#include "torch/chain_formulas.h"

namespace penstock {
namespace {

using NodeKind = ChainNode::Kind;

constexpr std::size_t kMostChainOps = 48, kMostPlaces = 30;  // a kernel takes 32 arguments (cuda/module.cpp)
constexpr std::int64_t kWidestRow = 1 << 16;                 // a block has a row
constexpr std::size_t kTogether = 4;                         // elements that a thread has at a time, where it can

// The dims behind which the last elements of a row lie; the width of these rows, 0 where the op does not reduce the last dims.
std::int64_t reduced_width(const Op& op, const at::Tensor& x) {
  const std::vector<std::int64_t> dims = dims_attribute(op, {}, static_cast<std::size_t>(x.dim()));
  std::int64_t width = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != x.dim() - std::ssize(dims) + static_cast<std::int64_t>(i)) return 0;
    width *= x.size(dims[i]);
  }
  return width;
}

std::optional<ChainOp::Kind> reduction_of(const Op& op) {
  if (op.name == "sum") return ChainOp::Kind::sum;
  if (op.name == "mean") return ChainOp::Kind::mean;
  if (op.name == "amax") return ChainOp::Kind::amax;
  return {};
}

bool is_reduction(const ChainOp& op) {
  return op.kind != ChainOp::Kind::number && op.kind != ChainOp::Kind::formula;
}

// Sets the op's kind and formula; false where generated kernels do not compute it.
bool classify(ChainOp& op) {
  const c10::ScalarType type = op.result.scalar_type();
  std::vector<c10::ScalarType> operands;
  for (const at::Tensor& operand : op.operands) operands.push_back(operand.scalar_type());
  if (const auto reduction = reduction_of(*op.op)) {
    op.kind = *reduction;
    return is_real(type) && operands[0] == type;
  }
  const std::optional<std::string> formula = formula_of(*op.op, operands, type);
  if (!formula) return false;
  op.kind = operands.empty() ? ChainOp::Kind::number : ChainOp::Kind::formula;
  op.formula = *formula;
  return true;
}

// Returns the operand in the shape in which the op reads it.
at::Tensor as_read(const ChainOp& op, std::size_t operand) {
  return is_reduction(op) ? op.operands[operand] : op.operands[operand].expand(op.result.sizes());
}

// Whether the op reads for its element i that of `made`'s result with the same number, or that of its row.
bool reads_alike(const ChainOp& op, std::size_t operand, const ChainOp& made, std::int64_t width) {
  if (made.kind == ChainOp::Kind::number) return true;
  const at::Tensor read = as_read(op, operand);
  Spread expected = spread_of(made.result);
  const bool by_element = !op.by_row || is_reduction(op);
  if (made.by_row && by_element) expected.dims.push_back({width, 0});
  if (!made.by_row && !by_element) return false;
  return read.const_data_ptr() == made.result.const_data_ptr() && spread_of(read) == expected;
}

const ChainOp* maker_of(std::span<const ChainOp> ops, ValueId value) {
  const auto found = std::ranges::find_if(ops, [&](const ChainOp& op) { return op.op->results[0] == value; });
  return found == ops.end() ? nullptr : &*found;
}

}  // namespace

Spread spread_of(const at::Tensor& x) {
  Spread out;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) == 1) continue;
    const Spread::Dim dim{x.size(d), x.stride(d)};
    if (!out.dims.empty() && out.dims.back().stride == dim.stride * dim.size)
      out.dims.back() = {out.dims.back().size * dim.size, dim.stride};
    else
      out.dims.push_back(dim);
  }
  return out;
}

bool extend(ChainOps& chain, ChainOp next) {
  if (chain.ops.size() == kMostChainOps || next.op->results.size() != 1 || next.result.numel() == 0 || !classify(next)) return false;
  std::int64_t elements = chain.elements, width = chain.width;
  if (is_reduction(next)) {
    const std::int64_t own = reduced_width(*next.op, next.operands[0]);
    if (own < 2 || own > kWidestRow || (width && own != width)) return false;
    width = own;
    next.by_row = true;
  }
  if (next.kind != ChainOp::Kind::number) {
    const std::int64_t count = is_reduction(next) ? next.operands[0].numel() : next.result.numel();
    if (elements == 0) elements = count;
    if (!is_reduction(next)) next.by_row = count != elements && width > 0 && count == elements / width;
    if (count != elements && !next.by_row) return false;
    if (is_reduction(next) && count != elements) return false;
  }
  for (std::size_t i = 0; i < next.operands.size(); ++i)
    if (const ChainOp* const made = maker_of(chain.ops, next.roots[i]); made && !reads_alike(next, i, *made, width)) return false;
  chain.elements = elements;
  chain.width = width;
  chain.ops.push_back(std::move(next));
  return true;
}

namespace {

// From the first byte to behind the last.
struct Bytes {
  const std::byte *begin, *end;
};
Bytes bytes_of(const at::Tensor& x) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  const auto* const begin = static_cast<const std::byte*>(x.const_data_ptr());
  return {begin, begin + static_cast<std::size_t>(last + 1) * x.element_size()};
}
bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const Bytes x = bytes_of(a), y = bytes_of(b);
  return x.begin < y.end && y.begin < x.end;
}

class ChainMaker {
 public:
  ChainMaker(const ChainOps& from, std::size_t count, std::span<const std::size_t> last_read)
      : ops_(std::span(from.ops).first(count)), last_read_(last_read) {
    out_.ops = count;
    out_.chain.elements = from.elements;
  }

  std::optional<PlacedChain> make() {
    if (std::ranges::count_if(ops_, [](const ChainOp& op) { return op.kind != ChainOp::Kind::number; }) < 2) return {};
    for (const ChainOp& op : ops_)
      if (!add(op)) return {};
    for (const ChainNode& node : nodes()) invariant(!node.by_row || out_.chain.width > 0, "a chain has rows and nothing that makes them");
    if (memory().size() > kMostPlaces || !is_written() || !is_safe()) return {};
    out_.chain.at_once = at_once();
    return std::move(out_);
  }

 private:
  std::vector<at::Tensor>& memory() { return out_.memory; }
  std::vector<ChainNode>& nodes() { return out_.chain.nodes; }

  bool add(const ChainOp& op) {
    ChainNode node{static_cast<NodeKind>(static_cast<int>(op.kind) + 1), op.op->name, op.formula, {}, op.result.scalar_type(), op.by_row};
    for (std::size_t i = 0; i < op.operands.size(); ++i) node.operands.push_back(operand(op, i));
    if (is_reduction(op)) out_.chain.width = op.operands[0].numel() / op.result.numel();
    const ValueId value = op.op->results[0];
    if (last_read_[value.index()] > ops_.back().index) {
      if (op.kind == ChainOp::Kind::number) return false;
      node.place = spread_of(op.result);
    }
    of_value_.emplace_back(value, nodes().size());
    append(std::move(node), op.result);
    return true;
  }

  // The node of what the op reads; an operand from outside becomes one.
  std::size_t operand(const ChainOp& op, std::size_t i) {
    const auto made = std::ranges::find(of_value_, op.roots[i], &std::pair<ValueId, std::size_t>::first);
    if (made != of_value_.end()) return made->second;
    const at::Tensor read = as_read(op, i);
    ChainNode node{NodeKind::operand, {}, {}, {}, read.scalar_type(), op.by_row && !is_reduction(op), spread_of(read)};
    for (std::size_t n = 0, place = 0; n < nodes().size(); ++n) {
      const ChainNode& other = nodes()[n];
      if (other.kind == NodeKind::operand && other.by_row == node.by_row && other.place == node.place && other.type == node.type &&
          memory()[place].const_data_ptr() == read.const_data_ptr())
        return n;
      if (other.place) ++place;
    }
    append(std::move(node), read);
    return nodes().size() - 1;
  }

  void append(ChainNode node, const at::Tensor& memory_of_it) {
    if (node.place) memory().push_back(memory_of_it), placed_.push_back(nodes().size());
    nodes().push_back(std::move(node));
  }

  bool writes(std::size_t place) { return nodes()[placed_[place]].kind != NodeKind::operand; }
  bool is_written() {
    for (std::size_t p = 0; p < placed_.size(); ++p)
      if (writes(p)) return true;
    return false;
  }

  bool is_safe() {
    for (std::size_t w = 0; w < placed_.size(); ++w)
      for (std::size_t r = 0; writes(w) && r < placed_.size(); ++r)
        if (r != w && overlap(memory()[w], memory()[r]) && !is_each_threads_own(w, r)) return false;
    return true;
  }

  // Whether what is read and then written over it are the same elements, of which each is read and written by one thread.
  bool is_each_threads_own(std::size_t written, std::size_t read) {
    const ChainNode &to = nodes()[placed_[written]], &from = nodes()[placed_[read]];
    return !writes(read) && !to.by_row && !from.by_row && to.place == from.place &&
           memory()[written].const_data_ptr() == memory()[read].const_data_ptr() &&
           memory()[written].element_size() == memory()[read].element_size();
  }

  int at_once() {
    const std::int64_t in_order = out_.chain.width ? out_.chain.width : out_.chain.elements;
    if (in_order % kTogether != 0) return 1;
    for (std::size_t p = 0; p < placed_.size(); ++p) {
      const auto address = reinterpret_cast<std::uintptr_t>(memory()[p].const_data_ptr());
      if (nodes()[placed_[p]].place == Spread{{{out_.chain.elements, 1}}} && address % (kTogether * memory()[p].element_size()) != 0)
        return 1;
    }
    return kTogether;
  }

  const std::span<const ChainOp> ops_;
  const std::span<const std::size_t> last_read_;
  PlacedChain out_;
  std::vector<std::size_t> placed_;  // nodes with a place
  std::vector<std::pair<ValueId, std::size_t>> of_value_;
};

}  // namespace

std::optional<PlacedChain> longest_chain(const ChainOps& chain, std::span<const std::size_t> last_read) {
  for (std::size_t count = chain.ops.size(); count >= 2; --count)
    if (auto found = ChainMaker(chain, count, last_read).make()) return found;
  return {};
}

}  // namespace penstock
