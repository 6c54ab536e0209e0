// SPDX-License-Identifier: Apache-2.0
// Pass: in a window a run reads the version of the parameters that its table says: the state itself while it has that version, else a copy
// made of it ahead of the update that writes it over, or a prediction. What other devices read of a state its owner copies for them. States
// that are not trained (how many steps there were) are made for all steps ahead of all else. A state that steps leave as it is has one
// version.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/fragment.h"
#include "lower/passes.h"
#include "lower/window.h"
#include "ops/definition.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "penstock/optimiser.h"

namespace penstock {
namespace {

struct Versioning {
  const LowerInput& input;
  Draft& draft;
  IdVector<InputId, bool> trained;
  IdVector<ValueId, OpId> producer;  // of the step's values
  // By state, version (from 1) and device: of those that are not trained, and of those that other devices than their owner read.
  std::map<std::tuple<InstanceId, std::int32_t, ActorId>, InstanceId> ahead{};
  // Trained states that other devices than their owner read, and the versions that they do.
  std::map<InstanceId, std::set<std::int32_t>> copied{};

  std::int32_t steps() const { return input.schedule.steps; }
  bool is_trained(InstanceId i) const {
    const Instance& instance = draft.instances[i];
    return instance.source == Instance::Source::state && trained[instance.input];
  }
};

// A state, its version, and by how many updates that is predicted.
using Version = std::tuple<InstanceId, std::int32_t, std::int32_t>;

InstanceId add_copy(Versioning& w, const Version& version, ActorId device) {
  const auto [state, number, ahead] = version;
  Instance copy;
  copy.name = concat(w.draft.instances[state].name, "@", number, ahead > 0 ? concat("+", ahead) : "");
  copy.types = w.draft.instances[state].types;
  copy.room = w.draft.instances[state].room;
  copy.home = device;
  return add(w.draft, std::move(copy));
}

// Whether a step leaves the state as it is, so that all versions are one.
bool stays(const Graph& step, InputId state) {
  return step.outputs[state.index()] == step.inputs[state.index()];
}

InstanceId& version_ahead(Versioning& w, InstanceId state, std::int32_t version, ActorId device) {
  InstanceId& found = w.ahead[{state, version, device}];
  if (!found) found = add_copy(w, {state, version, 0}, device);
  return found;
}

// The run that makes version `version` of these states on the device, of the version before.
Run make_ahead(Versioning& w, const std::set<InstanceId>& states, std::int32_t version, ActorId device) {
  Fragment fragment(w.input.step, w.producer);
  std::map<InputId, InstanceId> before;
  for (InstanceId state : states)
    before[w.draft.instances[state].input] = version == 1 ? state : version_ahead(w, state, version - 1, device);
  const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
    const InputId from = w.input.input_of[v];
    if (!from) return std::nullopt;
    const auto found = before.find(from);
    invariant(found != before.end(), "what is made ahead is made of states that the device has");
    return InstancePart{found->second};
  };
  Run run;
  for (InstanceId state : states) {
    fragment.graph.outputs.push_back(fragment.need(w.draft, w.input.step.outputs[w.draft.instances[state].input.index()], find));
    run.writes.push_back({version_ahead(w, state, version, device)});
  }
  run.reads = fragment.reads;
  run.task = add_task(w.draft, concat("ahead.", device.value), std::move(fragment.graph));
  return run;
}

// The rows of a device, with what they read of trained states.
struct Versions {
  std::map<Version, std::size_t> last;       // where each is read last
  std::map<InstanceId, std::int32_t> now{};  // by state: its version
  std::map<Version, InstanceId> copies{};    // of versions that are not the newest, and of predictions
  std::map<InputId, InstanceId> states{};    // the device's
};

Versions versions_of(const Versioning& w, const std::vector<Run>& row) {
  Versions out;
  for (std::size_t r = 0; r < row.size(); ++r) {
    for (InstanceId read : row[r].reads)
      if (w.is_trained(read)) out.last[{read, row[r].window.read.version, row[r].window.read.ahead}] = r;
    for (InstanceId read : row[r].reads)
      if (w.draft.instances[read].source == Instance::Source::state) out.states[w.draft.instances[read].input] = read;
    for (const Write& write : row[r].writes)
      if (w.draft.instances[write.instance].source == Instance::Source::state)
        out.states[w.draft.instances[write.instance].input] = write.instance;
  }
  return out;
}

bool is_predicted(const OptimiserInfo& optimiser) {
  return optimiser.fused && find_op(optimiser.fused->op)->update->predict;
}

// The run that predicts the state, whose present version is `version`'s, by the update that makes its next value.
Run predict(Versioning& w, const Versions& versions, const Version& version, InstanceId to, ActorId device) {
  const auto [state, number, ahead] = version;
  const ValueId next = w.input.step.outputs[w.draft.instances[state].input.index()];
  std::optional<Op> op;
  if (const OpId made = w.producer[next]) op = prediction_of(w.input.step.ops[made], ahead);
  if (!op)
    throw Error(concat("schedule ", w.input.schedule.name, " reads a prediction of ", quote(w.draft.instances[state].name)),
                {"its update has no rule by which it could be predicted"},
                concat("optimisers that have one: ", optimisers_where(is_predicted)));
  const auto check_whole = [&](bool is_whole) {
    if (is_whole) return;
    throw Error(concat("schedule ", w.input.schedule.name, ": what ", w.input.step.ops[w.producer[next]].name, " keeps of ",
                       quote(w.draft.instances[state].name), " is in shares"),
                {"a prediction of parameters needs all of it"}, "set pipeline.zero = 0, or 3, where the parameters are in shares too");
  };
  Fragment fragment(w.input.step, w.producer);
  const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
    const InputId from = w.input.input_of[v];
    if (!from) return std::nullopt;
    const auto of = versions.states.find(from);
    check_whole(of != versions.states.end());
    return InstancePart{w.trained[from] || number == 0 ? of->second : version_ahead(w, of->second, number, device)};
  };
  for (ValueId& operand : op->operands) operand = fragment.need(w.draft, operand, find);
  check_whole(w.draft.instances[state].types == std::vector{fragment.graph.type(op->operands[1])});
  op->results = {fragment.graph.add_value(w.draft.instances[state].types[0])};
  fragment.graph.outputs = op->results;
  fragment.graph.ops.push_back(std::move(*op));
  Run run;
  run.kind = Kind::U;
  run.reads = fragment.reads;
  run.writes = {{to}};
  run.task = add_task(w.draft, concat("predict.", device.value), std::move(fragment.graph));
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
void check_next(const Versioning& w, const Run& run, InstanceId state, std::int32_t now) {
  if (run.window.step == now) return;
  throw Error(concat("schedule ", w.input.schedule.name, ": step ", run.window.step, " of the window writes ",
                     quote(w.draft.instances[state].name), " after ", now, " updates"),
              {"in a window of steps each writes a state once, in order"}, "set pipeline.update = \"end\": the table has its own U");
}

void check_made(const Versioning& w, const Run& run, const Version& version, std::int32_t now, ActorId device) {
  const auto [state, number, ahead] = version;
  if (number <= now) return;
  const bool is_of_loop(run.stage);
  throw Error(concat("schedule ", w.input.schedule.name, ": on device ", device.value, " version ", number, " of ",
                     quote(w.draft.instances[state].name), " is read before it is made"),
              {concat(now, " of its updates stand before"),
               is_of_loop ? "an update that waits for other actors (of clipped gradients) stands at the window's end, one of shares "
                            "(pipeline.zero) behind its step"
                          : "what a step's actions share, such as a cast of it that all slices read, is made before the first of them"},
              is_of_loop ? "set train.clip = 0, and pipeline.zero = 0 where an actor has several stages"
                         : "set train.dtype = \"f32\", or leave out slices, or take a schedule that ends each step before the next begins");
}

void check_sent(const Versioning& w, const ReadVersion& read, InstanceId state, ActorId device) {
  if (read.ahead == 0) return;
  throw Error(concat("schedule ", w.input.schedule.name, ": on device ", device.value, " version ", read.version, "+", read.ahead, " of ",
                     quote(w.draft.instances[state].name), " is read, which device ", w.draft.instances[state].home.value, " has"),
              {"an I or W on another actor than its forward is sent what it reads, and predictions are not"},
              "put this stage's I and W on the actor of its forwards");
}

// States that are not trained: ahead of all other runs of the row their versions of all steps are made, which the runs of each step read.
// The last step's update stays.
void make_untrained_ahead(Versioning& w, std::vector<Run>& row, ActorId device) {
  std::set<InstanceId> states;
  const auto is_untrained = [&](InstanceId i) {
    const Instance& instance = w.draft.instances[i];
    return instance.source == Instance::Source::state && !w.trained[instance.input] && !stays(w.input.step, instance.input);
  };
  for (Run& run : row) {
    for (InstanceId& read : run.reads)
      if (is_untrained(read)) {
        states.insert(read);
        if (run.window.step > 0) read = version_ahead(w, read, run.window.step, device);
      }
    for (Write& write : run.writes)
      if (is_untrained(write.instance) && run.window.step + 1 < w.steps()) {
        states.insert(write.instance);
        Instance unused = w.draft.instances[version_ahead(w, write.instance, run.window.step + 1, device)];
        unused.name += ".unused";
        write = {add(w.draft, std::move(unused)), ResultMode::store};
      }
  }
  std::vector<Run> made;
  if (!states.empty())
    for (std::int32_t version = 1; version < w.steps(); ++version) made.push_back(make_ahead(w, states, version, device));
  row.insert(row.begin(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
}

// The row with reads of the versions that the table says, and the copies and predictions that they need. Throws Error for a version that is
// not made, or cannot be predicted.
std::vector<Run> with_versions(Versioning& w, std::vector<Run> row, ActorId device) {
  Versions versions = versions_of(w, row);
  std::vector<Run> out;
  const auto make = [&](const Version& version, StageId stage) {
    const auto [state, number, ahead] = version;
    const auto copied = w.copied.find(state);
    if (ahead == 0 && number > 0 && copied != w.copied.end() && copied->second.contains(number)) {  // it is there, for others
      versions.copies[version] = version_ahead(w, state, number, device);
      return;
    }
    const InstanceId made = versions.copies[version] = add_copy(w, version, device);
    out.push_back(ahead > 0 ? predict(w, versions, version, made, device) : copy(state, made, stage));
    out.back().stage = stage;
  };
  // Copies what is read of the version that the run at `before` writes over, behind it.
  const auto keep = [&](InstanceId state, std::size_t before) {
    const std::int32_t now = versions.now[state];
    for (auto read = versions.last.lower_bound({state, now, 0}); read != versions.last.end(); ++read) {
      if (std::get<0>(read->first) != state || std::get<1>(read->first) != now) break;
      if (read->second > before && !versions.copies.contains(read->first)) make(read->first, row[before].stage);
    }
  };
  for (std::size_t r = 0; r < row.size(); ++r) {
    Run& run = row[r];
    std::set<InstanceId> written;
    for (const Write& write : run.writes)
      if (!run.window.pulls && w.is_trained(write.instance) && written.insert(write.instance).second) {
        check_next(w, row[r], write.instance, versions.now[write.instance]);
        keep(write.instance, r);
      }
    for (InstanceId& read : run.reads) {
      if (!w.is_trained(read)) continue;
      if (const ActorId home = w.draft.instances[read].home; home != device) {  // the owner sends it
        check_sent(w, run.window.read, read, device);
        if (row[r].window.read.version > 0) read = version_ahead(w, read, row[r].window.read.version, home);
        continue;
      }
      const Version version{read, row[r].window.read.version, row[r].window.read.ahead};
      const std::int32_t now = versions.now[read];
      check_made(w, run, version, now, device);
      if (row[r].window.read.ahead == 0 && row[r].window.read.version == now) continue;
      if (!versions.copies.contains(version)) make(version, run.stage);
      read = versions.copies.at(version);
    }
    const StageId stage = run.stage;
    out.push_back(std::move(run));
    out.back().window = {};
    for (InstanceId state : written)
      if (const std::int32_t now = ++versions.now[state]; w.copied.contains(state) && w.copied.at(state).contains(now))
        out.push_back(copy(state, version_ahead(w, state, now, device), stage));
  }
  return out;
}

// Notes what other devices than its owner read of a trained state.
void note_copied(Versioning& w) {
  for (const ActorId device : w.draft.actors.ids())
    for (const Run& run : w.draft.actors[device])
      for (const InstanceId read : run.reads)
        if (w.is_trained(read) && w.draft.instances[read].home != device) w.copied[read].insert(run.window.read.version);
}

}  // namespace

void read_table_versions(const LowerInput& input, Draft& draft) {
  if (!is_window(input)) return;
  Versioning w{input, draft, trained_states(input), producers(input.step)};
  note_copied(w);
  for (const ActorId device : draft.actors.ids()) make_untrained_ahead(w, draft.actors[device], device);
  for (const ActorId device : draft.actors.ids()) draft.actors[device] = with_versions(w, std::move(draft.actors[device]), device);
}

}  // namespace penstock
