// SPDX-License-Identifier: Apache-2.0
#include "profile/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/invariant.h"
#include "base/machine.h"
#include "base/text.h"
#include "profile/line.h"
#include "profile/measured.h"
#include "profile/whole_steps.h"
#include "program/checks.h"
#include "schedule/versions.h"

namespace penstock {
namespace {

constexpr int kBlocks = 3;
// Seconds of a step in which caches and clocks settle long before its end, so that no other step has to go before it.
constexpr double kSettlesWithin = 1;

// The observations of one task.
struct Observed {
  TaskCost cost;  // its times are filled in last
  std::vector<double> alone, busy, beside;
};

double seconds_of(const Span& span) {
  return 1e-9 * static_cast<double>(span.end - span.begin);
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void set(std::optional<Sample>& sample, const std::vector<double>& values) {
  if (!values.empty()) sample = sample_of(values);
}

class Profiler {
 public:
  Profiler(Cluster& cluster, Isolation* isolation, const ProfileOptions& options)
      : cluster_(cluster), isolation_(isolation), options_(options) {}

  // The seconds that a whole step took, the median.
  double measure(const Program& program);
  Costs result() const;
  void set_start_times(Link& link) const;
  std::map<Opcode, Link> collectives() const;

 private:
  using Transfers = Isolation::Transfers;
  using Times = std::vector<double> Observed::*;

  StepResult step(Transfers transfers, int only = -1);
  void for_steps(int count, Transfers transfers, int only, const std::function<void(StepResult&)>& observe_step);
  void observe(const StepResult& result, Times times);
  void observe_memory(const StepResult& result);
  void observe_host(const Span& span);
  void observe_whole(const StepResult& result);
  void observe_collectives(const StepResult& result);
  Observed& observed(const Instruction& run);
  const Instruction& instruction(const Span& span) const { return program_->devices[span.device].instructions[span.instruction]; }

  Cluster& cluster_;
  Isolation* isolation_;
  const ProfileOptions& options_;
  std::int64_t step_ = 0;
  const Program* program_ = nullptr;  // the program under measurement
  std::uint64_t key_ = 0;
  bool is_long_ = false;                                        // whether its steps take more than kSettlesWithin
  IdVector<TaskId, std::uint64_t> hashes_;                      // hashes of its tasks
  std::int32_t stages_ = 0;                                     // number of stages of its cut
  std::set<std::pair<std::int32_t, std::int32_t>> recomputed_;  // (stage, micro-batch) with an R: their F is light
  std::vector<Observed> tasks_;                                 // in the order in which they were met
  std::unordered_map<std::uint64_t, std::size_t> by_hash_;
  std::map<std::string, std::vector<double>> inputs_;  // seconds, by port
  std::vector<double> overhead_, receives_;
  std::map<std::int64_t, std::vector<double>> sends_;  // seconds, by bytes
  std::vector<MeasuredTime> host_copies_;
  // Means over each recorded step, and then the median of all steps: what is late within a step counts, a step that is slow as a whole does
  // not.
  struct Together {
    std::vector<double> starts;                   // seconds that starting one takes
    std::map<double, std::vector<double>> steps;  // by bytes: seconds of one step of a ring
  };
  std::map<Opcode, Together> together_;
};

double Profiler::measure(const Program& program) {
  std::vector<double> whole;
  program_ = &program;
  key_ = cluster_.load(program);
  hashes_.clear();
  for (const Task& task : program.tasks) hashes_.push_back(cost_hash(task.graph));
  stages_ = 0;
  recomputed_.clear();
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions) {
      stages_ = std::max(stages_, i.stage + 1);
      if (i.opcode == Opcode::run && i.kind == Kind::R) recomputed_.insert({i.stage, i.microbatch});
    }
  const int devices = static_cast<int>(program.devices.size());
  is_long_ = false;
  for (int i = 0; i < options_.warm_up && !is_long_; ++i) {
    const StepResult result = step(Transfers::live);
    observe_memory(result);
    is_long_ = result.seconds > kSettlesWithin;
  }
  if (isolation_) step(Transfers::capture);
  // The kinds of steps that are compared are measured in turn, so that a slow minute of the machine slows all of it. But steps of one kind
  // follow one another, as they do in training: a core that has been idle behaves differently.
  const int blocks = std::min(options_.rounds, kBlocks);
  for (int block = 0; block < blocks; ++block) {
    const int steps = options_.rounds * (block + 1) / blocks - options_.rounds * block / blocks;
    for_steps(steps, Transfers::live, -1, [&](const StepResult& result) {
      observe_whole(result);
      whole.push_back(result.seconds);
    });
    if (!isolation_) continue;
    if (devices > 1) for_steps(steps, Transfers::replay, -1, [&](const StepResult& result) { observe(result, &Observed::busy); });
    for (int device = 0; device < devices; ++device)
      for_steps(steps, Transfers::replay, device, [&](StepResult& result) {
        for (int other = 0; other < devices; ++other)
          if (other != device) result.devices[other].spans.clear();
        observe(result, &Observed::alone);
      });
  }
  return sample_of(whole).median;
}

// Runs one step that is not observed, unless steps are long, then `count` that are.
void Profiler::for_steps(int count, Transfers transfers, int only, const std::function<void(StepResult&)>& observe_step) {
  if (!is_long_) step(transfers, only);
  for (int i = 0; i < count; ++i) {
    StepResult result = step(transfers, only);
    observe_step(result);
  }
}

StepResult Profiler::step(Transfers transfers, int only) {
  if (isolation_) *isolation_ = {transfers, only};
  return cluster_.step(key_, options_.input(++step_, *program_), /*record_spans=*/true);
}

Observed& Profiler::observed(const Instruction& run) {
  const std::uint64_t hash = hashes_[run.task];
  const auto [entry, fresh] = by_hash_.try_emplace(hash, tasks_.size());
  if (fresh) {
    TaskCost& cost = tasks_.emplace_back().cost;
    cost.hash = hash;
    cost.name = program_->tasks[run.task].name;
    if (run.action) {
      cost.kind = run.kind;
      cost.stage = run.stage;
      cost.stages = stages_;
      cost.light = run.kind == Kind::F && recomputed_.contains({run.stage, run.microbatch});
    }
  }
  return tasks_[entry->second];
}

void Profiler::observe(const StepResult& result, Times times) {
  for (const DeviceReport& report : result.devices) {
    for (const Span& span : report.spans) {
      const Instruction& i = instruction(span);
      if (i.opcode != Opcode::run || span.waited) continue;
      (observed(i).*times).push_back(seconds_of(span));
    }
  }
  observe_memory(result);
}

// This observes the first steps too, in which some kernels allocate more than later.
void Profiler::observe_memory(const StepResult& result) {
  for (const DeviceReport& report : result.devices) {
    for (const Span& span : report.spans) {
      const Instruction& i = instruction(span);
      if (i.opcode != Opcode::run || span.waited) continue;
      std::int64_t& most = observed(i).cost.kernel_bytes;
      most = std::max(most, span.allocated);
    }
  }
}

void Profiler::observe_whole(const StepResult& result) {
  observe(result, &Observed::beside);
  std::int64_t begin = result.devices.front().begin, end = begin;
  for (const DeviceReport& report : result.devices) {
    begin = std::min(begin, report.begin);
    end = std::max(end, report.end);
    for (const Span& span : report.spans) observe_host(span);
  }
  if (!program_->groups.empty()) observe_collectives(result);
  overhead_.push_back(std::max(0.0, result.seconds - 1e-9 * static_cast<double>(end - begin)));
}

void Profiler::observe_collectives(const StepResult& result) {
  std::map<Opcode, Together> step;
  for (const CollectiveTime& time : collective_times(*program_, result))
    step[time.opcode].steps[time.bytes / static_cast<double>(time.members)].push_back(time.seconds / ring_steps(time.opcode, time.members));
  for (const DeviceReport& report : result.devices)
    for (const Span& span : report.spans)
      if (const Opcode opcode = instruction(span).opcode; is_collective(opcode) && !span.waited)
        step[opcode].starts.push_back(seconds_of(span));
  for (const auto& [opcode, of_step] : step) {
    Together& together = together_[opcode];
    together.starts.push_back(mean_of(of_step.starts));
    for (const auto& [bytes, seconds] : of_step.steps) together.steps[bytes].push_back(mean_of(seconds));
  }
}

void Profiler::observe_host(const Span& span) {
  const Instruction& i = instruction(span);
  if (span.waited) return;
  if (i.opcode == Opcode::input) inputs_[program_->data[i.port].name].push_back(seconds_of(span));
  if (i.opcode == Opcode::recv) receives_.push_back(seconds_of(span));
  const DeviceProgram& device = program_->devices[span.device];
  if (i.opcode == Opcode::send) sends_[slot_bytes(device.slots[i.slot])].push_back(seconds_of(span));
  if (is_host_copy(i.opcode))
    host_copies_.push_back({static_cast<double>(slot_bytes(device.slots[device.operands_of(i)[0]])), seconds_of(span)});
}

// Sets the time that starting a transfer takes where all devices compute and their messages cross.
void Profiler::set_start_times(Link& link) const {
  if (link.second_end_copies || receives_.empty() || sends_.empty()) return;
  link.start_seconds = sample_of(receives_).mean;
  const auto& [bytes, seconds] = *std::max_element(sends_.begin(), sends_.end(), [](const auto& a, const auto& b) {
    return static_cast<double>(a.first) * static_cast<double>(a.second.size()) <
           static_cast<double>(b.first) * static_cast<double>(b.second.size());
  });
  if (bytes > 0) link.send_seconds_per_byte = std::max(0.0, sample_of(seconds).mean - link.start_seconds) / static_cast<double>(bytes);
}

// For each kind of collective whose end was seen, one step of its rings as a link.
std::map<Opcode, Link> Profiler::collectives() const {
  std::map<Opcode, Link> out;
  for (const auto& [opcode, together] : together_) {
    if (together.steps.empty()) continue;
    std::vector<MeasuredTime> times;
    for (const auto& [bytes, seconds] : together.steps) times.push_back({bytes, sample_of(seconds).median});
    const Line line = fit(times);
    Link& link = out[opcode];
    link.latency = line.fixed;
    link.bandwidth = bandwidth_of(line);
    link.start_seconds = sample_of(together.starts).median;
  }
  return out;
}

Costs Profiler::result() const {
  Costs costs;
  for (const Observed& task : tasks_) {
    costs.tasks.push_back(task.cost);
    set(costs.tasks.back().alone, task.alone);
    set(costs.tasks.back().busy, task.busy);
    costs.tasks.back().beside[options_.backend] = sample_of(task.beside);
  }
  for (const auto& [port, seconds] : inputs_) costs.input_seconds[port] = sample_of(seconds).median;
  costs.step_overhead[options_.backend] = sample_of(overhead_).median;
  if (options_.by_itself && !host_copies_.empty()) {
    const Line line = fit(host_copies_);
    costs.links[kHostLink] = {.latency = line.fixed, .bandwidth = bandwidth_of(line)};
  }
  return costs;
}

// The bytes of a typical transfer of the program; 0 where there is none.
std::int64_t usual_transfer(const Program& program) {
  std::vector<double> bytes;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::send) bytes.push_back(static_cast<double>(slot_bytes(device.slots[i.slot])));
  return bytes.empty() ? 0 : static_cast<std::int64_t>(sample_of(bytes).median);
}

// The table with every B as an I and a W after it; or with every W dropped and its I made a B, which needs and gives no more. It has no R,
// so that every F is whole.
Schedule with_backward(const Schedule& schedule, bool split) {
  Schedule out;
  out.name = schedule.name + (split ? ", split" : ", not split");
  out.slices = schedule.slices;
  out.blocks = schedule.blocks;
  for (const auto& row : schedule.actors) {
    std::vector<Action>& actions = out.actors.emplace_back();
    for (Action action : row) {
      action.fused_with_next = false;
      if (action.kind == Kind::R) continue;
      if (split && action.kind == Kind::B) {
        action.kind = Kind::I;
        actions.push_back(action);
        action.kind = Kind::W;
      } else if (!split && action.kind == Kind::I) {
        action.kind = Kind::B;
      } else if (!split && action.kind == Kind::W) {
        continue;
      }
      actions.push_back(action);
    }
  }
  return out;
}

// Whether stage s is on actor s, as the schedules of one chunk have it.
bool is_plain(const Schedule& schedule) {
  const std::vector<std::int32_t> home = actor_of_stage(schedule);
  bool plain = schedule.actors.size() == home.size();
  for (std::size_t stage = 0; plain && stage < home.size(); ++stage) plain = home[stage] == static_cast<std::int32_t>(stage);
  return plain;
}

bool has(const Schedule& schedule, Kind kind) {
  return std::any_of(schedule.actors.begin(), schedule.actors.end(),
                     [&](const auto& row) { return std::any_of(row.begin(), row.end(), [&](const Action& a) { return a.kind == kind; }); });
}

bool is_backward(const Action& action) {
  return action.kind == Kind::B || action.kind == Kind::I || action.kind == Kind::W;
}

// The schedule without backwards of stages that have none in `like`, because their model's stages have none.
Schedule with_backwards_of(const Schedule& like, Schedule schedule) {
  std::set<std::int32_t> stages;
  for (const auto& row : like.actors)
    for (const Action& action : row)
      if (is_backward(action)) stages.insert(action.stage);
  for (auto& row : schedule.actors) std::erase_if(row, [&](const Action& a) { return is_backward(a) && !stages.contains(a.stage); });
  schedule.cells.clear();
  return schedule;
}

// Whether every W is on its I's actor, so that both can be one B.
bool weights_stay(const Schedule& schedule) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> actor;  // by stage and micro-batch: the actor of I
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (const Action& action : schedule.actors[a])
      if (action.kind == Kind::I) actor[{action.stage, action.microbatch}] = a;
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (const Action& action : schedule.actors[a])
      if (action.kind == Kind::W && actor.at({action.stage, action.microbatch}) != a) return false;
  return true;
}

}  // namespace

