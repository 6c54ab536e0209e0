// Cuts a loop body with stages into tasks and bundles.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "stage/loop.h"
#include "stage/stages.h"

namespace penstock {
namespace {

constexpr std::int32_t kNone = -1;

bool is_constant(const Op& op) {
  return op.operands.empty();
}

bool is_view(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->views >= 0 && op.results.size() == 1 && op.operands.size() == 1;
}

// A task under construction: which ops it runs, what it reads from elsewhere and gives away.
struct Draft {
  std::int32_t stage = 0;
  Kind kind = Kind::F;
  std::set<std::int32_t> imports;  // values of the body: loop inputs, and results of other tasks
  std::vector<ValueId> exports;    // values other tasks read
  std::vector<std::size_t> ops;
  std::int32_t whole = kNone;  // of a light F: the F in whose place it stands
};

// One term of a loop result: what a task adds to its accumulator. Several values of one task are added up in the task.
struct Term {
  std::int32_t task;
  std::vector<ValueId> values;
};

class Cutter {
 public:
  Cutter(const StagedStep& step, const std::vector<bool>& split_backward, const std::vector<bool>& recomputed, const CutOptions& options)
      : loop_(step.step.ops[loop_of(step.step)]),
        body_(*loop_.body),
        split_(split_backward),
        recomputed_(recomputed),
        options_(options),
        producer_(producers(body_)) {
    dag_.names = step.stages;
    for (std::size_t s = 0; s < dag_.names.size(); ++s) number_[dag_.names[s]] = static_cast<std::int32_t>(s);
  }

  StageDag run() {
    split_index_ = static_cast<std::size_t>(std::get<std::int64_t>(loop_.attributes.find("split")->second));
    find_terms();
    if (options_.gathered) find_made_of_parameters();
    place_ops();
    decide_views();
    connect();
    for (ValueId output : body_.outputs) terms_.push_back(terms_of(output));
    for (std::size_t s = 0; s < recomputed_.size(); ++s)
      if (recomputed_[s]) add_recomputation(static_cast<std::int32_t>(s));
    bundle_inputs();
    bundle_edges();
    bundle_accumulators();
    for (std::size_t t = 0; t < drafts_.size(); ++t) build_graph(t);
    describe_shape();
    return std::move(dag_);
  }

 private:
  std::int32_t stage_of(const Op& op) const {
    const auto found = number_.find(op.stage);
    return found == number_.end() ? kNone : found->second;
  }
  const Op* op_of(ValueId value) const {
    const OpId op = producer_[value.index()];
    return op ? &body_.ops[op.index()] : nullptr;
  }
  std::int32_t task_of(ValueId value) const {
    const OpId op = producer_[value.index()];
    return op ? task_of_op_[op.index()] : kNone;
  }

  // Loop results that are joins over several stages are dissolved: each operand is a term of its own.
  void find_terms() {
    dissolved_.assign(body_.ops.size(), false);
    std::vector<int> uses = use_counts(body_);
    std::vector<int> as_result(body_.values.size());
    for (ValueId output : body_.outputs) ++as_result[output.index()];
    for (ValueId output : body_.outputs) {
      const Op* op = op_of(output);
      if (!op)
        throw Error(concat("loop result ", output.value, " of @", body_.name, " is a loop input"),
                    {"a loop result is a sum over micro-batches of something computed in the loop"});
      if (op->name != "add_n" || uses[output.index()] != as_result[output.index()]) continue;
      std::set<std::string> stages{op->stage};
      for (ValueId operand : op->operands)
        if (const Op* from = op_of(operand)) stages.insert(from->stage);
      if (stages.size() > 1) dissolved_[producer_[output.index()].index()] = true;
    }
  }

  std::int32_t add_task(std::int32_t stage, Kind kind) {
    const auto [it, added] = task_number_.try_emplace({stage, kind}, static_cast<std::int32_t>(drafts_.size()));
    if (added) drafts_.push_back({stage, kind, {}, {}, {}});
    return it->second;
  }

