// SPDX-License-Identifier: Apache-2.0
// Parses and prints the text of rules.
#include "penstock/rules.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "rules/expression.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

const std::vector<std::string> kStatements = {"placement", "edges",   "prefer", "warm-up", "steady", "drain",  "order", "limit",
                                              "recompute", "offload", "gather", "update",  "slices", "window", "times"};
// Kinds that no preference names: they follow from the order of the others.
const std::pair<Kind, std::string_view> kFollowing[] = {
    {Kind::R, "recompute"},    {Kind::OFFLOAD, "offload"},    {Kind::RELOAD, "offload"}, {Kind::UNSHARD, "gather"},
    {Kind::RESHARD, "gather"}, {Kind::REDUCE_GRAD, "gather"}, {Kind::U, "update"}};
constexpr std::int64_t kMostStages = 1 << 20;

class RulesParser {
 public:
  RulesParser(std::string_view text, std::string_view file) : cursor_(file, text) { rules_.name = file; }

  Rules parse() {
    cursor_.header("rules", 1);
    while (!cursor_.at_end()) statement();
    if (rules_.offload && rules_.recompute && rules_.recompute->beyond == RulesResiduals().beyond)
      cursor_.fail_at(offload_, "nothing is left to offload where all is recomputed",
                      "recompute beyond N, so that the first N are offloaded");
    return std::move(rules_);
  }

 private:
  void statement() {
    const std::size_t begin = cursor_.position();
    for (const std::string& name : kStatements) {
      if (!cursor_.accept(name)) continue;
      if (name != "limit" && name != "order" && !seen_.insert(name).second) cursor_.fail_at(begin, concat("a second ", quote(name)));
      return rest_of(name, begin);
    }
    refuse_following();
    const std::string word(cursor_.word());
    const std::string near = nearest(word, kStatements);
    cursor_.fail_at(begin, concat("unknown rule ", quote(word)),
                    near.empty() ? "rules: " + join(kStatements, ", ") : concat("did you mean ", near, "?"));
  }

  void rest_of(std::string_view name, std::size_t begin) {
    if (name == "placement") return placement();
    if (name == "edges") return edges();
    if (name == "order") return order(begin);
    if (name == "limit") return limit();
    if (name == "times") return times();
    if (name == "recompute") return residuals(rules_.recompute);
    if (name == "offload") {
      offload_ = begin;
      return residuals(rules_.offload);
    }
    if (name == "gather") return void(rules_.gather = cursor_.accept("turns") ? Rules::Gather::turns : Rules::Gather::stretches);
    if (name == "update") return void(rules_.update = true);
    if (name == "slices") return void(rules_.slices = true);
    if (name == "window") return window();
    Preference& preference = name == "prefer"    ? rules_.prefer
                             : name == "warm-up" ? rules_.warm_up
                             : name == "steady"  ? rules_.steady
                                                 : rules_.drain;
    preference = kinds();
  }

  std::int32_t integer(std::string_view what, std::int64_t least) {
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    const std::int64_t value = cursor_.integer();
    if (value < least || value > kMostStages)
      cursor_.fail_at(begin, concat(what, " must be ", least, " to ", kMostStages, ", not ", value));
    return static_cast<std::int32_t>(value);
  }

  void placement() {
    using Path = RulesPlacement::Path;
    RulesPlacement& out = rules_.placement;
    out.bidirectional = cursor_.accept("bidirectional");
    if (cursor_.accept("stages")) {
      out.path = Path::stages;
      do out.actors.push_back(integer("an actor", 0));
      while (cursor_.next_is_number());
      return;
    }
    if (cursor_.accept("chain")) return;
    const bool loop = cursor_.accept("loop");
    if (!loop && !cursor_.accept("wave"))
      cursor_.fail("expected a placement", "chain, loop [V], wave [V], stages ACTOR..., or bidirectional before one of them");
    out.path = loop ? Path::loop : Path::wave;
    if (cursor_.next_is_number()) out.chunks = integer("stages per actor", 1);
  }