Sample sample_of(std::vector<double> values) {
  invariant(!values.empty(), "a sample has at least one value");
  const auto median_of = [](std::vector<double>& v) {
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return v.size() % 2 == 1 ? *middle : (*middle + *std::max_element(v.begin(), middle)) / 2;
  };
  Sample sample;
  sample.count = static_cast<std::int64_t>(values.size());
  sample.median = median_of(values);
  std::sort(values.begin(), values.end());
  const auto twentieth = static_cast<std::ptrdiff_t>(values.size() / 20);
  sample.mean =
      std::accumulate(values.begin() + twentieth, values.end() - twentieth, 0.0) / static_cast<double>(values.size() - 2 * twentieth);
  for (double& value : values) value = std::abs(value - sample.median);
  sample.spread = median_of(values);
  return sample;
}

std::vector<Schedule> profiled_tables(const Schedule& schedule) {
  if (schedule.steps > 1) {
    std::vector<Schedule> of_step = profiled_tables(one_step(schedule, 0));
    of_step[0] = schedule;
    return of_step;
  }
  std::vector<Schedule> tables = {schedule};
  const bool whole = has(schedule, Kind::B), split = has(schedule, Kind::I) || has(schedule, Kind::W);
  const auto add = [&](bool want_split) {
    ScheduleOptions options;
    options.actors = static_cast<int>(schedule.actors.size());
    options.microbatches = static_cast<int>(schedule.microbatches());
    tables.push_back(is_plain(schedule) ? with_backwards_of(schedule, make_schedule(want_split ? "zb-h1" : "1f1b", options))
                                        : with_backward(schedule, want_split));
  };
  if (whole) add(true);
  if (split && (is_plain(schedule) || weights_stay(schedule))) add(false);
  return tables;
}