  // Values that are parameters, or other invariants of some size, or are made of such and constants alone.
  void find_made_of_parameters() {
    of_parameters_.assign(body_.values.size(), false);
    of_invariants_.assign(body_.values.size(), false);
    for (std::size_t i = split_index_; i < body_.inputs.size(); ++i) {
      const ValueId input = body_.inputs[i];
      of_invariants_[input.index()] = true;
      of_parameters_[input.index()] = !body_.type(input).shape.empty();
    }
    for (const Op& op : body_.ops) {
      const auto all = [&](const std::vector<bool>& of) { return [&of](ValueId v) { return of[v.index()]; }; };
      const bool invariant = std::all_of(op.operands.begin(), op.operands.end(), all(of_invariants_));
      const bool parameters = invariant && std::any_of(op.operands.begin(), op.operands.end(), all(of_parameters_));
      for (ValueId result : op.results) {
        of_invariants_[result.index()] = invariant;
        of_parameters_[result.index()] = parameters;
      }
    }
  }

  // Does the op belong to I because the parameters must be there for it, or for what follows on it?
  bool reads_parameters(const Op& op) const {
    return options_.gathered && op.phase == Phase::backward &&
           std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return of_parameters_[v.index()]; });
  }

  // Tasks of all ops but constants, which are cloned into each reader. The input-gradient part of a split backward is the backward slice of
  // what other stages read (JaxPP, section 4.3); the rest computes weight gradients.
  void place_ops() {
    task_of_op_.assign(body_.ops.size(), kNone);
    std::vector<bool> for_others(body_.ops.size());
    for (std::size_t i = body_.ops.size(); i-- > 0;) {
      const Op& op = body_.ops[i];
      if (dissolved_[i] || is_constant(op)) continue;
      const std::int32_t stage = stage_of(op);
      invariant(stage != kNone, "an op of the loop has no stage");
      for_others[i] = for_others[i] || reads_parameters(op);
      for (ValueId operand : op.operands) {
        const OpId from = producer_[operand.index()];
        if (!from || body_.ops[from.index()].phase == Phase::forward) continue;
        if (stage_of(body_.ops[from.index()]) != stage || for_others[i]) for_others[from.index()] = true;
      }
    }
    for (std::size_t s = 0; s < dag_.names.size(); ++s) add_task(static_cast<std::int32_t>(s), Kind::F);
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      const Op& op = body_.ops[i];
      if (dissolved_[i] || is_constant(op)) continue;
      const std::int32_t stage = stage_of(op);
      const Kind backward = !split_[static_cast<std::size_t>(stage)] ? Kind::B : for_others[i] ? Kind::I : Kind::W;
      task_of_op_[i] = add_task(stage, op.phase == Phase::forward ? Kind::F : backward);
      drafts_[task_of_op_[i]].ops.push_back(i);
    }
  }

  // A view that another task reads is taken again there from the storage it views, where that moves no more bytes than the views
  // themselves: the base crosses once and nothing is copied together.
  void decide_views() {
    retaken_.assign(body_.ops.size(), false);
    for (std::size_t i = 0; options_.gathered && i < body_.ops.size(); ++i)
      retaken_[i] = task_of_op_[i] != kNone && of_invariants_[body_.ops[i].results[0].index()];
    std::unordered_map<std::int32_t, std::vector<ValueId>> views_of_base;
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      if (task_of_op_[i] == kNone) continue;
      for (ValueId operand : body_.ops[i].operands) {
        const Op* op = op_of(operand);
        if (!op || !is_view(*op) || is_constant(*op) || task_of(operand) == task_of_op_[i]) continue;
        std::vector<ValueId>& views = views_of_base[base_of(operand).value];
        if (std::find(views.begin(), views.end(), operand) == views.end()) views.push_back(operand);
      }
    }
    for (const auto& [base, views] : views_of_base) {
      std::int64_t bytes = 0;
      for (ValueId view : views) bytes += body_.type(view).bytes();
      const bool input = !producer_[static_cast<std::size_t>(base)];
      if (!input && body_.type(ValueId(base)).bytes() > bytes) continue;
      for (ValueId view : views)
        for (ValueId v = view; v.value != base; v = op_of(v)->operands[0]) retaken_[producer_[v.index()].index()] = true;
    }
  }

  // The value whose storage `value` views, as far as one task made all the views between.
  ValueId base_of(ValueId value) const {
    const std::int32_t task = task_of(value);
    while (const Op* op = op_of(value)) {
      if (!is_view(*op) || task_of(value) != task) break;
      value = op->operands[0];
    }
    return value;
  }

  // The values that `task` has to get from elsewhere to have `value`: none for its own ops and what it clones.
  void import(std::int32_t task, ValueId value) {
    const OpId from = producer_[value.index()];
    if (from && is_constant(body_.ops[from.index()])) return;
    if (from && task_of_op_[from.index()] == task) return;
    if (from && retaken_[from.index()]) {
      for (ValueId operand : body_.ops[from.index()].operands) import(task, operand);
      return;
    }
    if (drafts_[task].imports.insert(value.value).second && from) {
      const std::int32_t owner = task_of_op_[from.index()];
      invariant(owner != kNone, "a dissolved join is read inside the loop");
      readers_[value.value].insert(task);
    }
  }

  void connect() {
    for (std::size_t i = 0; i < body_.ops.size(); ++i)
      if (task_of_op_[i] != kNone)
        for (ValueId operand : body_.ops[i].operands) import(task_of_op_[i], operand);
    if (options_.sums_in_w) leave_sums_to_w();
    for (const auto& [value, tasks] : readers_) drafts_[task_of(ValueId(value))].exports.push_back(ValueId(value));
    for (Draft& draft : drafts_) std::sort(draft.exports.begin(), draft.exports.end());
  }

  // What I makes of the loop's sums is added to them by W, so that a stage has one accumulator.
  void leave_sums_to_w() {
    for (ValueId output : body_.outputs)
      for (ValueId value : summed_values(output))
        if (task_of(value) != kNone && summing_task(value) != task_of(value)) import(summing_task(value), value);
  }

  std::vector<ValueId> summed_values(ValueId output) const {
    return dissolved_[producer_[output.index()].index()] ? op_of(output)->operands : std::vector<ValueId>{output};
  }

  // A constant summed over the micro-batches (a gradient that is zero) is added by the first stage.
  std::int32_t summing_task(ValueId value) const {
    if (is_constant(*op_of(value))) return 0;
    const Draft& made = drafts_[task_of(value)];
    const auto w = task_number_.find({made.stage, Kind::W});
    return options_.sums_in_w && made.kind == Kind::I && w != task_number_.end() ? w->second : task_of(value);
  }

  // Whether tasks of the value's own stage (or else of others) read it.
  bool is_read(ValueId value, bool by_own_stage) const {
    const std::int32_t stage = drafts_[task_of(value)].stage;
    const std::set<std::int32_t>& readers = readers_.at(value.value);
    return std::any_of(readers.begin(), readers.end(), [&](std::int32_t task) { return (drafts_[task].stage == stage) == by_own_stage; });
  }

  // Two more tasks that together do what F does, by the roots of their slices of it: what other stages and the loop's sums need, and what
  // only the stage's own backward reads. R takes from the light F what lives until the backward anyway.
  void add_recomputation(std::int32_t stage) {
    const std::int32_t forward = task_number_.at({stage, Kind::F});
    std::vector<ValueId> kept, residuals;
    std::set<std::int32_t> given;
    for (ValueId value : drafts_[forward].exports) {
      const bool others = is_read(value, false);
      (others ? kept : residuals).push_back(value);
      if (others && is_read(value, true)) given.insert(value.value);
    }
    if (residuals.empty()) return;
    for (const std::vector<Term>& terms : terms_)
      for (const Term& term : terms)
        if (term.task == forward) kept.insert(kept.end(), term.values.begin(), term.values.end());
    light_[forward] = static_cast<std::int32_t>(drafts_.size());
    drafts_.push_back(slice(forward, Kind::F, kept, {}));
    drafts_.back().whole = forward;
    again_[forward] = static_cast<std::int32_t>(drafts_.size());
    drafts_.push_back(slice(forward, Kind::R, residuals, given));
  }

  // The ops of task `from` that make `values`, going back no further than what is given.
  Draft slice(std::int32_t from, Kind kind, const std::vector<ValueId>& values, const std::set<std::int32_t>& given) const {
    Draft out{drafts_[from].stage, kind, {}, {}, {}};
    std::set<std::int32_t> wanted;
    const auto need = [&](const auto& self, ValueId value) -> void {
      const Op* op = op_of(value);
      if (op && is_constant(*op)) return;
      const bool own = task_of(value) == from;
      if (op && !own && retaken_[producer_[value.index()].index()]) {
        for (ValueId operand : op->operands) self(self, operand);
      } else {
        (own && !given.contains(value.value) ? wanted : out.imports).insert(value.value);
      }
    };
    for (ValueId value : values) need(need, value);
    const std::vector<std::size_t>& ops = drafts_[from].ops;
    for (auto i = ops.rbegin(); i != ops.rend(); ++i) {
      const Op& op = body_.ops[*i];
      if (std::none_of(op.results.begin(), op.results.end(), [&](ValueId result) { return wanted.contains(result.value); })) continue;
      out.ops.push_back(*i);
      for (ValueId operand : op.operands) need(need, operand);
    }
    std::reverse(out.ops.begin(), out.ops.end());
    return out;
  }

  void add_bundle(Bundle bundle) {
    const auto number = static_cast<std::int32_t>(dag_.bundles.size());
    for (std::int32_t task : bundle.producers) dag_.tasks[task].writes.push_back(number);
    for (std::int32_t task : bundle.readers) dag_.tasks[task].reads.push_back(number);
    dag_.bundles.push_back(std::move(bundle));
  }

  // One bundle per loop operand that is read: a state tensor has a name and a life of its own.
  void bundle_inputs() {
    for (const Draft& draft : drafts_) dag_.tasks.push_back({draft.stage, draft.kind, {}, {}, {}, draft.whole != kNone});
    for (std::size_t i = 0; i < body_.inputs.size(); ++i) {
      Bundle bundle;
      bundle.source = i < split_index_ ? Bundle::Source::data : Bundle::Source::invariant;
      bundle.types = {body_.type(body_.inputs[i])};
      bundle.members = {static_cast<std::int32_t>(i)};
      for (std::size_t t = 0; t < drafts_.size(); ++t)
        if (drafts_[t].imports.count(body_.inputs[i].value)) bundle.readers.push_back(static_cast<std::int32_t>(t));
      if (!bundle.readers.empty()) add_bundle(std::move(bundle));
    }
  }

  void bundle_edges() {
    for (std::size_t t = 0; t < drafts_.size(); ++t) {
      std::map<std::vector<std::int32_t>, Bundle> by_readers;
      for (ValueId value : drafts_[t].exports) {
        const std::set<std::int32_t>& tasks = readers_.at(value.value);
        Bundle& bundle = by_readers[{tasks.begin(), tasks.end()}];
        bundle.types.push_back(body_.type(value));
        bundle.members.push_back(value.value);
      }
      for (auto& [readers, bundle] : by_readers) {
        bundle.producers = {static_cast<std::int32_t>(t)};
        const auto& instead = is_read(ValueId(bundle.members[0]), false) ? light_ : again_;
        if (const auto found = instead.find(bundle.producers[0]); found != instead.end()) bundle.producers.push_back(found->second);
        bundle.readers = readers;
        add_recomputing_readers(bundle);
        add_bundle(std::move(bundle));
      }
    }
  }

  // The light F and R of those who read or make it, as far as they read any of it.
  void add_recomputing_readers(Bundle& bundle) const {
    std::vector<std::int32_t> forwards = bundle.readers;
    forwards.push_back(bundle.producers[0]);
    for (std::int32_t forward : forwards)
      for (const auto* instead : {&light_, &again_}) {
        const auto found = instead->find(forward);
        if (found == instead->end()) continue;
        const std::set<std::int32_t>& imports = drafts_[found->second].imports;
        const auto read = [&](std::int32_t member) { return imports.contains(member); };
        if (std::any_of(bundle.members.begin(), bundle.members.end(), read)) bundle.readers.push_back(found->second);
      }
  }

  std::vector<Term> terms_of(ValueId output) const {
    std::vector<Term> terms;
    for (ValueId value : summed_values(output)) {
      const std::int32_t task = summing_task(value);
      const auto same = std::find_if(terms.begin(), terms.end(), [&](const Term& term) { return term.task == task; });
      if (same == terms.end()) {
        terms.push_back({task, {value}});
      } else {
        same->values.push_back(value);
      }
    }
    std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.task < b.task; });
    return terms;
  }

  void bundle_accumulators() {
    std::map<std::vector<std::int32_t>, Bundle> by_producers;
    for (std::size_t o = 0; o < body_.outputs.size(); ++o) {
      std::vector<std::int32_t> tasks;
      for (const Term& term : terms_[o]) tasks.push_back(term.task);
      Bundle& bundle = by_producers[tasks];
      bundle.source = Bundle::Source::accumulator;
      bundle.types.push_back(body_.type(body_.outputs[o]));
      bundle.members.push_back(static_cast<std::int32_t>(o));
      bundle.producers = tasks;
    }
    for (auto& [tasks, bundle] : by_producers) {
      for (std::int32_t task : tasks)
        if (const auto found = light_.find(task); found != light_.end()) bundle.producers.push_back(found->second);
      add_bundle(std::move(bundle));
    }
  }

  void build_graph(std::size_t t) {
    StageTask& task = dag_.tasks[t];
    Graph& graph = task.graph;
    graph.name = concat(name(task.kind), task.stage, task.light ? "_light" : "");
    std::unordered_map<std::int32_t, ValueId> local;
    for (std::int32_t b : task.reads)
      for (std::int32_t member : dag_.bundles[b].members) {
        const bool edge = dag_.bundles[b].source == Bundle::Source::edge;
        const ValueId value = edge ? ValueId(member) : body_.inputs[static_cast<std::size_t>(member)];
        // Structural equality ignores names, so equal layers still share one task.
        local[value.value] = graph.add_input(body_.type(value), concat("x", graph.inputs.size()));
      }
    const auto copy = [&](const Op& op) {
      Op out = op;
      for (std::size_t i = 0; i < op.results.size(); ++i) {
        out.results[i] = graph.add_value(body_.type(op.results[i]));
        local[op.results[i].value] = out.results[i];
      }
      for (ValueId& operand : out.operands) operand = local.at(operand.value);
      graph.ops.push_back(std::move(out));
    };
    // A value of another task that is not imported is a constant or a retaken view: cloned before its first reader.
    const auto need = [&](const auto& self, ValueId value) -> ValueId {
      if (const auto found = local.find(value.value); found != local.end()) return found->second;
      const Op& op = *op_of(value);
      for (ValueId operand : op.operands) self(self, operand);
      copy(op);
      return local.at(value.value);
    };
    for (std::size_t i : drafts_[t].ops) {
      for (ValueId operand : body_.ops[i].operands) need(need, operand);
      copy(body_.ops[i]);
    }
    for (std::int32_t b : task.writes)
      for (std::int32_t member : dag_.bundles[b].members)
        graph.outputs.push_back(dag_.bundles[b].source == Bundle::Source::edge
                                    ? local.at(member)
                                    : term_value(static_cast<std::int32_t>(t), member, graph, [&](ValueId v) { return need(need, v); }));
    drop_unread_views(graph);
  }

  // What task `t` adds to loop result `output`.
  template <class Need>
  ValueId term_value(std::int32_t t, std::int32_t output, Graph& graph, const Need& need) const {
    const std::vector<Term>& terms = terms_[static_cast<std::size_t>(output)];
    const std::int32_t whole = drafts_[t].whole == kNone ? t : drafts_[t].whole;
    const Term& term = *std::find_if(terms.begin(), terms.end(), [&](const Term& candidate) { return candidate.task == whole; });
    if (term.values.size() == 1) return need(term.values[0]);
    Op sum;
    sum.name = "add_n";
    sum.phase = Phase::backward;
    for (ValueId value : term.values) sum.operands.push_back(need(value));
    sum.results = {graph.add_value(body_.type(term.values[0]))};
    graph.ops.push_back(sum);
    return sum.results[0];
  }

  // Views that only other tasks read are taken there; here nobody needs them any more.
  static void drop_unread_views(Graph& graph) {
    std::vector<int> uses = use_counts(graph);
    std::vector<bool> keep(graph.ops.size(), true);
    for (std::size_t i = graph.ops.size(); i-- > 0;) {
      const Op& op = graph.ops[i];
      if (!is_view(op) || uses[op.results[0].index()] > 0) continue;
      keep[i] = false;
      --uses[op.operands[0].index()];
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
      if (keep[i]) {
        if (next != i) graph.ops[next] = std::move(graph.ops[i]);
        ++next;
      }
    graph.ops.resize(next);
  }

  void describe_shape() {
    const std::size_t stages = dag_.names.size();
    dag_.shape.predecessors.resize(stages);
    dag_.shape.has_backward.assign(stages, false);
    dag_.shape.has_parameters.assign(stages, false);
    for (const StageTask& task : dag_.tasks)
      if (task.kind != Kind::F) dag_.shape.has_backward[task.stage] = true;
    for (const Bundle& bundle : dag_.bundles)
      for (std::int32_t reader : bundle.readers) {
        const StageTask& to = dag_.tasks[reader];
        if (bundle.source == Bundle::Source::invariant) dag_.shape.has_parameters[to.stage] = true;
        for (std::int32_t producer : bundle.producers) {
          const StageTask& from = dag_.tasks[producer];
          if (from.stage == to.stage) continue;
          // Backward edges mirror a forward edge; a forward value read by another stage's backward is an edge of its own.
          const std::int32_t before = std::min(from.stage, to.stage), after = std::max(from.stage, to.stage);
          std::vector<std::int32_t>& list = dag_.shape.predecessors[after];
          if (std::find(list.begin(), list.end(), before) == list.end()) list.push_back(before);
        }
      }
    for (auto& list : dag_.shape.predecessors) std::sort(list.begin(), list.end());
  }

  const Op& loop_;
  const Graph& body_;
  const std::vector<bool>&split_, &recomputed_;
  const CutOptions options_;
  std::vector<OpId> producer_;
  std::size_t split_index_ = 0;
  std::map<std::string, std::int32_t, std::less<>> number_;
  std::map<std::pair<std::int32_t, Kind>, std::int32_t> task_number_;
  std::vector<Draft> drafts_;
  std::map<std::int32_t, std::int32_t> light_, again_;  // of an F of a stage that recomputes: its light F and its R
  std::vector<std::int32_t> task_of_op_;                // kNone: constant or dissolved
  std::vector<bool> dissolved_, retaken_;
  std::vector<bool> of_parameters_, of_invariants_;         // of each value
  std::map<std::int32_t, std::set<std::int32_t>> readers_;  // of values that cross
  std::vector<std::vector<Term>> terms_;                    // of each loop result
  StageDag dag_;
};

}  // namespace

std::int32_t StageDag::task(std::int32_t stage, Kind kind, bool light) const {
  for (std::size_t t = 0; t < tasks.size(); ++t)
    if (tasks[t].stage == stage && tasks[t].kind == kind && tasks[t].light == light) return static_cast<std::int32_t>(t);
  return kNone;
}

StageDag cut(const StagedStep& step, const std::vector<bool>& split_backward, const std::vector<bool>& recomputed,
             const CutOptions& options) {
  return Cutter(step, split_backward, recomputed, options).run();
}

}  // namespace penstock
