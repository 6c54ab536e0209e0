#include "lower/window.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/fragment.h"
#include "lower/lookups_ahead.h"
#include "lower/waves.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

// The states whose next values depend on the loop's results. Those of all others (how many steps there were) can be made ahead, or are
// what they were (frozen parameters).
IdVector<InputId, bool> trained_states(const LowerInput& input) {
  const IdVector<ValueId, bool> depends = dependent_values(input);
  IdVector<InputId, bool> out;
  for (std::int32_t s = 0; s < input.step.state; ++s) out.push_back(depends[input.step.outputs[s]]);
  return out;
}

// The loop's operand that is this port, cut into micro-batches; -1: none is.
std::int32_t cut_operand(const LowerInput& input, InputId port) {
  for (std::int32_t o = 0; o < attribute<std::int64_t>(input.loop_op(), "split"); ++o)
    if (input.input_of_operand(o) == port) return o;
  return -1;
}

// The loop's operands of which something reads a step's whole batch.
std::vector<std::int32_t> whole_ports(const LowerInput& input, const std::vector<Draft>& drafts) {
  std::set<std::int32_t> out;
  for (const Draft& draft : drafts)
    for (const Instance& instance : draft.instances)
      if (instance.source == Instance::Source::data && !instance.unit)
        if (const std::int32_t operand = cut_operand(input, instance.input); operand >= 0) out.insert(operand);
  return {out.begin(), out.end()};
}

// `whole`: of these operands each step has a port of its own, behind all others.
LowerInput window_input(const LowerInput& input, const std::vector<std::int32_t>& whole) {
  LowerInput out = input;
  const std::int32_t steps = input.schedule.steps;
  out.microbatches *= steps;
  if (!whole.empty()) out.first_port = InputId(input.step.inputs.size());
  for (std::int32_t step = 0; step < steps; ++step)
    for (const std::int32_t operand : whole) {
      const Value& port = input.step.values[input.loop_op().operands[operand]];
      out.step.add_input(port.type, concat(port.name, ".", step));
    }
  for (std::size_t i = input.step.state; i < input.step.inputs.size(); ++i)
    if (cut_operand(input, InputId(i)) >= 0) out.step.values[input.step.inputs[i]].type.shape[0] *= steps;
  const std::vector<std::string> names = input.step.output_names;
  const std::size_t states = input.step.state, outputs = input.step.outputs.size() - states;
  out.step.output_names.clear();
  for (std::int32_t step = 0; step < steps; ++step)
    for (std::size_t o = 0; o < outputs; ++o) {
      if (step > 0) out.step.outputs.push_back(input.step.outputs[states + o]);
      out.step.output_names.push_back(concat(o < names.size() ? names[o] : concat("output", o), ".", step));
    }
  return out;
}

using HomedName = std::pair<std::string, ActorId>;

struct Joining {
  const LowerInput& input;          // of a step
  std::vector<std::int32_t> whole;  // whole_ports
  IdVector<InputId, bool> trained;
  std::vector<std::vector<ReadVersion>> versions;  // read_versions of the table
  Draft draft{};
  std::vector<IdVector<InstanceId, InstanceId>> instances{};  // by step: of each of its draft's
  std::vector<IdVector<TaskId, TaskId>> tasks{};              // likewise
  std::map<HomedName, InstanceId> shared{};                   // what all steps have
  // By state that is not trained, version (from 1) and device.
  std::map<std::tuple<InstanceId, std::int32_t, ActorId>, InstanceId> ahead{};

  std::int32_t steps() const { return input.schedule.steps; }
  bool is_trained(InstanceId i) const {
    const Instance& instance = draft.instances[i];
    return instance.source == Instance::Source::state && trained[instance.input];
  }
};

void join_instances(Joining& j, const Draft& from, std::int32_t step) {
  IdVector<InstanceId, InstanceId>& to = j.instances.emplace_back();
  for (const Instance& instance : from.instances) {
    Instance made = instance;
    const bool is_whole = instance.source == Instance::Source::data && !instance.unit;
    const std::int32_t operand = is_whole ? cut_operand(j.input, instance.input) : -1;
    const bool is_shared = instance.source == Instance::Source::state || (is_whole && operand < 0);
    if (!is_shared) {
      if (operand >= 0) {
        const auto place = std::ranges::find(j.whole, operand) - j.whole.begin();
        made.input = InputId(j.input.step.inputs.size() + step * j.whole.size() + place);
      }
      if (made.unit) made.unit.microbatch += step * j.input.microbatches;
      made.name += concat("@", step);
      to.push_back(add(j.draft, std::move(made)));
      continue;
    }
    InstanceId& found = j.shared[{instance.name, instance.home}];
    if (!found) found = add(j.draft, std::move(made));
    to.push_back(found);
  }
}

