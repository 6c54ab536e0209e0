// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

bool is_word(std::string_view text) {
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) || c == '_'; };
  return !text.empty() && is_letter(static_cast<unsigned char>(text.front())) &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) { return is_letter(c) || std::isdigit(c) || c == '.'; });
}

// Places are functions that give their text, which only errors ask for.
class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(graph.values.size()) {}

  void run() {
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) define(graph_.inputs[i], [&] { return concat("input ", i); });
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      const auto where = [&] { return concat("op ", i, " (", op.name, ")"); };
      for (std::size_t j = 0; j < op.operands.size(); ++j) read(op.operands[j], where, [&] { return concat("operand ", j); });
      if (op.results.empty()) fail(concat(where(), " has no result"));
      for (std::size_t j = 0; j < op.results.size(); ++j) define(op.results[j], [&] { return concat("result ", j, " of ", where()); });
      attributes(op, where);
      if ((op.name == "accumulate") != (op.body != nullptr))
        fail(concat(where(), op.body ? " has a body; only accumulate has one" : " has no body"));
      if (op.body) loop(op, where);
    }
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i)
      read(graph_.outputs[i], [] { return "return"; }, [&] { return concat("output ", i); });
    state();
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::vector<std::string>& details = {}) const {
    throw Error(concat("graph @", graph_.name, ": ", what), details);
  }

  template <class Place>
  void define(ValueId value, const Place& what) {
    if (!value || value.index() >= graph_.values.size())
      fail(concat(what(), " is value ", value.value, "; the graph has ", graph_.values.size(), " values"));
    if (defined_[value]) fail(concat(what(), " is value ", value.value, ", which is already defined"));
    if (!is_countable(graph_.type(value)))
      fail(concat(what(), " is ", graph_.type(value).text(), ": negative, or more bytes than 63 bits count"));
    defined_[value] = true;
  }

  template <class Place, class Part>
  void read(ValueId value, const Place& where, const Part& what) const {
    if (!value || value.index() >= graph_.values.size())
      fail(concat(where(), ": ", what(), " is value ", value.value, "; the graph has ", graph_.values.size(), " values"));
    if (!defined_[value]) fail(concat(where(), ": ", what(), " is value ", value.value, ", which is not defined before its use"));
  }

  template <class Place>
  void attributes(const Op& op, const Place& where) const {
    for (const auto& [name, value] : op.attributes) {
      if (!is_word(name)) fail(concat(where(), ": ", quote(name), " is no name for an attribute"), {"letters, digits, '_' and '.'"});
      if (is_mark(name)) fail(concat(where(), ": attribute ", quote(name), " is a mark of the op"));
    }
  }

  // Checks that a loop has one body input per operand and one result per body output; the first `split` operands are cut into
  // micro-batches.
  template <class Place>
  void loop(const Op& op, const Place& where) const {
    const Graph& body = *op.body;
    if (body.inputs.size() != op.operands.size())
      fail(concat(where(), " has ", op.operands.size(), " operands; its body has ", body.inputs.size(), " inputs"));
    if (body.outputs.size() != op.results.size())
      fail(concat(where(), " has ", op.results.size(), " results; its body has ", body.outputs.size(), " outputs"));
    const std::int64_t split = attribute<std::int64_t>(op, "split"), microbatches = attribute<std::int64_t>(op, "microbatches");
    if (microbatches < 1) fail(concat(where(), ": microbatches is ", microbatches));
    if (split < 0 || static_cast<std::size_t>(split) > op.operands.size())
      fail(concat(where(), ": split is ", split, " of ", op.operands.size(), " operands"));
    if (body.state != 0 || !body.output_names.empty())
      fail(concat(where(), ": state and output names belong to a step, not to a loop's body"));
    verify_structure(body);
  }

  void state() const {
    const std::size_t count = std::max(graph_.state, 0);
    if (graph_.state < 0 || count > graph_.inputs.size() || count > graph_.outputs.size())
      fail(concat("state is ", graph_.state, "; there are ", graph_.inputs.size(), " inputs and ", graph_.outputs.size(), " outputs"));
    for (std::size_t i = 0; i < count; ++i) {
      const Value& input = graph_.values[graph_.inputs[i]];
      const TensorType& next = graph_.type(graph_.outputs[i]);
      if (input.type != next)
        fail(concat("state ", shown_name(input.name), " is ", input.type.text(), "; its next value, output ", i, ", is ", next.text()));
    }
    if (!graph_.output_names.empty() && graph_.output_names.size() != graph_.outputs.size() - count)
      fail(concat("there are ", graph_.output_names.size(), " output names for ", graph_.outputs.size() - count,
                  " outputs after the state"));
  }

  const Graph& graph_;
  IdVector<ValueId, bool> defined_;
};

}  // namespace

void verify_structure(const Graph& graph) {
  Verifier(graph).run();
}

}  // namespace penstock
