// SPDX-License-Identifier: Apache-2.0
#include <cctype>
#include <limits>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "ir/graph_parser.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The most loops that may be nested: the readers of graphs recurse, so the text must not decide how deep.
constexpr int kMaximalDepth = 16;

// The name after '@', or an op's name.
std::string parse_name(Cursor& in) {
  return in.peek() == '"' ? in.string() : std::string(in.name());
}

template <class Item>
void parse_list(Cursor& in, std::string_view close, const Item& item) {
  if (in.accept(close)) return;
  do item();
  while (in.accept(","));
  in.expect(close);
}

Attribute parse_number_list(Cursor& in) {
  if (in.accept("]")) return std::vector<std::int64_t>();
  in.skip();
  if (in.number_is_real()) {
    std::vector<double> reals;
    do reals.push_back(in.real());
    while (in.accept(","));
    in.expect("]");
    return reals;
  }
  std::vector<std::int64_t> integers;
  do {
    in.skip();
    if (in.number_is_real()) in.fail("a real in a list of integers", "a list is of integers or of reals (1.0)");
    integers.push_back(in.integer());
  } while (in.accept(","));
  in.expect("]");
  return integers;
}

Attribute parse_attribute(Cursor& in) {
  if (in.accept("[")) return parse_number_list(in);
  if (in.peek() == '"') return in.string();
  if (in.next_is_number()) {
    if (in.number_is_real()) return in.real();
    return in.integer();
  }
  const std::size_t begin = in.position();
  const std::string_view word = in.word();
  if (word == "true" || word == "false") return word == "true";
  DType dtype;
  if (!parse_dtype(word, dtype))
    in.fail_at(begin, concat(quote(word), " is no attribute value"), "a number, true, false, a dtype, a \"text\" or a [list]");
  if (dtype != DType::f64 || !in.accept("[")) return dtype;
  in.expect("]");
  return std::vector<double>();
}

class RegionParser {
 public:
  RegionParser(Cursor& in, int depth) : in_(in), depth_(depth) {
    if (depth > kMaximalDepth) in_.fail(concat("loops are nested deeper than ", kMaximalDepth));
  }

  Graph parse(std::string name) {
    graph_.name = std::move(name);
    in_.expect("(");
    parse_list(in_, ")", [&] { graph_.inputs.push_back(definition(true)); });
    in_.expect("->");
    in_.expect("(");
    parse_list(in_, ")", [&] { declared_.push_back(parse_type(in_)); });
    in_.expect("{");
    if (std::isalpha(static_cast<unsigned char>(in_.peek())) && !at_return()) {
      header_attributes();
      in_.expect("{");
    }
    while (!in_.accept("return")) op();
    outputs();
    in_.expect("}");
    return std::move(graph_);
  }

 private:
  bool at_return() {
    const std::size_t begin = in_.position();
    const bool found = in_.accept("return");
    in_.seek(begin);
    return found;
  }

  // The name after '%' as the printer would write it, and the name that it stands for: "%0" is a result, "%\"0\"" an input of that name.
  std::pair<std::string, std::string> value_name() {
    in_.expect("%");
    if (in_.peek() != '"') {
      std::string name{in_.name()};
      return {"%" + name, name};
    }
    std::string name = in_.string();
    return {shown_name(name), name};
  }

  // Reads the definition of a value: "%x: f32[2]".
  ValueId definition(bool is_input) {
    in_.skip();
    const std::size_t begin = in_.position();
    auto [shown, name] = value_name();
    if (values_.contains(shown)) in_.fail_at(begin, concat(shown, " is already defined"), "every value has one definition");
    in_.expect(":");
    const ValueId value = graph_.add_value(parse_type(in_), is_input ? name : "");
    values_.emplace(std::move(shown), value);
    return value;
  }

  // Reads a value that was defined before `end`.
  ValueId use(std::size_t end) {
    in_.skip();
    const std::size_t begin = in_.position();
    const std::string shown = value_name().first;
    const auto it = values_.find(shown);
    if (it == values_.end() || it->second.index() >= end) in_.fail_at(begin, concat(shown, " is not defined before its use"));
    return it->second;
  }