void join_tasks(Joining& j, const Draft& from) {
  IdVector<TaskId, TaskId>& to = j.tasks.emplace_back();
  for (const Task& task : from.tasks) to.push_back(add_task(j.draft, task.name, task.graph));
}

void check_readers(const Joining& j, const Draft& from) {
  for (const InstanceId state : from.refreshed)
    if (j.trained[from.instances[state].input])
      throw Error(
          concat("schedule ", j.input.schedule.name, ": ", quote(from.instances[state].name), " is read by stages on several actors"),
          {"in a window of steps the copies of others would have to follow each update"},
          "use parameters that one stage reads (--set model.tied=0 unties an embedding), or a table for one step");
}

// All steps read one part of the data alike: the seed.
void check_ports(const LowerInput& input) {
  const IdVector<ValueId, int> uses = use_counts(input.step);
  for (std::size_t i = input.step.state; i < input.step.inputs.size(); ++i) {
    const Value& port = input.step.values[input.step.inputs[i]];
    if (cut_operand(input, InputId(i)) >= 0 || uses[input.step.inputs[i]] == 0 || port.name == "seed") continue;
    throw Error(concat("schedule ", input.schedule.name, ": port ", quote(port.name), " is of a whole step, and the table of ",
                       input.schedule.steps),
                {"in a window of steps data come by micro-batch"}, "use a table for one step");
  }
}

// The run with the joined draft's numbers.
PlacedRun placed(const Joining& j, const Run& run, std::int32_t step) {
  PlacedRun out{run, step, {step}};
  if (run.opcode == Opcode::run) out.run.task = j.tasks[step][run.task];
  for (InstanceId& read : out.run.reads) read = j.instances[step][read];
  for (Write& write : out.run.writes) write.instance = j.instances[step][write.instance];
  if (run.unit) out.run.unit.microbatch += step * j.input.microbatches;
  const auto outputs = static_cast<std::int32_t>(j.input.step.outputs.size()) - j.input.step.state;
  if (run.opcode == Opcode::output) out.run.port += step * outputs;
  return out;
}

// The end of a step on a device, behind its last action: what waits for others, and what follows on that, comes when the window's actions
// are done, so that no step waits for the end of the one before.
struct Ends {
  std::vector<PlacedRun> now, later;
};
Ends ends_of(const Joining& j, std::vector<PlacedRun> runs, ActorId device) {
  Ends out;
  std::set<InstanceId> late;
  for (PlacedRun& end : runs) {
    const bool waits = end.run.opcode == Opcode::output || std::ranges::any_of(end.run.reads, [&](InstanceId i) {
                         const Instance& read = j.draft.instances[i];
                         return late.contains(i) || (read.source == Instance::Source::computed && read.home != device);
                       });
    if (waits)
      for (const Write& write : end.run.writes) late.insert(write.instance);
    (waits ? out.later : out.now).push_back(std::move(end));
  }
  return out;
}

