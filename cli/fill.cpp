// SPDX-License-Identifier: Apache-2.0
#include "cli/fill.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/amount.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "penstock/error.h"
#include "report/table.h"
#include "simulate/filled_timeline.h"

namespace penstock {
namespace {

constexpr std::size_t kMostLayers = 100'000;
constexpr std::size_t kMostRows = 40;  // of the table of intervals
constexpr const char* kChainForm = "chains are written 4x3;8x1.5, layers COUNTxTIME or TIME with commas between: 1,0.5,2";

[[noreturn]] void fail(const std::string& flag, const std::string& value, const std::string& why, const std::string& hint) {
  throw Error(concat(flag, " ", quote(value), ": ", why), {}, hint);
}

// Adds the layers of "4x3" or "3".
void add_layers(const std::string& text, const std::string& part, bool seconds, FrozenChain& chain) {
  const std::size_t times = part.find('x');
  const std::optional<int> count = times == std::string::npos ? 1 : parse_number<int>(trim(part.substr(0, times)));
  const std::optional<Amount> time = parse_amount(times == std::string::npos ? part : part.substr(times + 1), Quantity::seconds);
  if (!count || !time) fail("--fill", text, concat("cannot read ", quote(part)), kChainForm);
  if (*count < 1) fail("--fill", text, concat(quote(part), " has ", *count, " layers"), "at least one");
  if (!(time->value > 0) || !std::isfinite(time->value))
    fail("--fill", text, concat("a layer of ", quote(part), " takes ", number(time->value)), "a layer's time is a finite number above 0");
  if (time->has_unit && !seconds)
    fail("--fill", text, concat(quote(part), " has a unit, and the step's times have none"), "leave out the unit, or give all times one");
  if (chain.size() + static_cast<std::size_t>(*count) > kMostLayers)
    fail("--fill", text, concat("more than ", kMostLayers, " layers in a chain"), "join layers that run one behind the other");
  chain.insert(chain.end(), static_cast<std::size_t>(*count), time->value);
}

nlohmann::ordered_json json_of(const std::vector<FrozenPiece>& pieces) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const FrozenPiece& piece : pieces)
    out.push_back({{"chain", piece.chain},
                   {"layer", piece.layer},
                   {"share", piece.share},
                   {"begin", piece.begin},
                   {"end", piece.end},
                   {"devices", piece.devices}});
  return out;
}

// The part of the pieces that is in each interval: work on one device, and names.
struct Inside {
  double work = 0;
  std::vector<std::string> names;
};
std::vector<Inside> by_interval(const FilledStep& filled, const std::vector<IdleInterval>& intervals) {
  std::vector<Inside> out(intervals.size());
  std::size_t at = 0;
  for (const FrozenPiece& piece : filled.fill.inside) {
    while (at + 1 < intervals.size() && intervals[at].end <= piece.begin) ++at;
    out[at].work += (piece.end - piece.begin) * static_cast<double>(piece.devices.size());
    out[at].names.push_back(name_of(piece, filled.fill.parts));
  }
  return out;
}

// "0-3 5" of ascending numbers.
std::string runs_text(const std::vector<std::int32_t>& numbers) {
  std::vector<std::string> out;
  for (std::size_t from = 0, next = 0; from < numbers.size(); from = next) {
    for (next = from + 1; next < numbers.size() && numbers[next] == numbers[next - 1] + 1;) ++next;
    out.push_back(next == from + 1 ? std::to_string(numbers[from]) : concat(numbers[from], "-", numbers[next - 1]));
  }
  return join(out, " ");
}

// All of a few names, else the first and the last.
std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 6;
  return names.size() <= kMostNames ? join(names, " ") : concat(names.front(), " .. ", names.back(), " (", names.size(), ")");
}

std::string intervals_text(const FilledStep& filled) {
  const auto text = [&](double time) { return time_text(time, filled.step.seconds); };
  const std::vector<IdleInterval> intervals = idle_intervals(filled.step);
  const std::vector<Inside> inside = by_interval(filled, intervals);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(kMostRows, intervals.size()); ++i) {
    const IdleInterval& interval = intervals[i];
    rows.push_back({text(interval.begin), text(interval.end), runs_text(interval.devices), text(interval.idle()), text(inside[i].work),
                    names_text(inside[i].names)});
  }
  const std::string more = intervals.size() > kMostRows ? concat("and ", intervals.size() - kMostRows, " more; --json has all\n") : "";
  return table({"from", "to", "devices", "idle", "filled", "with"}, rows) + more;
}

}  // namespace