  void edges() {
    do {
      cursor_.skip();
      const std::size_t begin = cursor_.position();
      const std::int32_t from = integer("a stage", 0);
      cursor_.expect(">");
      const std::int32_t to = integer("a stage", 0);
      if (from >= to) cursor_.fail_at(begin, concat("stage ", from, " cannot feed stage ", to), "a stage feeds those with larger numbers");
      rules_.edges.emplace_back(from, to);
    } while (cursor_.next_is_number());
  }

  bool next_is_kind() {
    const std::size_t begin = cursor_.position();
    bool found = false;
    for (const char* kind : {"F", "B", "I", "W"}) found = found || cursor_.accept(kind);
    cursor_.seek(begin);
    return found;
  }

  void refuse_following() {
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    for (const auto& [kind, statement] : kFollowing)
      if (cursor_.accept(name(kind)))
        cursor_.fail_at(begin, concat(name(kind), " follows from the order of F and its backward"), concat("write `", statement, "`"));
  }

  Kind kind() {
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    refuse_following();
    if (!next_is_kind()) cursor_.fail("expected a kind", "F, B, I or W");
    Kind out = Kind::F;
    parse_kind(cursor_.word(), out);
    if (out == Kind::F) return out;
    const bool split = out != Kind::B;
    if (backward_named_ && split != rules_.split)
      cursor_.fail_at(begin, concat(name(out), " of a backward that is ", split ? "whole" : "split"), "a backward is B, or I and W");
    backward_named_ = true;
    rules_.split = split;
    return out;
  }

  Preference kinds() {
    Preference out;
    std::set<Kind> seen;
    for (bool turns = false; turns || out.empty() || next_is_kind(); turns = cursor_.accept("/")) {
      cursor_.skip();
      const std::size_t begin = cursor_.position();
      const Kind next = kind();
      const bool again = turns && out.back().back() == next;
      if (!seen.insert(next).second && !again) cursor_.fail_at(begin, concat(name(next), " stands twice"));
      if (!turns) out.emplace_back();
      out.back().push_back(next);
    }
    return out;
  }

  void order(std::size_t begin) {
    const Kind of = kind();
    const std::size_t which = of == Kind::F ? 0 : of == Kind::W ? 2 : 1;
    if (!seen_.insert(concat("order ", which)).second) cursor_.fail_at(begin, concat("a second \"order ", name(of), "\""));
    RulesOrder& out = rules_.orders[which];
    if (cursor_.accept("depth")) {
      out.way = RulesOrder::Way::depth;
    } else if (cursor_.accept("breadth")) {
      out.way = RulesOrder::Way::breadth;
    } else if (cursor_.accept("groups")) {
      out.size = expression(false);
    } else {
      cursor_.fail("expected an order", "depth, breadth, or groups SIZE");
    }
  }

  void limit() {
    RulesLimit& out = rules_.limits.emplace_back();
    out.each = cursor_.accept("each");
    out.most = expression(out.each);
    if (!cursor_.accept("until")) return;
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    if (kind() != Kind::I) cursor_.fail_at(begin, "a limit lasts until I, or without \"until\" for as long as activations live");
    out.until_input = true;
  }

  void residuals(std::optional<RulesResiduals>& rule) {
    RulesResiduals& out = rule.emplace();
    out.each = cursor_.accept("each");
    if (!out.each && !cursor_.accept("beyond")) return;
    if (out.each) cursor_.expect("beyond");
    out.beyond = expression(out.each);
  }

  void window() {
    if (!cursor_.accept("undrained"))
      cursor_.fail("expected a window", "undrained [missing UPDATES]; other rules are drained behind each step");
    rules_.undrained = true;
    if (!cursor_.accept("missing")) return;
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    rules_.missing = expression(false);
    if (rules_.missing->uses('r')) cursor_.fail_at(begin, "r is an actor, and all of a step read one version");
  }

  void times() {
    do {
      const Kind of = kind();
      rules_.times[static_cast<std::size_t>(of)] = integer("a time", 0);
    } while (next_is_kind());
  }

  Expression expression(bool of_stage) {
    cursor_.skip();
    const std::size_t begin = cursor_.position();
    Expression out = parse_expression(cursor_);
    if (!of_stage && out.uses('s')) cursor_.fail_at(begin, "s is a stage, and this is not of one", "write `each` before it");
    return out;
  }

