// SPDX-License-Identifier: Apache-2.0
#include "torch/chain_text.h"

#include <algorithm>

#include "base/text.h"
#include "torch/chain_formulas.h"
#include "torch/device_launch.h"

namespace penstock {
namespace {

using Node = ChainNode;
using NodeKind = ChainNode::Kind;

bool reduces(const Node& node) {
  return node.kind == NodeKind::sum || node.kind == NodeKind::mean || node.kind == NodeKind::amax;
}

// The offset of element `index`, a name.
std::string offset(const Spread& spread, const std::string& index) {
  std::vector<std::string> terms;
  std::int64_t inner = 1;
  for (std::size_t d = spread.dims.size(); d-- > 0;) {
    const auto& [size, stride] = spread.dims[d];
    std::string term = inner > 1 ? concat(index, " / ", inner) : index;
    if (d > 0) term += concat(" % ", size);
    if (stride > 1) term += concat(" * ", stride);
    if (stride != 0) terms.insert(terms.begin(), term);
    inner *= size;
  }
  return terms.empty() ? "0" : join(terms, " + ");
}

class ChainText {
 public:
  explicit ChainText(const Chain& chain) : chain_(chain), loops_(chain.nodes.size()) {
    for (std::size_t n = 0; n < nodes().size(); ++n) {
      for (const std::size_t operand : nodes()[n].operands) loops_[n] = std::max(loops_[n], loops_[operand]);
      if (reduces(nodes()[n])) ++loops_[n];
      // Reductions are done in the loop before, and results are written in the last.
      if (reduces(nodes()[n])) last_ = std::max(last_, loops_[n] - 1);
      if (is_written(n) && !nodes()[n].by_row) last_ = std::max(last_, loops_[n]);
    }
  }

  std::string text() {
    out_ = concat("// ", counted_ops(), "\nKERNEL void ", kChainName, "(");
    for (std::size_t n = 0; n < nodes().size(); ++n)
      if (nodes()[n].place)
        out_ += concat(nodes()[n].kind == NodeKind::operand ? "const " : "", element_name(nodes()[n].type), "* p", n, ", ");
    out_ += concat("int64_t count) {\n  using Index = ", is_small() ? "unsigned" : "int64_t", ";\n");
    chain_.width ? write_rows() : write_elements();
    return out_ + "}\n";
  }

 private:
  const std::vector<Node>& nodes() const { return chain_.nodes; }
  bool is_written(std::size_t n) const { return nodes()[n].place && nodes()[n].kind != NodeKind::operand; }
  bool is_dense(std::size_t n) const { return nodes()[n].place == Spread{{{chain_.elements, 1}}}; }
  std::string pack(std::size_t n) const { return concat("Pack<", element_name(nodes()[n].type), ", ", chain_.at_once, ">"); }

  std::string counted_ops() const {
    std::vector<std::string> names;
    for (const Node& node : nodes())
      if (!node.op.empty()) names.push_back(node.op);
    return join(names, ", ");
  }
  // Whether 32 bits have every number of an element and every offset.
  bool is_small() const {
    const auto reach = [](const Spread& spread) {
      std::int64_t sum = 0;
      for (const auto& [size, stride] : spread.dims) sum += size * stride;
      return sum;
    };
    return chain_.elements < 1LL << 31 &&
           std::ranges::all_of(nodes(), [&](const Node& n) { return !n.place || reach(*n.place) < 1LL << 31; });
  }

  void line(int indent, const std::string& text) { out_ += concat(std::string(static_cast<std::size_t>(2 * indent), ' '), text, "\n"); }

  // Whether there is one of the value for each element, in a loop over these.
  bool varies(std::size_t n) const { return !nodes()[n].by_row && nodes()[n].kind != NodeKind::number; }
  std::string value(std::size_t n) const { return nodes()[n].kind == NodeKind::number ? nodes()[n].formula : concat("v", n); }