// The runs of one device in the order of the table's row.
std::vector<PlacedRun> merged_row(const Joining& j, const std::vector<Draft>& drafts, ActorId actor, ActorId device) {
  const std::vector<Action>& actions = j.input.schedule.actors[actor.value];
  const std::vector<ReadVersion>& versions = j.versions[actor.value];
  const std::int32_t microbatches = j.input.schedule.step_microbatches();
  std::vector<std::size_t> taken(drafts.size());
  std::vector<std::int32_t> done(drafts.size()), left(drafts.size());  // actions of each step
  for (const Action& action : actions) ++left[action.microbatch / microbatches];
  std::vector<PlacedRun> out, later;
  for (std::size_t a = 0; a < actions.size(); ++a) {
    const std::int32_t step = actions[a].microbatch / microbatches, number = done[step]++;
    const std::vector<Run>& row = drafts[step].actors[device];
    // Its runs, what stands before the step's first, and behind them what belongs to no action.
    std::vector<PlacedRun> behind;
    bool begun = false;
    for (std::size_t& at = taken[step]; at < row.size() && row[at].action <= number; ++at) {
      begun = begun || row[at].action == number;
      PlacedRun next = placed(j, row[at], step);
      if (row[at].action == number && reads_parameters(actions[a].kind)) next.read = versions[a];
      const bool is_end = row[at].action < 0 && done[step] == left[step] && (begun || number > 0);
      (is_end ? behind : out).push_back(std::move(next));
    }
    Ends ends = ends_of(j, std::move(behind), device);
    std::ranges::move(ends.now, std::back_inserter(out));
    std::ranges::move(ends.later, std::back_inserter(later));
  }
  for (std::size_t step = 0; step < drafts.size(); ++step) {
    const std::vector<Run>& row = drafts[step].actors[device];
    for (std::size_t at = taken[step]; at < row.size(); ++at) later.push_back(placed(j, row[at], static_cast<std::int32_t>(step)));
  }
  std::ranges::stable_sort(later, {}, &PlacedRun::step);
  std::ranges::move(later, std::back_inserter(out));
  return out;
}

// A state, its version, and by how many updates that is predicted.
using Version = std::tuple<InstanceId, std::int32_t, std::int32_t>;

InstanceId add_copy(Joining& j, const Version& version, ActorId device) {
  const auto [state, number, ahead] = version;
  Instance copy;
  copy.name = concat(j.draft.instances[state].name, "@", number, ahead > 0 ? concat("+", ahead) : "");
  copy.types = j.draft.instances[state].types;
  copy.home = device;
  return add(j.draft, std::move(copy));
}

// --- states that are not trained

// Whether a step leaves the state as it is, so that all versions are one.
bool stays(const Graph& step, InputId state) {
  return step.outputs[state.index()] == step.inputs[state.index()];
}

InstanceId& version_ahead(Joining& j, InstanceId state, std::int32_t version, ActorId device) {
  InstanceId& found = j.ahead[{state, version, device}];
  if (!found) found = add_copy(j, {state, version, 0}, device);
  return found;
}

// The run that makes version `version` of these states on the device, of the version before.
Run make_ahead(Joining& j, const std::set<InstanceId>& states, std::int32_t version, ActorId device,
               const IdVector<ValueId, OpId>& producer) {
  Fragment fragment(j.input.step, producer);
  std::map<InputId, InstanceId> before;
  for (InstanceId state : states)
    before[j.draft.instances[state].input] = version == 1 ? state : version_ahead(j, state, version - 1, device);
  const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
    const InputId from = j.input.input_of[v];
    if (!from) return std::nullopt;
    const auto found = before.find(from);
    invariant(found != before.end(), "what is made ahead is made of states that the device has");
    return InstancePart{found->second};
  };
  Run run;
  for (InstanceId state : states) {
    fragment.graph.outputs.push_back(fragment.need(j.draft, j.input.step.outputs[j.draft.instances[state].input.index()], find));
    run.writes.push_back({version_ahead(j, state, version, device)});
  }
  run.reads = fragment.reads;
  run.task = add_task(j.draft, concat("ahead.", device.value), std::move(fragment.graph));
  return run;
}

