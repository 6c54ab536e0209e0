// SPDX-License-Identifier: Apache-2.0
// Devices that are held back, so that a run shows what slow ones cost.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "config/config.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// A device, as it is counted over all actors, and by what it is held back.
struct Straggler {
  std::size_t first = 0, devices = 0;
  double factor = 1;
};

// `one`: ACTOR=FACTOR, or ACTOR.DEVICE=FACTOR.
Straggler straggler_of(const std::string& one, const std::vector<int>& groups) {
  const std::string hint = "actor 1 at half its speed is written 1=2; its device 0 alone, 1.0=2";
  const std::size_t equals = one.find('='), dot = one.substr(0, equals).find('.');
  const auto actor = parse_number<int>(one.substr(0, std::min(equals, dot)));
  const auto device = parse_number<int>(dot == std::string::npos ? "0" : one.substr(dot + 1, equals - dot - 1));
  const auto factor = parse_number<double>(equals == std::string::npos ? "" : one.substr(equals + 1));
  if (!actor || !device || !factor) throw Error(concat("run.straggler: ", quote(one), " is no actor and factor"), {}, hint);
  const auto check = [&](const std::string& what, const char* which, int given, std::int64_t count) {
    if (given < 0 || given >= count)
      throw Error(concat("run.straggler: ", what, " ", given), {concat(which, " are 0 to ", count - 1)}, hint);
  };
  check("there is no actor", "actors", *actor, std::ssize(groups));
  const int devices = groups[static_cast<std::size_t>(*actor)];
  check(concat("actor ", *actor, " has no device"), "its devices", *device, devices);
  constexpr double kMost = 1e6;  // the clock counts what days times this are
  if (!(*factor >= 1 && *factor <= kMost))
    throw Error(concat("run.straggler: actor ", *actor, " cannot take ", number(*factor), " times as long"),
                {concat("a run can be held back, not made faster: factors are 1 to ", number(kMost))}, hint);
  const auto first = static_cast<std::size_t>(std::accumulate(groups.begin(), groups.begin() + *actor, *device));
  return {first, dot == std::string::npos ? static_cast<std::size_t>(devices) : 1, *factor};
}

}  // namespace

std::vector<double> stragglers_of(const Config& config, const std::vector<int>& groups) {
  std::vector<double> out(static_cast<std::size_t>(std::accumulate(groups.begin(), groups.end(), 0)), 1);
  if (config.run.straggler.empty()) return out;
  for (const std::string& one : split(config.run.straggler, ',')) {
    const Straggler held = straggler_of(one, groups);
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(held.first), held.devices, held.factor);
  }
  return out;
}

}  // namespace penstock
