// SPDX-License-Identifier: Apache-2.0
// Structural hash and equality. Both are computed from one canonical form, so they agree by construction.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/hash.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

// Writes the structure of a graph as bytes. Each list has its length before it, so that no two graphs give the same bytes.
class Canonical {
 public:
  explicit Canonical(std::string& out) : out_(out) {}

  void graph(const Graph& graph) {
    IdVector<ValueId, std::uint64_t> number(graph.values.size());  // of each value: its position in the order of definition
    std::uint64_t next = 0;
    const auto define = [&](const std::vector<ValueId>& values) {
      word(values.size());
      for (ValueId value : values) {
        number[value] = next++;
        type(graph.type(value));
      }
    };
    const auto read = [&](const std::vector<ValueId>& values) {
      word(values.size());
      for (ValueId value : values) word(number[value]);
    };
    word(static_cast<std::uint64_t>(graph.state));
    define(graph.inputs);
    word(graph.ops.size());
    for (const Op& op : graph.ops) {
      text(op.name);
      read(op.operands);
      define(op.results);
      word(op.attributes.size());
      for (const auto& [name, value] : op.attributes) {
        text(name);
        word(value.index());
        std::visit([this](const auto& held) { attribute(held); }, value);
      }
      word(op.body != nullptr);
      if (op.body) this->graph(*op.body);
    }
    read(graph.outputs);
  }

 private:
  void word(std::uint64_t value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  void text(std::string_view value) {
    word(value.size());
    out_ += value;
  }
  void type(const TensorType& type) {
    word(static_cast<std::uint64_t>(type.dtype));
    attribute(type.shape);
  }

  void attribute(bool value) { word(value); }
  void attribute(std::int64_t value) { word(static_cast<std::uint64_t>(value)); }
  void attribute(double value) {
    if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();  // all NaNs count as one, as the text form has only one
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    word(bits);
  }
  void attribute(DType value) { word(static_cast<std::uint64_t>(value)); }
  void attribute(const std::string& value) { text(value); }
  template <class Item>
  void attribute(const std::vector<Item>& list) {
    word(list.size());
    for (Item item : list) attribute(item);
  }

  std::string& out_;
};

std::string canonical(const Graph& graph) {
  std::string out;
  Canonical(out).graph(graph);
  return out;
}

}  // namespace

std::uint64_t structural_hash(const Graph& graph) {
  Hash hash;
  hash.add(canonical(graph));
  return hash.value();
}

bool structurally_equal(const Graph& a, const Graph& b) {
  return canonical(a) == canonical(b);
}

}  // namespace penstock