// Ahead of all other runs their versions of all steps are made, which the runs of each step read. The last step's update stays.
void make_untrained_ahead(Joining& j, std::vector<PlacedRun>& row, ActorId device, const IdVector<ValueId, OpId>& producer) {
  std::set<InstanceId> states;
  const auto is_untrained = [&](InstanceId i) {
    const Instance& instance = j.draft.instances[i];
    return instance.source == Instance::Source::state && !j.trained[instance.input] && !stays(j.input.step, instance.input);
  };
  for (PlacedRun& placed : row) {
    for (InstanceId& read : placed.run.reads)
      if (is_untrained(read)) {
        states.insert(read);
        if (placed.step > 0) read = version_ahead(j, read, placed.step, device);
      }
    for (Write& write : placed.run.writes)
      if (is_untrained(write.instance) && placed.step + 1 < j.steps()) {
        states.insert(write.instance);
        Instance unused = j.draft.instances[version_ahead(j, write.instance, placed.step + 1, device)];
        unused.name += ".unused";
        write = {add(j.draft, std::move(unused)), ResultMode::store};
      }
  }
  std::vector<PlacedRun> made;
  if (!states.empty())
    for (std::int32_t version = 1; version < j.steps(); ++version) made.push_back({make_ahead(j, states, version, device, producer)});
  row.insert(row.begin(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
}

// --- states that are trained

// The rows of a device, with what they read of trained states.
struct Versions {
  std::map<Version, std::size_t> last;       // where each is read last
  std::map<InstanceId, std::int32_t> now{};  // by state: its version
  std::map<Version, InstanceId> copies{};    // of versions that are not the newest, and of predictions
  std::map<InputId, InstanceId> states{};    // the device's
};

Versions versions_of(const Joining& j, const std::vector<PlacedRun>& row) {
  Versions out;
  for (std::size_t r = 0; r < row.size(); ++r) {
    for (InstanceId read : row[r].run.reads)
      if (j.is_trained(read)) out.last[{read, row[r].read.version, row[r].read.ahead}] = r;
    for (InstanceId read : row[r].run.reads)
      if (j.draft.instances[read].source == Instance::Source::state) out.states[j.draft.instances[read].input] = read;
    for (const Write& write : row[r].run.writes)
      if (j.draft.instances[write.instance].source == Instance::Source::state)
        out.states[j.draft.instances[write.instance].input] = write.instance;
  }
  return out;
}

// The run that predicts the state, whose present version is `version`'s, by the update that makes its next value.
Run predict(Joining& j, const Versions& versions, const Version& version, InstanceId to, const IdVector<ValueId, OpId>& producer,
            ActorId device) {
  const auto [state, number, ahead] = version;
  const ValueId next = j.input.step.outputs[j.draft.instances[state].input.index()];
  std::optional<Op> op;
  if (const OpId made = producer[next]) op = prediction_of(j.input.step.ops[made], ahead);
  if (!op)
    throw Error(concat("schedule ", j.input.schedule.name, " reads a prediction of ", quote(j.draft.instances[state].name)),
                {"its update has no rule by which it could be predicted"}, "use train.optimiser = \"adamw\" or \"sgd\"");
  Fragment fragment(j.input.step, producer);
  const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
    const InputId from = j.input.input_of[v];
    if (!from) return std::nullopt;
    const InstanceId of = versions.states.at(from);
    return InstancePart{j.trained[from] || number == 0 ? of : version_ahead(j, of, number, device)};
  };
  for (ValueId& operand : op->operands) operand = fragment.need(j.draft, operand, find);
  if (j.draft.instances[state].types != std::vector{fragment.graph.type(op->operands[1])})
    throw Error(concat("schedule ", j.input.schedule.name, ": moments of ", quote(j.draft.instances[state].name), " are in shares"),
                {"a prediction of parameters needs all of them"}, "set pipeline.zero = 0");
  op->results = {fragment.graph.add_value(j.draft.instances[state].types[0])};
  fragment.graph.outputs = op->results;
  fragment.graph.ops.push_back(std::move(*op));
  Run run;
  run.kind = Kind::U;
  run.reads = fragment.reads;
  run.writes = {{to}};
  run.task = add_task(j.draft, concat("predict.", device.value), std::move(fragment.graph));
  return run;
}

// Throws unless the run is of the step whose update is the state's next.
void check_next(const Joining& j, const PlacedRun& placed, InstanceId state, std::int32_t now) {
  if (placed.step == now) return;
  throw Error(concat("schedule ", j.input.schedule.name, ": step ", placed.step, " of the window writes ",
                     quote(j.draft.instances[state].name), " after ", now, " updates"),
              {"in a window of steps each writes a state once, in order"}, "set pipeline.update = \"end\": the table has its own U");
}

void check_made(const Joining& j, const Version& version, std::int32_t now, ActorId device) {
  const auto [state, number, ahead] = version;
  if (number <= now) return;
  throw Error(concat("schedule ", j.input.schedule.name, ": on device ", device.value, " version ", number, " of ",
                     quote(j.draft.instances[state].name), " is read before it is made"),
              {concat(now,
                      " of its updates stand before; an update that waits for other actors (of clipped gradients) stands at the "
                      "window's end, one of shares (pipeline.zero) behind its step")},
              "set train.clip = 0, and pipeline.zero = 0 where an actor has several stages");
}

// The row with reads of the versions that the table says, and the copies and predictions that they need.
std::vector<Run> with_versions(Joining& j, std::vector<PlacedRun> row, ActorId device, const IdVector<ValueId, OpId>& producer) {
  Versions versions = versions_of(j, row);
  std::vector<Run> out;
  const auto make = [&](const Version& version, StageId stage) {
    const InstanceId made = versions.copies[version] = add_copy(j, version, device);
    const auto [state, number, ahead] = version;
    Run run;
    if (ahead > 0) {
      run = predict(j, versions, version, made, producer, device);
    } else {
      run.opcode = Opcode::copy;
      run.kind = Kind::U;
      run.reads = {state};
      run.writes = {{made}};
    }
    run.stage = stage;
    out.push_back(std::move(run));
  };
  // Copies what is read of the version that the run at `before` writes over, behind it.
  const auto keep = [&](InstanceId state, std::size_t before) {
    const std::int32_t now = versions.now[state];
    for (auto read = versions.last.lower_bound({state, now, 0}); read != versions.last.end(); ++read) {
      if (std::get<0>(read->first) != state || std::get<1>(read->first) != now) break;
      if (read->second > before && !versions.copies.contains(read->first)) make(read->first, row[before].run.stage);
    }
  };
  for (std::size_t r = 0; r < row.size(); ++r) {
    Run& run = row[r].run;
    std::set<InstanceId> written;
    for (const Write& write : run.writes)
      if (!row[r].pulls && j.is_trained(write.instance) && written.insert(write.instance).second) {
        check_next(j, row[r], write.instance, versions.now[write.instance]);
        keep(write.instance, r);
      }
    for (InstanceId& read : run.reads) {
      if (!j.is_trained(read)) continue;
      const Version version{read, row[r].read.version, row[r].read.ahead};
      const std::int32_t now = versions.now[read];
      check_made(j, version, now, device);
      if (row[r].read.ahead == 0 && row[r].read.version == now) continue;
      if (!versions.copies.contains(version)) make(version, run.stage);
      read = versions.copies.at(version);
    }
    for (InstanceId state : written) ++versions.now[state];
    out.push_back(std::move(run));
  }
  return out;
}

}  // namespace

