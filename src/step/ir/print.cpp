// SPDX-License-Identifier: Apache-2.0
// The text form of a graph. Results are numbered in order; inputs keep their names, made unique where they are not.
#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

// Whether Cursor::name() reads exactly this name, and it is not a result's number.
bool is_plain(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !(is_letter(name.front()) || is_digit(name.front())) || name.back() == ':') return false;
  return !std::all_of(name.begin(), name.end(), is_digit) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_digit(c) || is_letter(c) || c == '.' || c == '$' || c == ':' || c == '/' || c == '-';
  });
}

std::string plain_or_quoted(std::string_view name) {
  return is_plain(name) ? std::string(name) : quote(name);
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), names_(graph.values.size(), "%?") {
    name_inputs();
    std::size_t next = 0;
    for (const Op& op : graph.ops)
      for (ValueId result : op.results) names_[result] = "%" + std::to_string(next++);
  }

  // Prints "(inputs) -> (types) {state} {", the ops, and "}".
  void region(std::string& out, int indent) const {
    const auto typed = [&](ValueId value) { return names_[value] + ": " + graph_.type(value).text(); };
    const auto type = [&](ValueId value) { return graph_.type(value).text(); };
    out += "(" + join(graph_.inputs, ", ", typed) + ") -> (" + join(graph_.outputs, ", ", type) + ") ";
    header_attributes(out);
    out += "{\n";
    const std::string margin(static_cast<std::size_t>(indent) + 2, ' ');
    for (const Op& op : graph_.ops) {
      out += margin + join(op.results, ", ", typed) + " = " + plain_or_quoted(op.name) + "(" + list(op.operands) + ")";
      attributes(out, op);
      if (op.body) {
        out += ' ';
        Printer(*op.body).region(out, indent + 2);
      }
      out += '\n';
    }
    out += margin + (graph_.outputs.empty() ? "return" : "return " + list(graph_.outputs)) + "\n" + margin.substr(2) + "}";
  }

 private:
  void name_inputs() {
    std::unordered_map<std::string, int> seen;
    for (const ValueId input : graph_.inputs) {
      std::string name = graph_.values[input].name;
      if (name.empty()) name = "in";
      if (int& count = seen[name]; count++ > 0) {
        std::string other;
        do other = name + "." + std::to_string(count++);
        while (seen.contains(other));
        name = other;
        seen[name] = 1;
      }
      names_[input] = shown_name(name);
    }
  }

  std::string list(const std::vector<ValueId>& values) const {
    return join(values, ", ", [&](ValueId value) { return names_[value]; });
  }

  void header_attributes(std::string& out) const {
    std::vector<std::string> parts;
    if (graph_.state != 0) parts.push_back("state=" + std::to_string(graph_.state));
    if (!graph_.output_names.empty()) parts.push_back("outputs=[" + join(graph_.output_names, ", ", quote) + "]");
    if (!parts.empty()) out += "{" + join(parts, ", ") + "} ";
  }

  static void attributes(std::string& out, const Op& op) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : op.attributes) parts.push_back(name + "=" + text_of(value));
    if (!op.stage.empty()) parts.push_back("stage=" + quote(op.stage));
    if (op.phase == Phase::backward) parts.push_back("phase=\"backward\"");
    if (!op.origin.empty()) parts.push_back("origin=" + quote(op.origin));
    if (op.sequence != -1) parts.push_back("sequence=" + std::to_string(op.sequence));
    if (!parts.empty()) out += " {" + join(parts, ", ") + "}";
  }

  const Graph& graph_;
  IdVector<ValueId, std::string> names_;  // of each value, with its '%'
};

struct AttributeText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(DType value) const { return std::string(name(value)); }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const std::vector<std::int64_t>& list) const {
    return "[" + join(list, ", ", [](std::int64_t value) { return std::to_string(value); }) + "]";
  }
  // An empty list prints its kind, "f64[]", as "[]" is the empty list of i64.
  std::string operator()(const std::vector<double>& list) const { return list.empty() ? "f64[]" : "[" + join(list, ", ", number) + "]"; }
};

}  // namespace

std::string text_of(const Attribute& attribute) {
  return std::visit(AttributeText(), attribute);
}

std::string shown_name(std::string_view name) {
  return "%" + plain_or_quoted(name);
}

std::string print_body(const Graph& graph, int indent) {
  std::string out = "graph @" + plain_or_quoted(graph.name);
  Printer(graph).region(out, indent);
  return out + "\n";
}

std::string print(const Graph& graph) {
  return "penstock graph 1\n" + print_body(graph);
}

}  // namespace penstock