  Cursor cursor_;
  Rules rules_;
  std::set<std::string> seen_;
  bool backward_named_ = false;
  std::size_t offload_ = 0;  // where that statement begins
};

std::string text_of(const RulesPlacement& placement) {
  using Path = RulesPlacement::Path;
  std::string out = placement.bidirectional ? " bidirectional" : "";
  if (placement.path == Path::chain) return out + " chain";
  if (placement.path == Path::stages) return out + " stages " + join(placement.actors, " ", [](std::int32_t a) { return concat(a); });
  out += placement.path == Path::loop ? " loop" : " wave";
  return placement.chunks > 0 ? concat(out, " ", placement.chunks) : out;
}

std::string text_of(const Preference& preference) {
  const auto kind = [](Kind k) { return std::string(name(k)); };
  return join(preference, " ", [&](const auto& rank) { return join(rank, "/", kind); });
}

std::string text_of(const RulesOrder& order) {
  if (order.way == RulesOrder::Way::bunches) return "groups " + print(order.size);
  return order.way == RulesOrder::Way::depth ? "depth" : "breadth";
}

std::string text_of(const RulesResiduals& residuals) {
  if (residuals.each) return concat(" each beyond ", print(residuals.beyond));
  return residuals.beyond == RulesResiduals().beyond ? "" : concat(" beyond ", print(residuals.beyond));
}

// Whether backward is split; a preference or a limit may be the only place that says so.
bool is_split(const Rules& rules) {
  bool split = rules.split;
  for (const RulesLimit& limit : rules.limits) split = split || limit.until_input;
  for (const Preference* preference : {&rules.prefer, &rules.warm_up, &rules.steady, &rules.drain}) {
    for (const auto& rank : *preference) {
      for (const Kind kind : rank) split = split || kind == Kind::I || kind == Kind::W;
    }
  }
  return split;
}

}  // namespace

std::string print(const RulesLimit& limit) {
  return concat("limit ", limit.each ? "each " : "", print(limit.most), limit.until_input ? " until I" : "");
}

std::string print(const Rules& rules) {
  std::string out = concat("penstock rules 1\nplacement", text_of(rules.placement), "\n");
  const auto edge = [](const auto& e) { return concat(e.first, ">", e.second); };
  if (!rules.edges.empty()) out += concat("edges ", join(rules.edges, " ", edge), "\n");
  const std::pair<const char*, const Preference*> preferences[] = {
      {"prefer", &rules.prefer}, {"warm-up", &rules.warm_up}, {"steady", &rules.steady}, {"drain", &rules.drain}};
  for (const auto& [name, preference] : preferences) {
    if (!preference->empty()) out += concat(name, " ", text_of(*preference), "\n");
  }
  const char* kinds[] = {"F", is_split(rules) ? "I" : "B", "W"};
  for (std::size_t i = 0; i < rules.orders.size(); ++i) {
    if (rules.orders[i] != RulesOrder()) out += concat("order ", kinds[i], " ", text_of(rules.orders[i]), "\n");
  }
  for (const RulesLimit& limit : rules.limits) out += print(limit) + "\n";
  if (rules.recompute) out += concat("recompute", text_of(*rules.recompute), "\n");
  if (rules.offload) out += concat("offload", text_of(*rules.offload), "\n");
  if (rules.gather != Rules::Gather::none) out += rules.gather == Rules::Gather::turns ? "gather turns\n" : "gather\n";
  if (rules.update) out += "update\n";
  if (rules.slices) out += "slices\n";
  if (rules.undrained) out += concat("window undrained", rules.missing ? " missing " + print(*rules.missing) : "", "\n");
  std::string times;
  for (std::size_t kind = 0; kind < rules.times.size(); ++kind) {
    if (rules.times[kind] != Rules().times[kind]) times += concat(" ", name(static_cast<Kind>(kind)), " ", rules.times[kind]);
  }
  if (!times.empty()) out += concat("times", times, "\n");
  return out;
}

Rules parse_rules(std::string_view text, std::string_view file) {
  return RulesParser(text, file).parse();
}

}  // namespace penstock
