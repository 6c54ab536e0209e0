// SPDX-License-Identifier: Apache-2.0
#include "driver/batch_steps.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "lower/stage_bytes.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "simulate/durations.h"
#include "simulate/roofline.h"
#include "stage/stage_layers.h"

namespace penstock {
namespace {

// A table of one micro-batch that has all kinds of tasks which a plan may have.
Schedule small_table(const Config& config) {
  Schedule table = make_schedule("1f1b", {.actors = config.pipeline.table.actors, .microbatches = 1});
  for (std::size_t s = 0; plans_recomputation(config) && s < table.actors.size(); ++s) {
    std::vector<Action>& row = table.actors[s];
    row.insert(row.begin() + 1, {static_cast<std::int32_t>(s), Kind::R, 0});
  }
  return table;
}

const std::string& word_of(Recompute recompute) {
  return recompute_words()[static_cast<std::size_t>(recompute)];
}

// In seconds.
CostFormula formula_of(const Config::Batch& batch) {
  return {.fixed = batch.fixed * kMillisecond, .linear = batch.linear / kMillisecond, .quadratic = batch.quadratic / kMillisecond};
}

}  // namespace

std::string planner_text(const Config& config) {
  return concat("batch.planner = ", quote(config.batch.planner));
}

double most_bytes(const Program& program) {
  std::int64_t most = 0;
  for (const DeviceProgram& device : program.devices) most = std::max(most, device.device_bytes());
  return static_cast<double>(most);
}

void fail_above_limit(const Config& config, std::size_t samples, double bytes) {
  throw Error(concat("the program of a batch of ", samples, " samples plans ", bytes_text(bytes),
                     " on a device, above batch.memory_limit = ", bytes_text(config.batch.memory_limit)),
              {}, "raise the limit, or lower train.batch or model.context");
}

void set_program(ShapePrograms& programs, BatchStep& step) {
  ShapeProgram made = programs.program(step.shapes, step.table);
  step.program = std::make_shared<const Program>(std::move(made.program));
  step.classes = made.classes;
  step.new_classes = made.new_classes;
}

std::string measured_under(const Config& config) {
  const Config::Pipeline& p = config.pipeline;
  std::vector<std::string> out;
  for (const auto& [axis, members] :
       {std::pair{"data", p.data}, {"local", p.program.local}, {"expert", p.expert}, {"context", p.context}, {"tensor", p.tensor}})
    if (members > 1) out.push_back(concat(axis, "=", members));
  if (p.program.recompute != Recompute::none) out.push_back(concat("recompute=", word_of(p.program.recompute)));
  return join(out, ", ");
}

bool plans_recomputation(const Config& config) {
  const Recomputes how = find_batch_planner(config.batch.planner).recomputes;
  return config.batch.recompute == Recompute::inputs && (how == Recomputes::actions || how == Recomputes::either);
}

bool plans_layers(const Config& config) {
  const Recomputes how = find_batch_planner(config.batch.planner).recomputes;
  return config.batch.recompute == Recompute::inputs && (how == Recomputes::layers || how == Recomputes::either);
}

std::string recompute_of(const Config& config, const PlannedBatch& plan) {
  const bool is_chosen =
      config.batch.recompute != Recompute::none && find_batch_planner(config.batch.planner).recomputes == Recomputes::modes;
  return is_chosen ? word_of(plan.loads.at(0).shape.recompute) : "";
}

std::int64_t layers_again(const BatchStep& step) {
  std::int64_t out = 0;
  for (const BatchShape& shape : step.shapes) out = std::accumulate(shape.again.begin(), shape.again.end(), out);
  return out;
}

void check_choices(const Config& config) {
  const BatchPlannerInfo& planner = find_batch_planner(config.batch.planner);
  if (planner.rows == BatchRows::padded && config.batch.ragged)
    throw Error(concat(planner_text(config), " pads rows, and batch.rows is \"ragged\""), {},
                "for ragged rows set batch.planner = \"searched\" or \"balanced\"");
  const Recompute most = config.batch.recompute;
  const bool knows_how =
      planner.recomputes == Recomputes::modes || most == Recompute::none || plans_recomputation(config) || plans_layers(config);
  if (knows_how) return;
  const std::string words = quote(word_of(most));
  throw Error(concat(planner_text(config),
                     planner.recomputes == Recomputes::nothing ? " has nothing computed again"
                                                               : " has whole layers or stages computed again, or nothing",
                     ", and batch.recompute is ", words),
              {}, concat("set pipeline.recompute = ", words, ", which holds for all micro-batches"));
}

void check_own_stages(const Config& config, const Prepared& prepared) {
  const std::string planner = planner_text(config);
  if (prepared.plan)
    throw Error(concat(planner, " plans the model's own stages, and ", prepared.plan->file, " has others"), {},
                "leave out batch.planner or the plan");
  if (prepared.schedule.slices > 1)
    throw Error(
        concat(planner, " plans rows as a whole, and schedule ", prepared.schedule.name, " cuts them into ",
               counted(prepared.schedule.slices, "slice")),
        {}, "set pipeline.slices = 1 and a schedule without slices, or batch.planner = \"infinipipe\", which cuts long texts by itself");
  if (prepared.options.zero > 0 && prepared.options.axes.size() > 1)
    throw Error(concat(planner, " with pipeline.zero = ", prepared.options.zero, " is for one axis inside of an actor; the mesh has ",
                       join(prepared.options.axes, ", ", [](const LayoutAxis& axis) { return concat(axis.name, "=", axis.size); })),
                {"what devices share of a sum would depend on the lengths of a batch"},
                "set pipeline.zero = 0, or leave out one of these axes");
}

BatchSteps::BatchSteps(const Config& config, const Prepared& prepared, const Dataset& data)
    : config_(config),
      planner_(find_batch_planner(config.batch.planner)),
      prepared_(prepared),
      data_(data),
      reads_pairs_(rows_of(config, *prepared.model).inputs > 0),
      programs_(config, prepared) {
  check_planner();
  if (planner_.texts == TextsIn::groups) groups_ = group_options();
  if (config.batch.memory > 0) limit_ = config.batch.memory;
  read_costs();
}

void BatchSteps::check_planner() const {
  const Config::Batch& batch = config_.batch;
  const Schedule& schedule = prepared_.schedule;
  if (batch.memory > 0 && batch.memory_limit > 0)
    throw Error("batch.memory and batch.memory_limit are both given", {}, "limit tokens, or bytes");
  if (!planner_.plan)
    throw Error(concat(planner_text(config_), " plans no batches of sequences, which are what is measured"), {}, "leave out batch.planner");
  check_own_stages(config_, prepared_);
  if (planner_.given_table) {
    if (batch.memory > 0 || batch.memory_limit > 0)
      throw Error(concat(planner_text(config_), " keeps no limit of memory"), {},
                  "raise pipeline.microbatches, so that a row holds fewer tokens, or set batch.planner = \"searched\"");
    return;
  }
  if (planner_.texts != TextsIn::one_piece) check_texts();
  if (planner_.texts == TextsIn::groups) check_groups();
  check_choices(config_);
  if (schedule.stages() != config_.pipeline.table.actors)
    throw Error(concat(planner_text(config_), " plans one stage for each actor; schedule ", schedule.name, " has ", schedule.stages(),
                       " for ", config_.pipeline.table.actors),
                {}, "set pipeline.chunks = 1 and a schedule of one chunk: the order of each batch is planned anyway");
}

void BatchSteps::check_texts() const {
  if (!reads_pairs_) return;
  throw Error(concat(planner_text(config_), planner_.texts == TextsIn::groups ? " splits texts over devices" : " cuts texts into slices",
                     "; model ", quote(config_.model.name), " reads pairs"),
              {}, "set batch.planner = \"searched\" and batch.rows = \"ragged\"");
}

void BatchSteps::check_groups() const {
  if (prepared_.options.zero > 0)
    throw Error(concat(planner_text(config_), " with pipeline.zero = ", prepared_.options.zero,
                       ": what devices share of a sum would depend on the groups of a batch"),
                {}, "set pipeline.zero = 0");
  const std::vector<LayoutAxis>& axes = prepared_.options.axes;
  if (!axes.empty() && axes[0].dims == std::set<std::string>{"sequence"} && axes[0].stage_dims.empty() &&
      std::has_single_bit(static_cast<unsigned>(axes[0].size)))
    return;
  throw Error(concat(planner_text(config_), " divides the members of the mesh's first axis, over which sequences are split, into groups"),
              {axes.empty() ? "the mesh has no axis inside of an actor"
                            : concat("the mesh has ", join(axes, ", ", [](const LayoutAxis& a) { return concat(a.name, "=", a.size); }))},
              "give it one of a power of two members ahead of others, such as --mesh pipe=2,context=4,tensor=2");
}

// A group sends what the ops of one shape say.
FlexspOptions BatchSteps::group_options() {
  const LayoutAxis& axis = prepared_.options.axes[0];
  const std::int64_t length = round() * axis.size;
  const LowerInput& member = programs_.class_of({.input = length, .degree = axis.size}, small_table(config_)).front();
  const Graph& body = *member.loop_op().body;
  std::map<std::string, std::pair<double, double>> sent;
  for (const Op& op : body.ops) {
    if (!is_collective(op) || attribute<std::string>(op, "axis") != axis.name) continue;
    auto& [bytes, messages] = sent[op.stage];
    bytes += static_cast<double>(body.type(op.operands[0]).bytes());
    ++messages;
  }
  FlexspOptions out{.context = data_.tokens(), .devices = axis.size};
  for (const auto& [stage, of_stage] : sent) {
    out.sent = std::max(out.sent, of_stage.first / static_cast<double>(round()));
    out.messages = std::max(out.messages, of_stage.second);
  }
  return out;
}

std::int64_t BatchSteps::round() const {
  if (config_.batch.round > 0) return config_.batch.round;
  return is_ragged() ? 64 : 8;
}

// No side is longer than the context.
SampleLengths BatchSteps::lengths_of(std::int64_t sample) const {
  const std::int64_t target = reads_pairs_ ? data_.target_length(sample) : 0;
  return {data_.length(sample) - target, target};
}

void BatchSteps::read_costs() {
  const Config::Batch& batch = config_.batch;
  const int stages = prepared_.schedule.stages();
  const BatchShape shape{1, round(), reads_pairs_ ? round() : 0};
  const Schedule table = small_table(config_);
  // An R that this mesh cannot have is refused here, and not at the batch whose plan first has one.
  if (plans_recomputation(config_) && !prepared_.options.axes.empty()) programs_.class_of(shape, table);
  layers_ = least_layers();
  HeldFits held;
  if (!planner_.given_table && (batch.memory_limit > 0 || !batch.costs.empty() || modes().size() > 1 || layers_ > 0))
    for (const Recompute mode : modes()) held[mode] = held_fits(mode);
  if (batch.costs.empty()) {
    costs_ = stage_costs(formula_of(batch), stages);
  } else {
    const std::string& backend = config_.pipeline.backend;
    const Costs costs = parse_costs(read_file(batch.costs), batch.costs);
    const BatchFit& fit = needed_fit(
        costs, batch.costs,
        {.backend = backend, .stages = stages, .split = config_.pipeline.table.split_backward, .under = measured_under(config_)});
    costs_ = measured_costs(fit);
    beyond_ = fit.beyond;
    if (const auto link = costs.links.find(backend); link != costs.links.end()) network_.link = link->second;
  }
  costs_ = holding(std::move(costs_), std::move(held), /*bytes=*/batch.memory_limit > 0);
  if (batch.memory_limit <= 0) return;
  // The limit leaves room for what a program takes beside the activations that plans count.
  double live = 0;
  for (const StageBytes& stage : stage_bytes(programs_.class_of(shape, table)[0])) live = std::max(live, stage.live);
  limit_ = batch.memory_limit - (most_bytes(programs_.program({shape}, table).program) - live);
}

int BatchSteps::least_layers() {
  if (!plans_layers(config_)) return 0;
  const LowerInput& input = programs_.class_of({1, round()}, small_table(config_))[0];
  return std::ranges::min(layer_counts(input.step, input.dag.names));
}

// The bytes of the first slice of a row of two: a stage that recomputes still keeps what later slices read of it.
std::vector<StageBytes> BatchSteps::first_slice_bytes(const BatchLoad& slice, int layers) {
  const std::int64_t length = slice.shape.input;
  BatchShape shape{.input = 2 * length, .slices = {length, length}};
  if (layers > 0) shape.again.assign(2 * at(config_.pipeline.table.actors), layers);
  const std::vector<StageBytes> all = stage_bytes(programs_.class_of(shape, sliced(small_table(config_), 2))[0]);
  std::vector<StageBytes> out;
  for (std::size_t s = 0; s < all.size(); s += 2) out.push_back(all[s]);
  return out;
}

std::vector<Recompute> BatchSteps::modes() const {
  std::vector<Recompute> out;
  for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::inputs})
    if (mode == Recompute::none || (planner_.recomputes == Recomputes::modes && mode <= config_.batch.recompute)) out.push_back(mode);
  return out;
}