  void header_attributes() {
    do {
      in_.skip();
      const std::size_t begin = in_.position();
      const std::string_view key = in_.word();
      in_.expect("=");
      if (key == "state") {
        graph_.state = static_cast<int>(bounded(std::numeric_limits<int>::max()));
      } else if (key == "outputs") {
        in_.expect("[");
        parse_list(in_, "]", [&] { graph_.output_names.push_back(in_.string()); });
      } else {
        in_.fail_at(begin, concat(quote(key), " is no attribute of a graph"), "known: state, outputs");
      }
    } while (in_.accept(","));
    in_.expect("}");
  }

  std::int64_t bounded(std::int64_t largest) {
    in_.skip();
    const std::size_t begin = in_.position();
    const std::int64_t value = in_.integer();
    if (value < 0 || value > largest) in_.fail_at(begin, concat("this number must be from 0 to ", largest));
    return value;
  }

  void op() {
    Op op;
    do op.results.push_back(definition(false));
    while (in_.accept(","));
    in_.expect("=");
    op.name = parse_name(in_);
    in_.expect("(");
    parse_list(in_, ")", [&] { op.operands.push_back(use(op.results.front().index())); });
    std::set<std::string, std::less<>> seen;
    if (in_.accept("{")) parse_list(in_, "}", [&] { attribute(op, seen); });
    if (in_.peek() == '(') op.body = std::make_shared<const Graph>(RegionParser(in_, depth_ + 1).parse("body"));
    graph_.ops.push_back(std::move(op));
  }

  void attribute(Op& op, std::set<std::string, std::less<>>& seen) {
    in_.skip();
    const std::size_t begin = in_.position();
    std::string key{in_.word()};
    if (!seen.insert(key).second) in_.fail_at(begin, concat("attribute ", quote(key), " is given twice"));
    in_.expect("=");
    if (is_mark(key)) return mark(op, key);
    op.attributes.emplace(std::move(key), parse_attribute(in_));
  }

  void mark(Op& op, std::string_view key) {
    if (key == "stage") {
      op.stage = in_.string();
    } else if (key == "origin") {
      op.origin = in_.string();
    } else if (key == "sequence") {
      op.sequence = bounded(std::numeric_limits<std::int64_t>::max());
    } else {
      in_.skip();
      const std::size_t begin = in_.position();
      const std::string phase = in_.string();
      if (phase != "forward" && phase != "backward") in_.fail_at(begin, "phase is \"forward\" or \"backward\"");
      op.phase = phase == "backward" ? Phase::backward : Phase::forward;
    }
  }

  void outputs() {
    in_.skip();
    const std::size_t begin = in_.position();
    if (in_.peek() == '%') {
      do graph_.outputs.push_back(use(graph_.values.size()));
      while (in_.accept(","));
    }
    if (graph_.outputs.size() != declared_.size())
      in_.fail_at(begin, concat("returns ", graph_.outputs.size(), " values; the signature says ", declared_.size()));
    for (std::size_t i = 0; i < declared_.size(); ++i)
      if (graph_.type(graph_.outputs[i]) != declared_[i])
        in_.fail_at(begin,
                    concat("output ", i, " is ", graph_.type(graph_.outputs[i]).text(), "; the signature says ", declared_[i].text()));
  }

  Cursor& in_;
  int depth_;
  Graph graph_;
  std::vector<TensorType> declared_;
  std::unordered_map<std::string, ValueId> values_;  // keys as they stand in the text, with '%'
};

}  // namespace

TensorType parse_type(Cursor& in) {
  in.skip();
  const std::size_t begin = in.position();
  TensorType type;
  const std::string_view word = in.word();
  if (!parse_dtype(word, type.dtype)) in.fail_at(begin, concat(quote(word), " is no dtype"), "known: f64 f32 bf16 f16 i64 i32 bool");
  in.expect("[");
  parse_list(in, "]", [&] { type.shape.push_back(in.integer()); });
  if (!is_countable(type)) in.fail_at(begin, "this shape has a negative size or more bytes than 63 bits count");
  return type;
}

Graph parse_graph(Cursor& cursor) {
  cursor.expect("graph");
  cursor.expect("@");
  return RegionParser(cursor, 0).parse(parse_name(cursor));
}

Graph parse_graph(std::string_view text, std::string_view file) {
  Cursor cursor(file, text);
  cursor.header("graph", 1);
  Graph graph = parse_graph(cursor);
  if (!cursor.at_end()) cursor.fail("a graph ends here; nothing may follow it");
  return graph;
}

}  // namespace penstock
