// SPDX-License-Identifier: Apache-2.0
#include "lower/choose_layouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "stage/loop.h"

namespace penstock {
namespace {

// Numbers of classes, in the order in which they take parameters.
using Chosen = std::vector<std::size_t>;

struct ChoosingLayouts {
  const ClassSource& source;
  std::string axis;
  std::vector<LayoutClass> classes;
  std::set<std::vector<std::string>> constraints;  // names of dims that stand together
  std::map<std::pair<std::map<std::string, Layout>, std::set<std::string>>, LayoutScore> known{};
};

AxisWishes wishes_for(const ChoosingLayouts& c, const Chosen& chosen) {
  AxisWishes out{c.axis, c.source.members, {}, {}};
  for (const std::size_t i : chosen) {
    out.states.insert(c.classes[i].states.begin(), c.classes[i].states.end());
    if (c.classes[i].states.empty()) out.dims.insert(c.classes[i].name);
  }
  for (const auto& [parameter, dims] : c.source.parameters) out.states.try_emplace(parameter, kWhole);
  return out;
}

// Whether no constraint would have to split two dims.
bool can_constrain(const ChoosingLayouts& c, const std::set<std::string>& dims) {
  return std::ranges::all_of(c.constraints, [&](const std::vector<std::string>& together) {
    return std::ranges::count_if(together, [&](const std::string& name) { return dims.contains(name); }) < 2;
  });
}

// None: cannot be, or is worse than `best` by what it leaves whole of the parameters alone.
std::optional<LayoutScore> score_of_chosen(ChoosingLayouts& c, const Chosen& chosen, const LayoutScore& best) {
  const AxisWishes wishes = wishes_for(c, chosen);
  if (!can_constrain(c, wishes.dims)) return std::nullopt;
  HeldBytes held;
  for (int s = 0; s < c.source.step.state; ++s) {
    const Value& state = c.source.step.values[c.source.step.inputs[s]];
    if (const auto at = wishes.states.find(state.name); at != wishes.states.end())
      held.add(state.type, at->second.is_split(), c.source.members);
  }
  if (held.share() > best.whole) return std::nullopt;
  const auto [at, added] = c.known.try_emplace({wishes.states, wishes.dims});
  if (added) at->second = score_of(c.source.step, wishes);
  return at->second;
}

// One class less, one more that goes before or behind all others, or one in the place of another.
std::vector<Chosen> neighbours(const Chosen& chosen, std::size_t classes) {
  std::vector<Chosen> out;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    out.push_back(chosen);
    out.back().erase(out.back().begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t more = 0; more < classes; ++more) {
    if (std::ranges::find(chosen, more) != chosen.end()) continue;
    out.push_back(chosen);
    out.back().push_back(more);
    out.push_back(chosen);
    out.back().insert(out.back().begin(), more);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      out.push_back(chosen);
      out.back()[i] = more;
    }
  }
  return out;
}

struct Found {
  Chosen chosen;
  LayoutScore score{2, 0, 0};  // worse than any
};

// Goes to the best neighbour as long as that is better.
Found descended(ChoosingLayouts& c, Chosen start) {
  Found best;
  std::vector<Chosen> next{std::move(start)};
  for (bool better = true; better;) {
    better = false;
    for (Chosen& chosen : next)
      if (const auto score = score_of_chosen(c, chosen, best.score); score && *score < best.score) {
        best = {std::move(chosen), *score};
        better = true;
      }
    next = neighbours(best.chosen, c.classes.size());
  }
  return best;
}

void note_constraints_together(const Graph& body, std::set<std::vector<std::string>>& out) {
  for (const Op& op : body.ops)
    if (op.name == "constrain") out.insert(constrained_dims(op));
}

std::vector<Chosen> starts_of(const ChoosingLayouts& c, const std::set<std::string>& named) {
  std::vector<Chosen> out{{}};
  for (std::size_t i = 0; i < c.classes.size(); ++i)
    if (named.contains(c.classes[i].name)) out[0].push_back(i);
  for (std::size_t i = 0; i < c.classes.size(); ++i) out.push_back({i});
  return out;
}

// Without those of which others before have taken all parameters.
Chosen without_idle(const ChoosingLayouts& c, Chosen chosen) {
  const AxisWishes all = wishes_for(c, chosen);
  for (std::size_t i = chosen.size(); i-- > 0;) {
    Chosen fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const AxisWishes wishes = wishes_for(c, fewer);
    if (wishes.states == all.states && wishes.dims == all.dims) chosen = std::move(fewer);
  }
  return chosen;
}

}  // namespace

void HeldBytes::add(const TensorType& type, bool is_split, std::int64_t members) {
  if (!is_floating(type.dtype) || std::ranges::none_of(type.shape, [&](std::int64_t size) { return size >= members; })) return;
  all += static_cast<double>(type.bytes());
  if (!is_split) whole += static_cast<double>(type.bytes());
}

bool operator<(const LayoutScore& a, const LayoutScore& b) {
  const auto key = [](const LayoutScore& s) { return std::tuple(std::llround(s.whole * 1e9), std::llround(s.bytes * 64), s.conversions); };
  return key(a) < key(b);
}

LayoutScore score_of(const Graph& step, const GraphLayouts& layouts, std::int64_t members) {
  HeldBytes held;
  for (int s = 0; s < step.state; ++s) held.add(step.type(step.inputs[s]), layouts.values[step.inputs[s]].is_split(), members);
  const Op& loop = step.ops[loop_of(step)];
  for (const ValueId sum : loop.results) held.add(step.type(sum), layouts.values[sum].is_split(), members);
  LayoutScore out{held.share(), 0, 0};
  const auto count = [&](const Graph& graph, const GraphLayouts& of_graph, double times) {
    for (const LayoutConversion& conversion : conversions_in(graph, of_graph, members)) {
      out.bytes += times * conversion.bytes;
      ++out.conversions;
    }
  };
  count(*loop.body, *layouts.body, static_cast<double>(attribute<std::int64_t>(loop, "microbatches")));
  count(step, layouts, 1);
  return out;
}

LayoutScore score_of(const Graph& step, const AxisWishes& wishes) {
  const GraphLayouts layouts = decide_layouts(step, wishes);
  if (!has_split_loss(step, layouts)) return score_of(step, layouts, wishes.members);
  const Graph in_parts = losses_in_parts(step, layouts, wishes.members);
  return score_of(in_parts, decide_layouts(in_parts, wishes), wishes.members);
}

LayoutChoice choose_layouts(const std::string& axis, const ClassSource& source, const std::set<std::string>& named) {
  ChoosingLayouts c{source, axis, layout_classes(source), {}};
  if (std::ranges::all_of(c.classes, [](const LayoutClass& found) { return found.states.empty(); }))
    throw Error(concat("layout.choose = ", quote(axis), ": no parameter can be split over ", counted(source.members, "member")),
                {"a dim can be split that has as many units as there are members and lies along no other axis"},
                concat("use a smaller ", axis));
  note_constraints_together(*source.step.ops[loop_of(source.step)].body, c.constraints);
  Found best;
  for (Chosen& start : starts_of(c, named))
    if (Found found = descended(c, std::move(start)); found.score < best.score) best = std::move(found);
  LayoutChoice out{{}, wishes_for(c, best.chosen), best.score, static_cast<int>(c.known.size())};
  for (const std::size_t i : without_idle(c, best.chosen)) out.classes.push_back(std::move(c.classes[i]));
  return out;
}

}  // namespace penstock
