// SPDX-License-Identifier: Apache-2.0
// Pass: the drafts of HetPipe's virtual workers of unequal stages (Park et al., 2005.14038) become one. The devices of an actor are one of
// each worker, and each worker has a table of its own, in which its stages lie on other actors than in the others'. Each table is lowered
// as if all devices ran it, as far as their runs; then each device takes its row of its worker's, and what workers sum of a stage, updates
// or gradients, they sum wherever each of them has it:
//
//   device          0         1         2         3
//   actor, worker   0 0       0 1       1 0       1 1
//   stages          0 1 2     0 1       3         2 3      stage 2 is summed by devices 0 and 3
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "lower/passes.h"
#include "penstock/error.h"
#include "schedule/versions.h"

namespace penstock {
namespace {

void check_alike(const Schedule& schedule, const Schedule& other, const std::string& worker, bool in_waves) {
  const auto check = [&](std::size_t own, std::size_t first, const char* what, const char* hint) {
    if (own == first) return;
    throw Error(concat(worker, " has ", counted(own, what), ", the first has ", first), {"workers take the same steps' samples"}, hint);
  };
  check(other.actors.size(), schedule.actors.size(), "actor", "give each worker as many devices");
  check(other.stages(), schedule.stages(), "stage", "let each worker have all stages of the model");
  check(other.steps, schedule.steps, "step", "make tables for as many steps");
  check(other.microbatches(), schedule.microbatches(), "micro-batch", "make tables for as many micro-batches");
  if (in_waves) check(steps_of_wave(other), steps_of_wave(schedule), "step of a wave", "let updates be as late in each table");
}

// By kind, stage and micro-batch: the version that the action reads.
std::map<std::tuple<Kind, std::int32_t, std::int32_t>, ReadVersion> versions_by_work(const Schedule& schedule) {
  std::map<std::tuple<Kind, std::int32_t, std::int32_t>, ReadVersion> out;
  const std::vector<std::vector<ReadVersion>> versions = read_versions(schedule);
  for (std::size_t actor = 0; actor < versions.size(); ++actor)
    for (std::size_t i = 0; i < versions[actor].size(); ++i) {
      const Action& action = schedule.actors[actor][i];
      out[{action.kind, action.stage, action.microbatch}] = versions[actor][i];
    }
  return out;
}

// A sum of gradients is of one version of the parameters. Under some schedules the version that a stage reads follows from its actor.
void check_versions_alike(const Schedule& schedule, const Schedule& other, const std::string& worker) {
  const auto first = versions_by_work(schedule);
  for (const auto& [work, own] : versions_by_work(other)) {
    const auto found = first.find(work);
    if (found == first.end() || found->second == own) continue;
    const auto& [kind, stage, microbatch] = work;
    throw Error(
        concat(worker, ": ", name(kind), " of stage ", stage, ", micro-batch ", microbatch, " reads version ", own.version,
               " of the parameters; the first worker's reads version ", found->second.version),
        {concat("workers sum their gradients at each update, and under schedule ", schedule.name,
                " what a stage reads follows from its actor")},
        "cut all workers alike (pipeline.workers = []), or take a schedule whose steps read alike on all actors: pipedream-2bw, 1f1b");
  }
}

struct JoiningWorkers {
  std::vector<std::vector<std::int32_t>> actor_of_stage{};  // by worker
  std::map<std::vector<std::int32_t>, std::int32_t> groups{};
  // By group and member: what it sums there, in order.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<InstanceId>> sums{};
  Draft draft{};