  std::string computed(const Node& node) const {
    std::vector<std::string> operands;
    for (const std::size_t operand : node.operands) operands.push_back(value(operand));
    return rounded(with_operands(node.formula, operands), node.type);
  }

  void define(int indent, std::size_t n) {
    const Node& node = nodes()[n];
    const std::string name = concat("const ", is_real(node.type) ? "float" : element_name(node.type), " v", n, " = ");
    if (node.kind != NodeKind::operand)
      line(indent, concat(name, computed(node), ";  // ", node.op));
    else if (is_dense(n) && !node.by_row)
      line(indent, concat(name, "q", n, ".of[k];"));
    else
      line(indent, concat(name, "p", n, "[", node.by_row ? offset(*node.place, "row") : offset_of_element(*node.place), "];"));
  }

  // The place in what all rows share, or all elements of a row, without a division.
  std::string offset_of_element(const Spread& spread) const {
    const std::int64_t rows = chain_.width ? chain_.elements / chain_.width : 0;
    if (rows && spread == Spread{{{rows, 0}, {chain_.width, 1}}}) return "first + k";
    if (rows && spread == Spread{{{rows, 1}, {chain_.width, 0}}}) return "row";
    return offset(spread, "i");
  }

  // The values that these need and that are not of rows.
  std::vector<bool> needed(const std::vector<std::size_t>& ends) const {
    std::vector<bool> out(nodes().size());
    for (const std::size_t n : ends) out[n] = varies(n);
    for (std::size_t n = nodes().size(); n-- > 0;)
      if (out[n])
        for (const std::size_t operand : nodes()[n].operands)
          if (varies(operand)) out[operand] = true;
    return out;
  }

  // The elements of a thread, from `first` on: reads, computes, writes, and reduces what the loop does.
  void write_pack(int indent, const std::vector<std::size_t>& reduced, const std::vector<std::size_t>& written, const std::string& index) {
    std::vector<std::size_t> ends = written;
    for (const std::size_t n : reduced) ends.push_back(nodes()[n].operands[0]);
    const std::vector<bool> used = needed(ends);
    const std::string start = chain_.width ? "row * width + first" : "first";
    const auto packed = [&](std::size_t n) { return used[n] && nodes()[n].place && is_dense(n); };
    for (std::size_t n = 0; n < nodes().size(); ++n)
      if (packed(n) && !is_written(n))
        line(indent, concat("const auto q", n, " = *reinterpret_cast<const ", pack(n), "*>(p", n, " + ", start, ");"));
    for (const std::size_t n : written)
      if (is_dense(n)) line(indent, concat(pack(n), " q", n, ";"));
    line(indent, "#pragma unroll  // so that packs are registers");
    line(indent, concat("for (int k = 0; k < ", chain_.at_once, "; ++k) {"));
    line(indent + 1, concat("const Index i = ", index, ";"));
    for (std::size_t n = 0; n < nodes().size(); ++n)
      if (used[n]) define(indent + 1, n);
    for (const std::size_t n : reduced) {
      const std::string operand = value(nodes()[n].operands[0]);
      line(indent + 1, nodes()[n].kind == NodeKind::amax ? concat("s", n, " = largest(s", n, ", ", operand, ");")
                                                         : concat("s", n, " += ", operand, ";"));
    }
    for (const std::size_t n : written) {
      const std::string to = is_dense(n) ? concat("q", n, ".of[k]") : concat("p", n, "[", offset_of_element(*nodes()[n].place), "]");
      line(indent + 1, concat(to, " = static_cast<", element_name(nodes()[n].type), ">(v", n, ");"));
    }
    line(indent, "}");
    for (const std::size_t n : written)
      if (is_dense(n)) line(indent, concat("*reinterpret_cast<", pack(n), "*>(p", n, " + ", start, ") = q", n, ";"));
  }

