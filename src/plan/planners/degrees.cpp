// SPDX-License-Identifier: Apache-2.0
#include "penstock/degrees.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/degrees_step.h"
#include "planners/planner_list.h"
#include "schedule/traits.h"

namespace penstock {
namespace {

// Most forwards of a candidate's table, so that it takes at most some tenth of a second.
constexpr std::int64_t kMostForwards = 1 << 17;
constexpr std::int64_t kActionWork = 100;  // elementary steps for each action of a table

struct Order {
  const char* name;
  bool chunked;
};
constexpr Order kOrders[] = {
    {"1f1b", false}, {"zb-h1", false}, {"interleaved-1f1b", true}, {"breadth-first", true}, {"zeropp", true},
};

std::vector<std::string> order_names() {
  std::vector<std::string> out;
  for (const Order& order : kOrders) out.push_back(order.name);
  return out;
}

// Whether a limit allows this value; `any` allows all.
bool is_within(int limit, int value, int any) {
  return limit == any || limit == value;
}

std::vector<int> divisors(int number) {
  std::vector<int> out;
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) out.push_back(d);
  return out;
}

// Numbers of stages per actor to try.
std::vector<int> chunks_of(const DegreesLimits& only, bool chunked, int most) {
  if (only.chunks > 0) return only.chunks <= most && (chunked || only.chunks == 1) ? std::vector{only.chunks} : std::vector<int>();
  std::vector<int> out = {1};
  for (const int chunks : {2, 3, 4, 6, 8, 12, 16})
    if (chunked && chunks <= most) out.push_back(chunks);
  return out;
}

// Sizes of a unit to try, from the fewest micro-batches that keep all actors at work to all; 0: the schedule has no units.
std::vector<int> units_of(const DegreesLimits& only, const std::string& schedule, int pipe, int microbatches) {
  if (!takes(schedule, "--unit")) return only.unit > 0 ? std::vector<int>() : std::vector{0};
  if (only.unit > 0) return only.unit <= microbatches ? std::vector{only.unit} : std::vector<int>();
  const int least = std::min(pipe, microbatches);
  std::vector<int> out;
  for (const int unit : {least, 2 * pipe - 1, 2 * pipe, 4 * pipe, microbatches})
    if (unit >= least && unit <= microbatches) out.push_back(unit);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Orders of the axes that differ in where the cluster's levels cut them. Members of tensor are neighbours always: they speak in each layer.
std::vector<AxisOrder> orders_of(const PlanProblem& problem, Degrees degrees) {
  std::vector<AxisOrder> out;
  std::set<std::string> known;
  degrees.order = kUsualOrder;
  do {
    if (known.insert(order_text(degrees)).second) out.push_back(degrees.order);
  } while (std::next_permutation(degrees.order.begin(), degrees.order.end() - 1));
  const bool has_levels = problem.cluster.levels.size() > 1 || !problem.cluster.between.empty();
  return has_levels ? out : std::vector{kUsualOrder};
}

bool is_within(const std::vector<DegreeAxis>& limit, const AxisOrder& order) {
  const auto place = [&](DegreeAxis axis) { return std::find(order.begin(), order.end(), axis); };
  return std::is_sorted(limit.begin(), limit.end(), [&](DegreeAxis a, DegreeAxis b) { return place(a) < place(b); });
}

// Returns the numbers of replicas of a group that may hold the same parameters: 1 or, where a group spans several hosts, all of a host.
std::vector<int> locals_of(const ClusterSpec& cluster, const Degrees& degrees) {
  std::vector<int> out = {1};
  const int apart = stride_along(degrees, DegreeAxis::data);
  int together = 1;  // devices in one group of this level
  for (const ClusterSpec::Level& level : cluster.levels) {
    together *= level.size;
    const int local = together / apart;
    if (together % apart == 0 && local > out.back() && local < degrees.data && degrees.data % local == 0) out.push_back(local);
  }
  return out;
}

class Candidates {
 public:
  Candidates(const PlanProblem& problem, const DegreesLimits& only, DegreesSteps& steps) : problem_(problem), only_(only), steps_(steps) {}

  std::vector<Degrees> all() {
    add_split({});
    for (const PlanSplit& split : problem_.splits) add_split(split.split);
    return std::move(out_);
  }

 private:
  void add_split(const Split& split) {
    const auto devices = static_cast<int>(problem_.cluster.devices.size());
    if (!allows(only_, split) || devices % split.devices() != 0) return;
    const int samples = step_samples(problem_), left = devices / split.devices();
    for (const int size : allowed_batches(problem_))
      for (const int pipe : divisors(left)) {
        const int data = left / pipe;
        if (!is_within(only_.pipe, pipe, 0) || !is_within(only_.data, data, 0) || samples % (data * size) != 0) continue;
        degrees_ = {.pipe = pipe, .data = data, .split = split, .samples = size, .microbatches = samples / (data * size)};
        for (const AxisOrder& order : orders_of(problem_, degrees_)) {
          if (!is_within(only_.order, order)) continue;
          degrees_.order = order;
          add_schedules();
        }
      }
  }

  void add_schedules() {
    const int atoms = static_cast<int>(steps_.atoms(degrees_).size());
    for (const Order& order : kOrders) {
      degrees_.schedule = order.name;
      if (!only_.schedule.empty() && only_.schedule != order.name) continue;
      for (const int chunks : chunks_of(only_, order.chunked, atoms / degrees_.pipe))
        for (const int unit : units_of(only_, order.name, degrees_.pipe, degrees_.microbatches)) {
          const std::int64_t forwards = std::int64_t{degrees_.pipe} * chunks * degrees_.microbatches;
          if (degrees_.pipe > atoms || forwards > kMostForwards) continue;
          degrees_.chunks = chunks;
          degrees_.unit = unit;
          add_levels();
        }
    }
  }

  void add_levels() {
    for (int zero = 0; zero <= (degrees_.data > 1 ? 3 : 0); ++zero)
      for (const bool by_block : {false, true})
        for (const bool recompute : {false, true}) {
          if (!is_within(only_.zero, zero, -1) || !is_within(only_.by_block, by_block, -1) || !is_within(only_.recompute, recompute, -1))
            continue;
          if (by_block && (zero < 3 || degrees_.chunks > 1)) continue;  // with several chunks each chunk is an atom itself
          degrees_.zero = zero;
          degrees_.by_block = by_block;
          degrees_.recompute = recompute;
          const bool on_hosts = zero == 3 && !by_block;
          for (const int local : on_hosts ? locals_of(problem_.cluster, degrees_) : std::vector{1}) {
            degrees_.local = local;
            if (is_within(only_.local, local, 0)) out_.push_back(degrees_);
          }
          degrees_.local = 1;
        }
  }

  const PlanProblem& problem_;
  const DegreesLimits& only_;
  DegreesSteps& steps_;
  Degrees degrees_;
  std::vector<Degrees> out_;
};

// Candidates of one family differ in numbers only; the best one of each family is worth knowing.
auto family_of(const Degrees& d) {
  return std::tuple(d.schedule, d.zero, d.by_block, d.local > 1, d.recompute);
}

// A choice and what is known of it without its simulation.
struct Bounded {
  const Degrees* degrees;
  DegreesSteps::Bound bound;
};

// The bounds of as many candidates as there is time for, the least seconds first.
std::vector<Bounded> bounded(DegreesSteps& steps, const std::vector<Degrees>& candidates, TimeLimit& limit) {
  std::vector<Bounded> out;
  for (const Degrees& degrees : candidates) {
    if (limit.is_over(steps.work(degrees))) break;
    out.push_back({&degrees, steps.bound(degrees)});
  }
  std::ranges::stable_sort(out, {}, [](const Bounded& one) { return one.bound.seconds; });
  return out;
}

// Simulates candidates in the order of their bounds, so that few of a family are simulated before no other can be faster. What no device
// holds is put off: where nothing fits of all or of a family, that with the least bound of its memory is simulated, until no other can be
// smaller. Last, of each split of which none was simulated, the one with the least bound.
DegreesPlan search(DegreesSteps& steps, const std::vector<Degrees>& candidates, double largest_memory, bool every, TimeLimit& limit) {
  std::vector<Bounded> order = bounded(steps, candidates, limit);
  DegreesPlan plan{.late = order.size() < candidates.size(), .considered = static_cast<int>(candidates.size())};
  using Family = decltype(family_of(candidates[0]));
  std::map<Family, double> fastest, least_memory;
  std::set<Split> simulated;
  const auto run = [&](const Degrees& degrees) {
    plan.late = plan.late || limit.is_over(std::int64_t{degrees.pipe} * degrees.chunks * degrees.microbatches * kActionWork);
    if (plan.late) return false;
    simulated.insert(degrees.split);
    const DegreesResult& result = plan.results.emplace_back(steps.run(degrees));
    const Family family = family_of(degrees);
    double& memory = least_memory.try_emplace(family, kInfinity).first->second;
    memory = std::min(memory, result.memory);
    if (result.fits) fastest[family] = std::min(fastest.try_emplace(family, kInfinity).first->second, result.seconds);
    return true;
  };
  std::vector<Bounded> large;
  for (Bounded& one : order) {
    const auto best = fastest.find(family_of(*one.degrees));
    if (!every && best != fastest.end() && one.bound.seconds >= best->second) continue;
    if (!every && fits(one.bound.memory, largest_memory)) one.bound.memory = std::max(one.bound.memory, steps.least_memory(*one.degrees));
    if (!every && !fits(one.bound.memory, largest_memory))
      large.push_back(one);
    else if (!run(*one.degrees))
      break;
  }
  std::ranges::stable_sort(large, {}, [](const Bounded& one) { return one.bound.memory; });
  for (const Bounded& one : large) {
    const Family family = family_of(*one.degrees);
    const auto least = least_memory.find(family);
    if (fastest.contains(family) || (least != least_memory.end() && one.bound.memory >= least->second)) continue;
    if (!run(*one.degrees)) break;
  }
  for (const Bounded& one : order)
    if (!simulated.contains(one.degrees->split)) run(*one.degrees);
  std::stable_sort(plan.results.begin(), plan.results.end(), [](const DegreesResult& a, const DegreesResult& b) {
    return std::tuple(!a.fits, a.fits ? a.seconds : a.memory) < std::tuple(!b.fits, b.fits ? b.seconds : b.memory);
  });
  return plan;
}

// "1, 2 or 4 devices"
std::string splits_text(const PlanProblem& problem) {
  std::set<int> devices = {1};
  for (const PlanSplit& split : problem.splits) devices.insert(split.split.devices());
  return concat(join(std::vector<int>(devices.begin(), devices.end()), ", ", [](int count) { return std::to_string(count); }),
                devices.size() > 1 ? " devices" : " device");
}

[[noreturn]] void fail_none(const PlanProblem& problem) {
  const std::vector<int> sizes = allowed_batches(problem);
  throw Error(concat("no degrees for ", problem.graph.name, " on ", problem.cluster.devices.size(), " devices"),
              {concat("a step has ", step_samples(problem), " samples; micro-batches have ",
                      join(sizes, ", ", [](int size) { return std::to_string(size); })),
               concat("a replica is split over ", splits_text(problem), "; the degrees multiply to the number of devices"),
               "data degree times micro-batch divides the step",
               concat("a stage has an atom at least, a table ", kMostForwards, " forwards at most")},
              "give other --microbatch-sizes or another --batch, or fix less with --only");
}

void check_schedule(const std::string& name) {
  const std::vector<std::string> names = order_names();
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return;
  throw Error(concat("degrees are not planned for schedule ", quote(name)), {"schedules: " + join(names, ", ")}, did_you_mean(name, names));
}

}  // namespace

std::string text(const Degrees& d) {
  std::string out = d.schedule;
  if (d.unit > 0) out += concat(" U=", d.unit);
  if (d.chunks > 1) out += concat(" v=", d.chunks);
  out += concat(", pipe ", d.pipe, ", data ", d.data);
  if (d.split.tensor > 1) out += concat(", tensor ", d.split.tensor, d.split.sequence ? " and sequence" : "");
  if (d.split.context > 1) out += concat(", context ", d.split.context);
  Degrees usual = d;
  usual.order = kUsualOrder;
  if (order_text(d) != order_text(usual)) out += concat(" as ", order_text(d));
  out += concat(", ZeRO-", d.zero);
  if (d.by_block) out += " by block";
  if (d.local > 1) out += concat(" among hosts of ", d.local);
  if (d.recompute) out += ", recompute";
  return out + concat(", ", d.microbatches, " x ", d.samples);
}

StateBytes states_of(const std::string& dtype) {
  if (dtype == "f64") return {8, 8, 16};
  if (dtype == "bf16") return {2, 4, 12};
  return {4, 4, 8};
}

namespace {

struct LimitKey {
  const char* name;
  int DegreesLimits::* value;
  int least, most;
};
constexpr int kMostLimit = 1'000'000;
constexpr LimitKey kLimitKeys[] = {
    {"pipe", &DegreesLimits::pipe, 1, kMostLimit},     {"data", &DegreesLimits::data, 1, kMostLimit},
    {"tensor", &DegreesLimits::tensor, 1, kMostLimit}, {"context", &DegreesLimits::context, 1, kMostLimit},
    {"sequence", &DegreesLimits::sequence, 0, 1},      {"chunks", &DegreesLimits::chunks, 1, kMostLimit},
    {"unit", &DegreesLimits::unit, 1, kMostLimit},     {"zero", &DegreesLimits::zero, 0, 3},
    {"by-block", &DegreesLimits::by_block, 0, 1},      {"recompute", &DegreesLimits::recompute, 0, 1},
    {"local", &DegreesLimits::local, 1, kMostLimit},
};

// "data/pipe": the first farther apart.
std::vector<DegreeAxis> parse_order(const std::string& only, const std::string& text) {
  const std::vector<std::string> names = {"pipe", "data", "context", "tensor"};
  std::vector<DegreeAxis> out;
  for (const std::string& name : split(text, '/')) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw Error(concat("--only ", only, ": order has ", quote(name)), {"axes: " + join(names, ", ")}, "order=data/pipe");
    out.push_back(static_cast<DegreeAxis>(found - names.begin()));
  }
  return out;
}

}  // namespace