std::vector<double> BatchSteps::computed_again(BatchShape shape) {
  const auto seconds = [&](Kind kind) {
    const DeviceModel& device = published_devices().device("v100");
    std::vector<double> out(at(config_.pipeline.table.actors));
    for (const StageTask& task : programs_.class_of(shape, small_table(config_))[0].dag.tasks)
      if (task.kind == kind) out[task.stage.index()] += roofline_seconds(*task.graph, device);
    return out;
  };
  std::vector<double> out = seconds(Kind::B);
  shape.recompute = Recompute::none;
  shape.again.clear();
  const std::vector<double> forward = seconds(Kind::F), backward = seconds(Kind::B);
  for (std::size_t s = 0; s < out.size(); ++s) out[s] = forward[s] > 0 ? std::max(out[s] - backward[s], 0.0) / forward[s] : 0;
  return out;
}

// From a handful of shapes, whose tasks say it exactly.
std::vector<HeldFit> BatchSteps::held_fits(Recompute mode) {
  const std::int64_t context = data_.tokens(), round = this->round();
  const Schedule table = small_table(config_);
  const bool in_slices = planner_.texts == TextsIn::slices;  // a row to each slice
  std::vector<std::vector<LoadPoint>> live(at(config_.pipeline.table.actors)), kept(live), sent(live), layer(live);
  std::vector<double> again, layers_again(live.size());
  for (const auto& [samples, share] : {std::pair{1, 8}, {1, 4}, {2, 8}, {3, 16}, {1, 2}}) {
    if (in_slices && samples > 1) continue;
    const std::int64_t length = std::min(context, std::max(round, context / share / round * round));
    BatchLoad load = padded_load({samples, length, reads_pairs_ ? std::max(round, length / share) : 0});
    load.shape.recompute = mode;
    if (planner_.texts == TextsIn::groups) load.shape.degree = 1;
    again = computed_again(load.shape);
    const std::vector<StageBytes> whole = stage_bytes(programs_.class_of(load.shape, table)[0]);
    const std::vector<StageBytes> held = in_slices ? first_slice_bytes(load) : whole;
    if (layers_ > 0) {
      const std::vector<StageBytes> less = first_slice_bytes(load, layers_);
      for (std::size_t s = 0; s < held.size(); ++s) layer[s].push_back({load, (held[s].live - less[s].live) / layers_});
      BatchShape shape = load.shape;
      shape.again.assign(held.size(), layers_);
      layers_again = computed_again(shape);
    }
    for (std::size_t s = 0; s < held.size(); ++s) {
      live[s].push_back({load, held[s].live});
      kept[s].push_back({load, held[s].kept});
      sent[s].push_back({load, whole[s].sent});
    }
  }
  std::vector<HeldFit> out;
  for (std::size_t s = 0; s < live.size(); ++s)
    out.push_back({fit_loads(live[s]), fit_loads(kept[s]), fit_loads(sent[s]), again[s], fit_loads(layer[s]),
                   layers_again[s] / std::max(layers_, 1)});
  return out;
}