Costs measure_costs(Cluster& cluster, Isolation* isolation, const std::vector<Program>& programs, const StateSource& state,
                    const ProfileOptions& options) {
  Profiler profiler(cluster, isolation, options);
  std::vector<MeasuredStep> steps;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    if (options.progress) options.progress(concat("program ", i + 1, " of ", programs.size(), ": tasks"));
    cluster.load(programs[i]);
    cluster.set_state(state);  // each program starts from the same state, as training on the same few batches leads nowhere
    steps.push_back({&programs[i], profiler.measure(programs[i])});
  }
  Costs costs = profiler.result();
  if (isolation) *isolation = {};
  if (programs.front().devices.size() < 2) return costs;
  if (options.progress) options.progress("links");
  measure_link(cluster, options, usual_transfer(programs.front()), costs);
  Link& link = costs.links.at(options.backend);
  if (!options.by_itself) profiler.set_start_times(link);
  // Between threads of one process the members themselves do the collectives, as they do transfers.
  if (link.second_end_copies) return costs;
  costs.collectives[options.backend] = profiler.collectives();
  fit_collectives(steps, options.backend, costs);
  return costs;
}

MachineDescription describe_machine(const std::string& libraries, const std::string& processor) {
  MachineDescription machine;
  machine.processor = processor.empty() ? processor_name() : processor;
  machine.cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  machine.memory_bytes = memory_bytes();
  machine.build = concat("penstock ", PENSTOCK_VERSION, ", ", libraries);
  return machine;
}

std::string describe_model(const Config& config) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.model.numbers)
    keys.push_back(concat(key, " ", value == std::floor(value) ? std::to_string(static_cast<std::int64_t>(value)) : number(value)));
  for (const auto& [key, value] : config.model.words) keys.push_back(concat(key, " ", value));
  return concat(config.model.name, ", ", config.train.dtype, ": ", join(keys, ", "));
}

}  // namespace penstock