void add_fill_options(CLI::App& command, FillChoice& choice) {
  begin_group(command, groups::kTimes);
  command
      .add_option("--fill", choice.chains,
                  "Fill idle time with frozen layers of the next step: chains of COUNTxTIME, as 4x3;8x1.5 [nothing]")
      ->type_name("CHAINS");
  command.add_option("--quantum", choice.quantum, "With --fill: partial batches are multiples of this part of a batch [1/8]")
      ->type_name("1/N");
  command.add_option("--steps", choice.steps, "With --fill: draw so many steps, the first one's frozen layers ahead of them [1]");
}

std::vector<FrozenChain> parse_chains(const std::string& text, bool seconds) {
  std::vector<FrozenChain> out;
  for (const std::string& chain : split(text, ';')) {
    if (trim(chain).empty()) fail("--fill", text, concat("chain ", out.size(), " is empty"), kChainForm);
    out.emplace_back();
    for (const std::string& part : split(chain, ',')) add_layers(text, part, seconds, out.back());
  }
  return out;
}

int parse_quantum(const std::string& text) {
  constexpr double kMostParts = 4096;
  const std::size_t slash = text.find('/');
  const std::optional<double> above = parse_number<double>(text.substr(0, slash)),
                              below = slash == std::string::npos ? 1 : parse_number<double>(text.substr(slash + 1));
  const std::string hint = concat("a quantum is 1/n of a batch, n from 1 to ", kMostParts, ": 1/8");
  if (!above || !below) fail("--quantum", text, "this is no part of a batch", hint);
  const double quantum = *above / *below;
  if (!(quantum > 0 && quantum <= 1)) fail("--quantum", text, concat("is ", number(quantum), ", not above 0 and at most 1"), hint);
  const double parts = std::round(1 / quantum);
  if (parts > kMostParts || std::abs(parts * quantum - 1) > 1e-9)
    fail("--quantum", text, concat("a batch has ", short_decimal(1 / quantum, 6), " of them, no whole number up to ", kMostParts), hint);
  return static_cast<int>(parts);
}

bool is_given(const FillChoice& choice) {
  if (choice.chains) return true;
  for (const auto& [flag, given] : {std::pair{"--quantum", choice.quantum.has_value()}, {"--steps", choice.steps.has_value()}})
    if (given) throw Error(concat(flag, " is for frozen layers in idle time"), {}, "add --fill, as --fill 10x2");
  return false;
}

FilledStep filled_step(const FillChoice& choice, const Timeline& step) {
  FilledStep out;
  FillOptions options;
  if (choice.quantum) options.parts = parse_quantum(*choice.quantum);
  out.chains = parse_chains(choice.chains.value(), step.seconds);
  out.step = step;
  out.fill = fill_idle(step, out.chains, options);
  out.steps = choice.steps;
  out.drawn = choice.steps ? filled_steps(step, out.chains, out.fill, *choice.steps) : with_frozen(step, out.fill);
  out.drawn.title += ", filled";
  return out;
}

std::string text_of(const FilledStep& filled) {
  const FrozenFill& fill = filled.fill;
  const auto text = [&](double time) { return time_text(time, filled.step.seconds); };
  const auto percent = [](double share) { return concat(short_decimal(100 * share, 3), " %"); };
  std::size_t layers = 0;
  for (const FrozenChain& chain : filled.chains) layers += chain.size();
  const double devices = static_cast<double>(filled.step.devices.size()), own = filled.step.makespan;
  std::string out = concat("frozen layers  ", layers, " in ", counted(std::ssize(filled.chains), "chain"), ", ", text(fill.work),
                           " on one device\nplaced         ", percent(fill.placed_share()), " of them, in ", percent(fill.filled_share()),
                           " of the idle time of ", text(fill.idle), "\nstep           ", text(fill.makespan),
                           ", where all behind it would be ", text(own + fill.work / devices), " and none of them ", text(own), "\n");
  if (filled.steps)
    out += concat(counted(*filled.steps, "step"), std::string(*filled.steps < 10 ? 8 : 7, ' '), text(filled.drawn.makespan), ", of which ",
                  text(fill.work / devices), " ahead of the first\n");
  return concat(out, "\n", intervals_text(filled));
}

nlohmann::ordered_json json_of(const FilledStep& filled) {
  const FrozenFill& fill = filled.fill;
  const double own = filled.step.makespan;
  nlohmann::ordered_json out = {{"makespan_without", own},
                                {"makespan_behind", own + fill.work / static_cast<double>(filled.step.devices.size())},
                                {"makespan", fill.makespan},
                                {"quantum", 1.0 / fill.parts},
                                {"work", fill.work},
                                {"placed", fill.placed},
                                {"placed_share", fill.placed_share()},
                                {"idle", fill.idle},
                                {"filled_share", fill.filled_share()},
                                {"inside", json_of(fill.inside)},
                                {"behind", json_of(fill.behind)}};
  if (filled.steps) out["steps"] = {{"count", *filled.steps}, {"makespan", filled.drawn.makespan}};
  return out;
}

}  // namespace penstock