// The longest first where a team has several members: those of a team follow on each other.
std::vector<std::int64_t> BatchSteps::in_teams(std::vector<std::int64_t> samples) const {
  const std::int64_t members = devices_of_actor(config_);
  if (std::ssize(samples) % members != 0)
    throw Error(concat("a batch of ", samples.size(), " samples cannot be shared by the ", members, " devices of an actor"), {},
                "make train.batch a multiple of them");
  if (members > 1) std::ranges::stable_sort(samples, [&](std::int64_t a, std::int64_t b) { return data_.length(a) > data_.length(b); });
  return samples;
}

PlannedBatch BatchSteps::plan(const std::vector<std::int64_t>& samples, double limit) const {
  const Config::Batch& batch = config_.batch;
  if (limit <= 0)
    throw Error(concat("batch.memory_limit = ", bytes_text(batch.memory_limit), " leaves no room for what lives on a stage"),
                {concat("what a program takes beside is ", bytes_text(batch.memory_limit - limit), " on a device")}, "raise the limit");
  std::vector<SampleLengths> lengths;  // by team, the longest input and the longest target
  const std::size_t members = at(devices_of_actor(config_));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SampleLengths sample = lengths_of(samples[i]);
    if (i % members == 0) lengths.emplace_back();
    lengths.back() = {std::max(lengths.back().input, sample.input), std::max(lengths.back().target, sample.target)};
  }
  SearchedBatchProblem problem{.samples = is_ragged() ? std::move(lengths) : padded(std::move(lengths), reads_pairs_, round()),
                               .order = {},
                               .ragged = is_ragged(),
                               .decoder = reads_pairs_,
                               .round = round(),
                               .actors = config_.pipeline.table.actors,
                               .costs = costs_,
                               .network = network_,
                               .limit = limit,
                               .split = config_.pipeline.table.split_backward,
                               .recompute = plans_recomputation(config_),
                               .layers = layers_,
                               .modes = modes(),
                               .candidates = batch.candidates,
                               .seed = static_cast<std::uint64_t>(config_.train.seed)};
  for (SampleLengths& sample : problem.samples) sample = {std::min(sample.input, data_.tokens()), std::min(sample.target, data_.tokens())};
  problem.order = longest_first(problem.samples);
  return planner_.plan({.batch = std::move(problem),
                        .table = prepared_.schedule,
                        .context = data_.tokens(),
                        .slices = static_cast<int>(batch.slices),
                        .groups = groups_});
}