  std::int32_t workers() const { return static_cast<std::int32_t>(actor_of_stage.size()); }
};

// The group of all workers' devices that have the stage.
std::int32_t group_of(JoiningWorkers& j, StageId stage) {
  std::vector<std::int32_t> devices;
  for (std::int32_t w = 0; w < j.workers(); ++w) devices.push_back(j.actor_of_stage[w][stage.index()] * j.workers() + w);
  std::ranges::sort(devices);
  const auto [it, added] = j.groups.try_emplace(devices, static_cast<std::int32_t>(j.groups.size()));
  if (added) j.draft.groups.push_back(std::move(devices));
  return it->second;
}

// Throws unless the device is one of those that are to sum what it does.
void check_has_stage(const JoiningWorkers& j, std::int32_t group, StageId stage, ActorId device) {
  if (std::ranges::find(j.draft.groups[group], device.value) != j.draft.groups[group].end()) return;
  throw Error(concat("device ", device.value, " adds up gradients of stage ", stage.value, ", whose forward is on another actor"),
              {"workers whose stages lie differently sum a stage where each has its forward"}, "use a table whose W are where F is");
}

void join_worker(JoiningWorkers& j, Draft from, std::int32_t worker) {
  Renumbering taken{.tasks = std::vector<TaskId>(from.tasks.size()), .instances = std::vector<InstanceId>(from.instances.size())};
  const std::string suffix = worker > 0 ? concat(".worker", worker) : "";
  const auto take = [&](InstanceId i) {
    if (!taken.instances[i]) taken.instances[i] = add(j.draft, std::move(from.instances[i]));
  };
  const auto is_own = [&](ActorId device) { return device && device.value % j.workers() == worker; };
  for (const InstanceId i : from.instances.ids())
    if (from.instances[i].source == Instance::Source::state && is_own(from.instances[i].home)) take(i);
  for (const ActorId device : from.actors.ids()) {
    if (!is_own(device)) continue;
    for (Run& run : from.actors[device]) {
      if (run.task && !taken.tasks[run.task]) taken.tasks[run.task] = add_task(j.draft, from.tasks[run.task], suffix);
      std::ranges::for_each(run.reads, take);
      for (const Write& write : run.writes) take(write.instance);
      renumber(run, taken);
      if (run.group >= 0) {
        run.group = group_of(j, run.stage);
        check_has_stage(j, run.group, run.stage, device);
        j.sums[{run.group, device.value}].push_back(run.reads[0]);
      }
      j.draft.actors[device].push_back(std::move(run));
    }
  }
  for (const InstanceId state : from.refreshed)
    if (taken.instances[state]) j.draft.refreshed.push_back(taken.instances[state]);
}

// The first sum of a member of the group that the first member does not make in its place; none: all sum the same.
InstanceId summed_otherwise(JoiningWorkers& j, std::int32_t group) {
  const std::vector<std::int32_t>& devices = j.draft.groups[group];
  const std::vector<InstanceId>& first = j.sums[{group, devices[0]}];
  for (const std::int32_t device : devices) {
    const std::vector<InstanceId>& own = j.sums[{group, device}];
    const auto [a, b] = std::ranges::mismatch(
        first, own, [&](InstanceId x, InstanceId y) { return j.draft.instances[x].types == j.draft.instances[y].types; });
    if (a != first.end()) return *a;
    if (b != own.end()) return *b;
  }
  return {};
}

TableDrafts joined(std::span<TableDrafts> workers) {
  JoiningWorkers j;
  for (const TableDrafts& worker : workers) j.actor_of_stage.push_back(actor_of_stage(worker.input.schedule));
  const Draft& first = workers[0].steps[0];
  j.draft.of.member = first.of.member;
  j.draft.whole_ports = first.whole_ports;
  j.draft.actors.resize(first.actors.size());
  for (std::int32_t w = 0; w < j.workers(); ++w) join_worker(j, std::move(workers[w].steps[0]), w);
  for (std::int32_t group = 0; group < std::ssize(j.draft.groups); ++group)
    if (const InstanceId other = summed_otherwise(j, group))
      throw Error(concat("workers whose stages lie differently do not sum ", quote(j.draft.instances[other].name), " alike"),
                  {"an actor of one adds up terms of several stages, which another has on several actors"},
                  "leave apart what stages share (--set model.tied=0), or cut all workers alike");
  TableDrafts out{std::move(workers[0].input), {}};
  out.steps.push_back(std::move(j.draft));
  return out;
}

}  // namespace

void check_workers(const Schedule& schedule, const CompileOptions& options) {
  if (options.distance >= 0 && options.prefetch)
    throw Error(concat("pipeline.prefetch looks rows up a step ahead, and pipeline.distance = ", options.distance,
                       " is of workers that update by themselves"),
                {"what a worker takes in of the others changes rows that its own samples do not name"},
                "set pipeline.prefetch = false, or pipeline.distance = -1");
  // Where a stage has slices its updates stand where each member reads its parameters last, and not all members read all (a bias behind a
  // split sum), so replicas would be added up in other orders.
  const auto splits_dims = [](const LayoutAxis& axis) {
    return axis.dims != std::set<std::string>{"sequence"} || !axis.stage_dims.empty();
  };
  if (const auto axis = std::ranges::find_if(options.axes, splits_dims);
      options.distance >= 0 && schedule.slices > 1 && axis != options.axes.end())
    throw Error(concat("pipeline.distance = ", options.distance, " is of workers that update by themselves, in ", schedule.slices,
                       " slices and along axis ", quote(axis->name)),
                {"its members would not add up what they hold alike in one order"},
                concat("set pipeline.slices = 1, or pipeline.", axis->name, " = 1, or pipeline.distance = -1"));
  if (options.others.empty()) return;
  const std::size_t workers = options.others.size() + 1;
  std::vector<int> devices = options.devices;
  devices.resize(schedule.actors.size(), 1);
  for (const int of_actor : devices)
    if (std::cmp_not_equal(of_actor, workers))
      throw Error(concat("there are tables for ", workers, " workers, and an actor has ", counted(of_actor, "device")), {},
                  "give each actor a device of each worker");
  if (options.zero > 0 || options.prefetch)
    throw Error(concat("workers whose stages lie differently ", options.prefetch ? "look up rows" : "hold shares", " together"), {},
                options.prefetch ? "set pipeline.prefetch = false" : "set pipeline.zero = 0");
  for (std::size_t w = 1; w < workers; ++w) {
    const std::string worker = concat("the table of worker ", w);
    check_alike(schedule, options.others[w - 1], worker, options.distance >= 0);
    if (options.distance < 0) check_versions_alike(schedule, options.others[w - 1], worker);
  }
}

void join_workers(Lowering& lowering) {
  Lowering out;
  for (auto begin = lowering.begin(), end = begin; begin != lowering.end(); begin = end) {
    const std::int32_t member = begin->steps[0].of.member;
    end = std::find_if(begin, lowering.end(), [&](const TableDrafts& table) { return table.steps[0].of.member != member; });
    out.push_back(end - begin == 1 ? std::move(*begin) : joined({begin, end}));
  }
  lowering = std::move(out);
}

}  // namespace penstock
