// SPDX-License-Identifier: Apache-2.0
// PipeDream's profiles: one line per node, and one per edge (these begin with a tab; in DAPPLE's profiles also with blanks).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/cursor.h"
#include "base/numbers.h"
#include "base/text.h"
#include "formats/read.h"

namespace penstock {
namespace {

constexpr std::string_view kSeparator = " -- ";

class PipedreamReader {
 public:
  PipedreamReader(std::string_view text, const std::string& file) : text_(text), cursor_(file, text) {}

  PlanGraph read() {
    for (std::size_t begin = 0; begin < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      std::string_view line = text_.substr(begin, end - begin);
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
      if (line.starts_with('\t') || line.starts_with(' ')) {
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
        edge_lines_.push_back(line);
      } else if (!line.empty()) {
        read_node(line);
      }
      begin = end + 1;
    }
    for (const std::string_view line : edge_lines_) read_edge(line);
    return std::move(graph_);
  }

 private:
  [[noreturn]] void fail(std::string_view at, const std::string& what, const std::string& hint = {}) {
    cursor_.fail_at(at.data() - text_.data(), what, hint);
  }

  // Takes the text up to the next separator, and the separator; the whole rest where there is none.
  static std::string_view take(std::string_view& rest) {
    const std::size_t at = rest.find(kSeparator);
    const std::string_view part = rest.substr(0, at);
    rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + kSeparator.size());
    return part;
  }

  void expect(std::string_view& rest, std::string_view token) {
    if (!rest.starts_with(token))
      fail(
          rest, concat("expected ", quote(token)),
          "a node is: ID -- DESCRIPTION -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES");
    rest.remove_prefix(token.size());
  }

  double number(std::string_view& rest) {
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || !(value >= 0) || value > 1e30) fail(rest, "expected a number from 0 to 1e30");
    rest.remove_prefix(end - rest.data());
    return value;
  }

  double bytes(std::string_view& rest) {
    if (!rest.starts_with('[')) return number(rest);
    double sum = 0;  // sum over several outputs
    do {
      rest.remove_prefix(1);
      while (rest.starts_with(' ')) rest.remove_prefix(1);
      sum += number(rest);
    } while (rest.starts_with(';'));
    expect(rest, "]");
    return sum;
  }

  void read_node(std::string_view line) {
    std::string_view rest = line;
    const std::string_view id = take(rest), description = take(rest);
    PlanNode node;
    node.name = id;
    node.kind = description;
    NodeCost cost;
    expect(rest, "forward_compute_time=");
    cost.forward = number(rest) * kMillisecond;
    expect(rest, ", backward_compute_time=");
    cost.backward = number(rest) * kMillisecond;
    expect(rest, ", activation_size=");
    cost.live_bytes = node.output_bytes = bytes(rest);
    expect(rest, ", parameter_size=");
    cost.resident_bytes = cost.parameter_bytes = number(rest);
    if (!rest.empty()) {
      expect(rest, " -- stage_id=");
      number(rest);
      if (!rest.empty()) fail(rest, "expected the end of the line");
    }
    node.costs = {cost};
    if (!ids_.emplace(id, static_cast<int>(graph_.nodes.size())).second) fail(line, concat("a second node ", quote(id)));
    graph_.nodes.push_back(std::move(node));
  }

  int node_of(std::string_view id) {
    const auto found = ids_.find(id);
    if (found == ids_.end()) fail(id, concat("there is no node ", quote(id)));
    return found->second;
  }

  // A node that reads another twice has two such lines, which are one edge.
  void read_edge(std::string_view line) {
    std::string_view rest = line;
    const std::string_view from = take(rest);
    if (rest.empty()) fail(line.substr(line.size()), "the line ends where a node's id should stand", "an edge is: a tab, ID -- ID");
    const int source = node_of(from), reader = node_of(rest);
    if (known_.emplace(source, reader).second)
      graph_.edges.push_back({source, reader, graph_.nodes[static_cast<std::size_t>(source)].output_bytes});
  }

  std::string_view text_;
  Cursor cursor_;
  PlanGraph graph_;
  std::unordered_map<std::string_view, int> ids_;
  std::vector<std::string_view> edge_lines_;
  std::set<std::pair<int, int>> known_;
};

}  // namespace

PlanGraph read_pipedream(std::string_view text, const std::string& file) {
  return PipedreamReader(text, file).read();
}

}  // namespace penstock