BatchStep BatchSteps::lowered(const std::vector<std::int64_t>& samples, PlannedBatch plan) {
  BatchStep out;
  const std::size_t members = at(devices_of_actor(config_));
  for (std::size_t m = 0; m < plan.loads.size(); ++m) {
    out.shapes.push_back(plan.loads[m].shape);
    for (std::size_t member = 0; member < members; ++member) {
      if (is_ragged()) out.begins.push_back(std::ssize(out.samples));
      bool turned = false;  // so that no member gets the longest of every team
      for (const std::size_t team : plan.samples[m]) {
        out.samples.push_back(samples[team * members + (turned ? members - 1 - member : member)]);
        turned = !turned;
      }
    }
  }
  out.table = plan.schedule;
  set_program(programs_, out);
  if (beyond_ >= 0) out.predicted = time_batch(plan, costs_, network_).makespan + beyond_;
  out.costs = table_costs(plan.loads, costs_);
  out.network = network_;
  out.plan = std::move(plan);
  return out;
}

BatchStep BatchSteps::step(const std::vector<std::int64_t>& given) {
  const std::vector<std::int64_t> samples = in_teams(given);
  constexpr int kAttempts = 4;
  const double most = config_.batch.memory_limit > 0 ? config_.batch.memory_limit : kInfinity;
  double limit = limit_, bytes = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    BatchStep out = lowered(samples, plan(samples, limit));
    bytes = most_bytes(*out.program);
    if (bytes <= most) return out;
    limit = std::min(limit, out.plan.peak) - (bytes - most);  // what programs plan beside what was counted
  }
  fail_above_limit(config_, samples.size(), bytes);
}

}  // namespace penstock
