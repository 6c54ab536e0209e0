#include "penstock/degrees.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <tuple>

#include "base/numbers.h"
#include "base/text.h"
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

// Numbers of stages per actor to try: powers of two, and the most that there can be.
std::vector<int> chunks_of(const DegreesLimits& only, bool chunked, int most) {
  if (only.chunks > 0) return only.chunks <= most && (chunked || only.chunks == 1) ? std::vector{only.chunks} : std::vector<int>();
  std::vector<int> out = {1};
  for (int v = 2; chunked && v <= std::min(most, 16); v *= 2) out.push_back(v);
  return out;
}

// Sizes of a unit to try, from the fewest micro-batches that keep all actors at work to all; 0: the schedule has no units.
std::vector<int> units_of(const DegreesLimits& only, const std::string& schedule, int pipe, int microbatches) {
  if (!takes(schedule, "--unit")) return only.unit > 0 ? std::vector<int>() : std::vector{0};
  const int least = std::min(pipe, microbatches);
  if (only.unit > 0) return only.unit >= least && only.unit <= microbatches ? std::vector{only.unit} : std::vector<int>();
  std::vector<int> out;
  for (const int unit : {least, 2 * pipe - 1, 2 * pipe, 4 * pipe, microbatches})
    if (unit >= least && unit <= microbatches) out.push_back(unit);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Whether a group of devices that stand apart differs from one of neighbours.
bool has_across(const PlanProblem& problem, int pipe, int data) {
  return pipe > 1 && data > 1 && (problem.cluster.levels.size() > 1 || !problem.cluster.between.empty());
}

// How many devices of a group may hold the same parameters: 1 or, where a group spans several nodes, all devices of a node.
std::vector<int> locals_of(const ClusterSpec& cluster, const Degrees& degrees) {
  std::vector<int> out = {1};
  int together = 1;  // devices in one group of this level
  for (const ClusterSpec::Level& level : cluster.levels) {
    together *= level.size;
    const int apart = degrees.across ? degrees.pipe : 1, local = together / apart;
    if (together % apart == 0 && local > out.back() && local < degrees.data && degrees.data % local == 0) out.push_back(local);
  }
  return out;
}

class Candidates {
 public:
  Candidates(const PlanProblem& problem, const DegreesLimits& only, DegreesSteps& steps) : problem_(problem), only_(only), steps_(steps) {}

  std::vector<Degrees> all() {
    const int devices = static_cast<int>(problem_.cluster.devices.size()), samples = step_samples(problem_);
    for (const int size : allowed_batches(problem_))
      for (const int pipe : divisors(devices)) {
        const int data = devices / pipe;
        if (!is_within(only_.pipe, pipe, 0) || !is_within(only_.data, data, 0) || samples % (data * size) != 0) continue;
        for (const bool across : {false, true}) {
          if (!is_within(only_.across, across, -1) || (across && !has_across(problem_, pipe, data))) continue;
          degrees_ = {.pipe = pipe, .data = data, .across = across, .samples = size, .microbatches = samples / (data * size)};
          add_orders();
        }
      }
    return std::move(out_);
  }

 private:
  void add_orders() {
    const int blocks = static_cast<int>(steps_.blocks(degrees_.samples).size());
    for (const Order& order : kOrders) {
      degrees_.schedule = order.name;
      if (!only_.schedule.empty() && only_.schedule != order.name) continue;
      for (const int chunks : chunks_of(only_, order.chunked, blocks / degrees_.pipe))
        for (const int unit : units_of(only_, order.name, degrees_.pipe, degrees_.microbatches)) {
          const std::int64_t forwards = std::int64_t{degrees_.pipe} * chunks * degrees_.microbatches;
          if (degrees_.pipe > blocks || forwards > kMostForwards) continue;
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
          if (by_block && (zero < 3 || degrees_.chunks > 1)) continue;  // with several chunks each chunk is a block itself
          degrees_.zero = zero;
          degrees_.by_block = by_block;
          degrees_.recompute = recompute;
          const bool on_nodes = zero == 3 && !by_block;
          for (const int local : on_nodes ? locals_of(problem_.cluster, degrees_) : std::vector{1}) {
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

// Simulates candidates in the order of their bounds, so that few of a family are simulated before no other can be faster.
DegreesPlan search(DegreesSteps& steps, const std::vector<Degrees>& candidates, double largest_memory, bool every, TimeLimit& limit) {
  std::vector<std::pair<DegreesSteps::Bound, const Degrees*>> order;
  for (const Degrees& degrees : candidates) {
    if (limit.is_over(steps.work(degrees))) break;
    order.emplace_back(steps.bound(degrees), &degrees);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first.seconds < b.first.seconds; });
  DegreesPlan plan{.late = order.size() < candidates.size(), .considered = static_cast<int>(candidates.size())};
  std::map<decltype(family_of(candidates[0])), double> fastest;
  double least_memory = kInfinity;
  for (const auto& [bound, degrees] : order) {
    double& best = fastest.try_emplace(family_of(*degrees), kInfinity).first->second;
    const bool is_slower = bound.seconds >= best;
    // Larger than any device, and than another candidate.
    const bool is_larger = !fits(bound.memory, largest_memory) && bound.memory >= least_memory;
    if (!every && (is_slower || is_larger)) continue;
    plan.late = plan.late || limit.is_over(std::int64_t{degrees->pipe} * degrees->chunks * degrees->microbatches * kActionWork);
    if (plan.late) break;
    const DegreesResult& result = plan.results.emplace_back(steps.run(*degrees));
    least_memory = std::min(least_memory, result.memory);
    if (result.fits) best = std::min(best, result.seconds);
  }
  std::stable_sort(plan.results.begin(), plan.results.end(), [](const DegreesResult& a, const DegreesResult& b) {
    return std::tuple(!a.fits, a.fits ? a.seconds : a.memory) < std::tuple(!b.fits, b.fits ? b.seconds : b.memory);
  });
  return plan;
}

[[noreturn]] void fail_none(const PlanProblem& problem) {
  const std::vector<int> sizes = allowed_batches(problem);
  throw Error(concat("no degrees for ", problem.graph.name, " on ", problem.cluster.devices.size(), " devices"),
              {concat("a step has ", step_samples(problem), " samples; micro-batches have ",
                      join(sizes, ", ", [](int size) { return std::to_string(size); })),
               "pipeline degree times data degree is the number of devices, and data degree times micro-batch divides the step",
               concat("a stage has a block at least, a table ", kMostForwards, " forwards at most")},
              "give other --micro-batches or another --batch, or fix less with --only");
}

void check_schedule(const std::string& name) {
  const std::vector<std::string> names = order_names();
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string near = nearest(name, names);
  throw Error(concat("degrees are not planned for schedule ", quote(name)), {"schedules: " + join(names, ", ")},
              near.empty() ? "" : concat("did you mean ", near, "?"));
}

}  // namespace

std::string text(const Degrees& d) {
  std::string out = d.schedule;
  if (d.unit > 0) out += concat(" U=", d.unit);
  if (d.chunks > 1) out += concat(" v=", d.chunks);
  out += concat(", pipe ", d.pipe, ", data ", d.data, d.across ? " across" : "", ", ZeRO-", d.zero);
  if (d.by_block) out += " by block";
  if (d.local > 1) out += concat(" among nodes of ", d.local);
  if (d.recompute) out += ", recompute";
  return out + concat(", ", d.microbatches, " x ", d.samples);
}

StateBytes states_of(const std::string& dtype) {
  if (dtype == "f64") return {8, 8, 16};
  if (dtype == "bf16") return {2, 4, 12};
  return {4, 4, 8};
}

DegreesLimits parse_degrees_limits(const std::string& text) {
  DegreesLimits out;
  struct Key {
    const char* name;
    int DegreesLimits::* value;
    int least, most;
  };
  constexpr int kMost = 1'000'000;
  const Key keys[] = {{"pipe", &DegreesLimits::pipe, 1, kMost},       {"data", &DegreesLimits::data, 1, kMost},
                      {"chunks", &DegreesLimits::chunks, 1, kMost},   {"unit", &DegreesLimits::unit, 1, kMost},
                      {"zero", &DegreesLimits::zero, 0, 3},           {"by-block", &DegreesLimits::by_block, 0, 1},
                      {"recompute", &DegreesLimits::recompute, 0, 1}, {"across", &DegreesLimits::across, 0, 1},
                      {"local", &DegreesLimits::local, 1, kMost}};
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "schedule") {
      check_schedule(out.schedule = value);
      continue;
    }
    const auto key = std::find_if(std::begin(keys), std::end(keys), [&](const Key& k) { return name == k.name; });
    if (key == std::end(keys)) {
      std::vector<std::string> names = {"schedule"};
      for (const Key& k : keys) names.push_back(k.name);
      const std::string near = nearest(name, names);
      throw Error(concat("--only ", text, ": there is no ", quote(name)), {"keys: " + join(names, ", ")},
                  near.empty() ? "" : concat("did you mean ", near, "?"));
    }
    int& number = out.*(key->value);
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size() || number < key->least || number > key->most)
      throw Error(concat("--only ", text, ": ", name, " is ", quote(value)), {},
                  concat("a whole number from ", key->least, " to ", key->most));
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
    out.stages.push_back({.nodes = best.stages[s], .devices = group_of(degrees, actor), .samples = degrees.samples * degrees.data});
    for (const int device : out.stages.back().devices) out.peak_bytes[at(device)] = best.peak_bytes[at(actor)];
  }
  return out;
}

DegreesResult simulate_degrees(const PlanProblem& problem, const DegreesOptions& options, const Degrees& degrees) {
  check_problem(problem);
  return DegreesSteps(problem, options).run(degrees);
}

}  // namespace penstock