LowerInput step_input(const LowerInput& window, std::int32_t step) {
  LowerInput out = window;
  for (const std::int32_t actor : actor_of_stage(window.schedule)) out.owner_of_stage.push_back(ActorId(actor));
  out.schedule = one_step(window.schedule, step);
  out.options.window = true;
  return out;
}

JoinedSteps join_steps(const LowerInput& window, const std::vector<Draft>& drafts) {
  Joining j{window, whole_ports(window, drafts), trained_states(window), read_versions(window.schedule)};
  j.draft.blocks = drafts[0].blocks;
  j.draft.sharded_states = drafts[0].sharded_states;
  j.draft.sharded_results = drafts[0].sharded_results;
  j.draft.groups = drafts[0].groups;
  j.draft.after = drafts[0].after;
  for (std::int32_t step = 0; step < j.steps(); ++step) {
    check_readers(j, drafts[step]);
    join_instances(j, drafts[step], step);
    join_tasks(j, drafts[step]);
  }
  check_ports(window);
  const IdVector<ValueId, OpId> producer = producers(window.step);
  for (const ActorId actor : ids<ActorId>(window.actors()))
    for (std::int32_t d = 0; d < window.devices(actor); ++d) {
      const ActorId device(j.draft.actors.size());
      std::vector<PlacedRun> row = merged_row(j, drafts, actor, device);
      if (window.options.distance >= 0 && window.devices(actor) > 1) row = in_waves(window, j.trained, std::move(row), device, j.draft);
      make_untrained_ahead(j, row, device, producer);
      std::vector<Run> runs = with_versions(j, std::move(row), device, producer);
      if (window.options.prefetch) look_up_ahead(window, runs, device, j.draft);
      j.draft.actors.push_back(std::move(runs));
    }
  return {window_input(window, j.whole), std::move(j.draft)};
}

}  // namespace penstock