  std::vector<std::size_t> written(bool by_row) const {
    std::vector<std::size_t> out;
    for (std::size_t n = 0; n < nodes().size(); ++n)
      if (is_written(n) && nodes()[n].by_row == by_row) out.push_back(n);
    return out;
  }

  void write_elements() {
    const int at_once = chain_.at_once;
    line(1, "const Index all = static_cast<Index>(count), block = blockDim.x;");
    line(1, concat("for (Index first = (blockIdx.x * block + threadIdx.x) * ", at_once, "; first < all; first += gridDim.x * block * ",
                   at_once, ") {"));
    write_pack(2, {}, written(false), "first + k");
    line(1, "}");
  }

  void write_rows() {
    line(1, "SHARED float partial[32];");
    line(1, concat("constexpr Index width = ", chain_.width, ";"));
    line(1, "for (Index row = blockIdx.x; row < static_cast<Index>(count); row += gridDim.x) {");
    write_row_values(0);
    for (std::size_t loop = 0; loop <= last_; ++loop) {
      std::vector<std::size_t> reduced;
      for (std::size_t n = 0; n < nodes().size(); ++n)
        if (reduces(nodes()[n]) && loops_[n] == loop + 1) reduced.push_back(n);
      for (const std::size_t n : reduced) line(2, concat("float s", n, " = ", nodes()[n].kind == NodeKind::amax ? "-INFINITY" : "0", ";"));
      line(2,
           concat("for (Index first = threadIdx.x * ", chain_.at_once, "; first < width; first += blockDim.x * ", chain_.at_once, ") {"));
      write_pack(3, reduced, loop == last_ ? written(false) : std::vector<std::size_t>(), "row * width + first + k");
      line(2, "}");
      write_row_values(loop + 1);
    }
    const std::vector<std::size_t> of_rows = written(true);
    if (!of_rows.empty()) line(2, "if (threadIdx.x == 0) {");
    for (const std::size_t n : of_rows)
      line(3, concat("p", n, "[", offset(*nodes()[n].place, "row"), "] = static_cast<", element_name(nodes()[n].type), ">(v", n, ");"));
    if (!of_rows.empty()) line(2, "}");
    line(1, "}");
  }

  // Writes the values of a row that are known after so many loops.
  void write_row_values(std::size_t loops) {
    for (std::size_t n = 0; n < nodes().size(); ++n) {
      const Node& node = nodes()[n];
      if (!node.by_row || loops_[n] != loops) continue;
      if (reduces(node))
        write_reduced(n);
      else
        define(2, n);
    }
  }

  void write_reduced(std::size_t n) {
    const Node& node = nodes()[n];
    std::string all = concat(node.kind == NodeKind::amax ? "over_block(s" : "block_sum(s", n, ", partial",
                             node.kind == NodeKind::amax ? ", largest)" : ")");
    if (node.kind == NodeKind::mean) all += concat(" / ", chain_.width, ".0f");
    line(2, concat("const float v", n, " = ", rounded(all, node.type), ";  // ", node.op));
  }

  const Chain& chain_;
  std::vector<std::size_t> loops_;  // by node: after how many loops over the row it is known
  std::size_t last_ = 0;            // loop
  std::string out_;
};

}  // namespace

std::string chain_text(const Chain& chain) {
  return ChainText(chain).text();
}

Bound bind_chain(const PlacedChain& placed, KernelCompiler& compiler, c10::Device device) {
  const auto& [elements, width] = std::pair(placed.chain.elements, placed.chain.width);
  void* const found = compiler.kernel(chain_text(placed.chain), kChainName);
  if (!found) return {};
  const std::int64_t count = width ? elements / width : elements;
  return [kernel = DeviceKernel(found, device), memory = placed.memory, count,
          grid = width ? row_grid(count, width) : element_grid(elements)] {
    std::vector<KernelArgument> arguments(memory.begin(), memory.end());
    arguments.emplace_back(count);
    kernel(grid, arguments);
  };
}

}  // namespace penstock