bool allows(const DegreesLimits& only, const Split& split) {
  return is_within(only.tensor, split.tensor, 0) && is_within(only.context, split.context, 0) &&
         is_within(only.sequence, split.sequence, -1);
}

DegreesLimits parse_degrees_limits(const std::string& text) {
  DegreesLimits out;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "schedule") {
      check_schedule(out.schedule = value);
      continue;
    }
    if (name == "order") {
      out.order = parse_order(text, value);
      continue;
    }
    const auto key = std::find_if(std::begin(kLimitKeys), std::end(kLimitKeys), [&](const LimitKey& k) { return name == k.name; });
    if (key == std::end(kLimitKeys)) {
      std::vector<std::string> names = {"schedule", "order"};
      for (const LimitKey& k : kLimitKeys) names.push_back(k.name);
      throw Error(concat("--only ", text, ": there is no ", quote(name)), {"keys: " + join(names, ", ")}, did_you_mean(name, names));
    }
    const std::optional<int> number = parse_number<int>(value);
    if (!number || *number < key->least || *number > key->most)
      throw Error(concat("--only ", text, ": ", name, " is ", quote(value)), {},
                  concat("a whole number from ", key->least, " to ", key->most));
    out.*(key->value) = *number;
  }
  return out;
}

DegreesPlan plan_degrees(const PlanProblem& problem, const DegreesOptions& options, TimeLimit limit) {
  check_problem(problem);
  check_schedule(options.only.schedule);
  DegreesSteps steps(problem, options);
  const std::vector<Degrees> candidates = Candidates(problem, options.only, steps).all();
  if (candidates.empty()) fail_none(problem);
  double largest = 0;
  for (const ClusterDevice& device : problem.cluster.devices) largest = std::max(largest, device.memory);
  DegreesPlan plan = search(steps, candidates, largest, options.every, limit);
  if (plan.late && (plan.results.empty() || !plan.results[0].fits)) fail_late("degrees", problem.graph.name, limit);
  if (!plan.results[0].fits) fail_memory(problem.graph.name, weakest(problem.cluster).memory, plan.results[0].memory);
  return plan;
}

