#include <algorithm>
#include <iterator>
#include <optional>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/fragment.h"
#include "lower/joining.h"
#include "ops/definition.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "penstock/optimiser.h"

namespace penstock {
namespace {

// A state, its version, and by how many updates that is predicted.
using Version = std::tuple<InstanceId, std::int32_t, std::int32_t>;

InstanceId add_copy(Joining& j, const Version& version, ActorId device) {
  const auto [state, number, ahead] = version;
  Instance copy;
  copy.name = concat(j.draft.instances[state].name, "@", number, ahead > 0 ? concat("+", ahead) : "");
  copy.types = j.draft.instances[state].types;
  copy.room = j.draft.instances[state].room;
  copy.home = device;
  return add(j.draft, std::move(copy));
}

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

bool is_predicted(const OptimiserInfo& optimiser) {
  return optimiser.fused && find_op(optimiser.fused->op)->update->predict;
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
                {"its update has no rule by which it could be predicted"},
                concat("optimisers that have one: ", optimisers_where(is_predicted)));
  const auto check_whole = [&](bool is_whole) {
    if (is_whole) return;
    throw Error(concat("schedule ", j.input.schedule.name, ": what ", j.input.step.ops[producer[next]].name, " keeps of ",
                       quote(j.draft.instances[state].name), " is in shares"),
                {"a prediction of parameters needs all of it"}, "set pipeline.zero = 0, or 3, where the parameters are in shares too");
  };
  Fragment fragment(j.input.step, producer);
  const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
    const InputId from = j.input.input_of[v];
    if (!from) return std::nullopt;
    const auto of = versions.states.find(from);
    check_whole(of != versions.states.end());
    return InstancePart{j.trained[from] || number == 0 ? of->second : version_ahead(j, of->second, number, device)};
  };
  for (ValueId& operand : op->operands) operand = fragment.need(j.draft, operand, find);
  check_whole(j.draft.instances[state].types == std::vector{fragment.graph.type(op->operands[1])});
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

Run copy(InstanceId state, InstanceId to, StageId stage) {
  Run run;
  run.opcode = Opcode::copy;
  run.kind = Kind::U;
  run.stage = stage;
  run.reads = {state};
  run.writes = {{to}};
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

void check_sent(const Joining& j, const ReadVersion& read, InstanceId state, ActorId device) {
  if (read.ahead == 0) return;
  throw Error(concat("schedule ", j.input.schedule.name, ": on device ", device.value, " a W reads version ", read.version, "+", read.ahead,
                     " of ", quote(j.draft.instances[state].name), ", which device ", j.draft.instances[state].home.value, " has"),
              {"a W on another actor than its forward is sent what it reads, and predictions are not"},
              "put this stage's W on the actor of its forwards");
}

}  // namespace

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

std::vector<Run> with_versions(Joining& j, std::vector<PlacedRun> row, ActorId device, const IdVector<ValueId, OpId>& producer) {
  Versions versions = versions_of(j, row);
  std::vector<Run> out;
  const auto make = [&](const Version& version, StageId stage) {
    const InstanceId made = versions.copies[version] = add_copy(j, version, device);
    const auto [state, number, ahead] = version;
    out.push_back(ahead > 0 ? predict(j, versions, version, made, producer, device) : copy(state, made, stage));
    out.back().stage = stage;
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
      if (const ActorId home = j.draft.instances[read].home; home != device) {  // the owner sends it
        check_sent(j, row[r].read, read, device);
        if (row[r].read.version > 0) read = version_ahead(j, read, row[r].read.version, home);
        continue;
      }
      const Version version{read, row[r].read.version, row[r].read.ahead};
      const std::int32_t now = versions.now[read];
      check_made(j, version, now, device);
      if (row[r].read.ahead == 0 && row[r].read.version == now) continue;
      if (!versions.copies.contains(version)) make(version, run.stage);
      read = versions.copies.at(version);
    }
    out.push_back(std::move(run));
    for (InstanceId state : written)
      if (const std::int32_t now = ++versions.now[state]; j.copied.contains(state) && j.copied.at(state).contains(now))
        out.push_back(copy(state, version_ahead(j, state, now, device), row[r].run.stage));
  }
  return out;
}

}  // namespace penstock