PlanOptions runnable_groups(PlanOptions options, double seconds) {
  options.seconds = seconds;
  options.degrees.every = false;
  options.degrees.only.by_block = 0;
  return options;
}

Plan plan_by_degrees(const PlanProblem& problem, const PlanOptions& options) {
  DegreesOptions of = options.degrees;
  if (!problem.replicas && of.only.data == 0) of.only.data = 1;
  Plan out;
  out.degrees = plan_degrees(problem, of, TimeLimit(of.every ? kInfinity : options.seconds, options.clock));
  const DegreesResult& best = out.degrees->results[0];
  const Degrees& degrees = best.degrees;
  out.schedule = computing_table(degrees);
  out.bottleneck = out.predicted_time = best.seconds;
  out.peak_bytes.assign(problem.cluster.devices.size(), 0);
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    const int actor = static_cast<int>(s) % degrees.pipe;
    out.stages.push_back({.nodes = best.stages[s],
                          .devices = group_of(degrees, actor),
                          .degree = degrees.split.devices(),
                          .samples = degrees.samples * degrees.data});
    for (const int device : out.stages.back().devices) out.peak_bytes[at(device)] = best.peak_bytes[at(actor)];
  }
  return out;
}

DegreesResult simulate_degrees(const PlanProblem& problem, const DegreesOptions& options, const Degrees& degrees) {
  check_problem(problem);
  return DegreesSteps(problem, options).run(degrees);
}

}  // namespace penstock
