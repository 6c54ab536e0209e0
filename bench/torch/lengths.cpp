// SPDX-License-Identifier: Apache-2.0
// Ways to give a pipeline of two actors batches of samples that differ in length: padded, packed, cut or ragged, in turn on the same
// batches.
//
//   lengths gpt FILE.jsonl [ROUNDS [SKIPPED]]   lines with "text"
//   lengths t5 FILE.jsonl [ROUNDS [SKIPPED]]    lines with "input" and "target"
//
// SKIPPED ways, the slowest first, are left out: padding to the context, then packing with attention over whole rows.
// Each way is taken with a stage on each actor (1F1B), and with two (interleaved), where each actor of T5 has a layer of the encoder and
// one of the decoder. Prints a JSON line for each step: the way, the table, the batch's number, real tokens, tokens with padding, seconds,
// and the processors' seconds, which other work on the machine hardly changes.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>

#include "base/text.h"
#include "batch/balance.h"
#include "batch/plan_batch.h"
#include "config/shape_programs.h"
#include "data/dataset.h"
#include "data/row_ports.h"
#include "driver/thread_cluster.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "torch/executor.h"

namespace penstock {
namespace {

constexpr int kActors = 2;
constexpr std::int64_t kContext = 2048, kBatch = 64;

// The micro-batches of a batch: the samples of each row and the rows' shape.
struct MicroBatch {
  std::vector<std::vector<std::size_t>> rows;  // of places in the batch; of a packed or ragged micro-batch one
  BatchShape shape;
};
using Cut = std::vector<MicroBatch>;

struct Way {
  std::string name;
  std::function<Cut(const std::vector<SampleLengths>&)> cut;
  bool whole = false;  // whether attention goes over whole rows, whatever samples they hold
};

// The data set, but what stands in a row of several samples is told to be one sample where `whole` is set.
class Rows : public DataSource {
 public:
  explicit Rows(std::shared_ptr<const Dataset> data) : data_(std::move(data)) {}
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    data_->fill(port, input, first_row, rows, out);
    if (!whole) return;
    const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
    std::int64_t inputs = 0;
    for (const std::int64_t sample : samples_in_row(input, first_row)) inputs += data_->length(sample) - data_->target_length(sample);
    const RowPlace place{0, std::ssize(values) / 2, 0, inputs};
    fill_row_port(data_name(port), {&place, 1}, values);
  }

  std::atomic<bool> whole = false;

 private:
  std::shared_ptr<const Dataset> data_;
};

std::int64_t up(std::int64_t length, std::int64_t to) {
  return std::max<std::int64_t>((length + to - 1) / to, 1) * to;
}

// Tokens of some samples one after the other.
SampleLengths sum_of(const std::vector<SampleLengths>& lengths, const std::vector<std::size_t>& row) {
  SampleLengths sum;
  for (const std::size_t i : row) sum = {sum.input + lengths[i].input, sum.target + lengths[i].target};
  return sum;
}

MicroBatch one_row(const std::vector<SampleLengths>& lengths, std::vector<std::size_t> row, std::int64_t samples, std::int64_t to) {
  const SampleLengths sum = sum_of(lengths, row);
  const bool pairs = std::ranges::any_of(lengths, [](const SampleLengths& s) { return s.target > 0; });
  return {{std::move(row)}, {samples, up(sum.input, to), pairs ? up(sum.target, to) : 0}};
}

// Contiguous runs of `count` samples, each padded to its longest, or, with `context`, to the context.
Cut equal_counts(const std::vector<SampleLengths>& lengths, std::size_t count, bool context) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!context) order = longest_first(lengths);
  Cut out;
  for (std::size_t begin = 0; begin < order.size(); begin += count) {
    MicroBatch m{{}, {static_cast<std::int64_t>(count), 1, 0}};
    for (std::size_t at = begin; at < begin + count; ++at) {
      const SampleLengths& sample = lengths[order[at]];
      m.rows.push_back({order[at]});
      m.shape.input = std::max(m.shape.input, context ? kContext : up(sample.input, 8));
      if (sample.target > 0) m.shape.target = std::max(m.shape.target, context ? kContext : up(sample.target, 8));
    }
    out.push_back(std::move(m));
  }
  return out;
}

// First fit, the longest first, into rows that hold kContext tokens of inputs and of targets. `samples`: 1 for dense rows, 0 for ragged
// ones.
Cut packed(const std::vector<SampleLengths>& lengths, std::int64_t samples) {
  std::vector<std::vector<std::size_t>> rows;
  for (const std::size_t i : longest_first(lengths)) {
    const auto room = std::ranges::find_if(rows, [&](const std::vector<std::size_t>& row) {
      const SampleLengths sum = sum_of(lengths, row);
      return sum.input + lengths[i].input <= kContext && sum.target + lengths[i].target <= kContext;
    });
    room == rows.end() ? rows.push_back({i}) : room->push_back(i);
  }
  Cut out;
  for (std::vector<std::size_t>& row : rows) out.push_back(one_row(lengths, std::move(row), samples, 64));
  return out;
}

Cut ragged(const std::vector<SampleLengths>& lengths, std::size_t count) {
  std::vector<double> times;
  for (const auto& [e, d] : lengths) times.push_back(static_cast<double>(e + d) / 33 + static_cast<double>(e * e + d * d + e * d) / 5e4);
  Cut out;
  for (std::vector<std::size_t>& row : balance(times, count)) out.push_back(one_row(lengths, std::move(row), 0, 64));
  return out;
}

Cut dynapipe(const std::vector<SampleLengths>& lengths) {
  const bool pairs = std::ranges::any_of(lengths, [](const SampleLengths& s) { return s.target > 0; });
  BatchProblem problem;
  problem.samples = padded(lengths, pairs, 8);
  for (SampleLengths& sample : problem.samples) sample = {std::min(sample.input, kContext), std::min(sample.target, kContext)};
  problem.order = longest_first(problem.samples);
  problem.modes = {{"none", formula_costs({.fixed = 0.5, .linear = 33, .quadratic = 5e4})}};
  problem.cut.stages = kActors;
  const BatchPlan plan = plan_batch(problem);
  const BatchCut& cut = plan.fitted.cut;
  Cut out;
  for (const std::size_t m : plan.replicas.at(0).micro_batches) {
    const std::size_t end = m + 1 < cut.begins.size() ? cut.begins[m + 1] : lengths.size();
    out.push_back({{}, cut.shapes[m]});
    for (std::size_t at = cut.begins[m]; at < end; ++at) out.back().rows.push_back({problem.order[at]});
  }
  return out;
}

std::vector<Way> ways() {
  std::vector<Way> out = {{"pad to the context", [](const auto& lengths) { return equal_counts(lengths, 4, true); }},
                          {"packed, attention over whole rows", [](const auto& lengths) { return packed(lengths, 1); }, true},
                          {"packed, attention per document", [](const auto& lengths) { return packed(lengths, 0); }}};
  for (const std::size_t count : {2, 4, 8})
    out.push_back(
        {concat("sorted, equal counts of ", count), [count](const auto& lengths) { return equal_counts(lengths, count, false); }});
  out.push_back({"dynapipe", dynapipe});
  for (const std::size_t count : {4, 8, 16, 32})
    out.push_back({concat("ragged in ", count), [count](const auto& lengths) { return ragged(lengths, count); }});
  return out;
}

class Race {
 public:
  explicit Race(Config config)
      : config_(std::move(config)),
        prepared_(prepare(config_, builtin_models())),
        data_(make_dataset(config_, *prepared_.model)),
        rows_(std::make_shared<Rows>(data_)),
        cluster_(make_thread_cluster(kActors, torch_executor_factory(), rows_, {.spin = 0})),
        programs_(config_, prepared_) {}

  void run(const Way& way, std::int64_t batch) {
    StepInput input;
    input.step = batch + 1;
    const std::vector<std::int64_t> samples = data_->training_samples(batch * kBatch);
    std::vector<SampleLengths> lengths;
    std::int64_t tokens = 0, padded = 0;
    for (const std::int64_t sample : samples) {
      lengths.push_back({data_->length(sample) - data_->target_length(sample), data_->target_length(sample)});
      tokens += data_->length(sample);
    }
    std::vector<BatchShape> shapes;
    for (const MicroBatch& m : way.cut(lengths)) {
      shapes.push_back(m.shape);
      padded += std::max<std::int64_t>(m.shape.samples, 1) * (m.shape.input + m.shape.target);
      for (const std::vector<std::size_t>& row : m.rows) {
        input.begins.push_back(std::ssize(input.samples));
        for (const std::size_t i : row) input.samples.push_back(samples[i]);
      }
    }
    const int m = static_cast<int>(shapes.size());
    const auto& [schedule, chunks] = std::tie(config_.pipeline.schedule, config_.pipeline.table.chunks);
    const ScheduleOptions options{.actors = kActors, .microbatches = m, .chunks = static_cast<int>(chunks)};
    const Program program = programs_.program(shapes, make_schedule(schedule, options)).program;
    rows_->whole = way.whole;
    const std::uint64_t loaded = cluster_->load(program);
    if (!std::exchange(started_, true)) cluster_->set_state({.seed = 0, .parameters = prepared_.parameters, .path = {}});
    const std::clock_t begin = std::clock();
    const double seconds = cluster_->step(loaded, input).seconds;
    const double cpu = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    cluster_->unload(loaded);
    std::printf(
        "{\"way\": \"%s\", \"schedule\": \"%s\", \"batch\": %d, \"tokens\": %d, \"padded\": %d, \"microbatches\": %d, \"seconds\": %.6f, "
        "\"cpu\": %.6f}\n",
        way.name.c_str(), schedule.c_str(), static_cast<int>(batch), static_cast<int>(tokens), static_cast<int>(padded), m, seconds, cpu);
    std::fflush(stdout);
  }

 private:
  const Config config_;
  const Prepared prepared_;
  std::shared_ptr<const Dataset> data_;
  std::shared_ptr<Rows> rows_;
  std::unique_ptr<Cluster> cluster_;
  ShapePrograms programs_;
  bool started_ = false;
};

void race(const std::string& model, const std::string& file, std::int64_t rounds, std::int64_t skipped) {
  const bool pairs = model == "t5";
  const auto config_of = [&](std::string_view schedule, int chunks) {
    return parse_config(
        concat("[model]\nname = \"", model, "\"\nlayers = ", pairs ? 2 : 4, "\nwidth = 128\nheads = 4\ncontext = ", kContext, "\n[data]\n",
               pairs ? "pairs" : "documents", " = [\"", file, "\"]\nvalidation = 0\n[train]\nbatch = ", kBatch,
               "\n[pipeline]\nactors = ", kActors, "\nmicrobatches = 16\nschedule = \"", schedule, "\"\nchunks = ", chunks, "\n"),
        "lengths", {}, builtin_models());
  };
  Race in_two(config_of("1f1b", 1)), in_four(config_of("interleaved-1f1b", 2));
  std::vector<Way> all = ways();
  all.erase(all.begin(), all.begin() + skipped);
  for (std::int64_t batch = 0; batch < rounds; ++batch)
    for (std::size_t i = 0; i < all.size(); ++i)
      for (Race* race : {&in_two, &in_four}) race->run(all[(i + static_cast<std::size_t>(batch)) % all.size()], batch);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "lengths gpt|t5 FILE.jsonl [ROUNDS [SKIPPED]]\n");
    return 2;
  }
  try {
    penstock::race(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 8, argc > 4 ? std::atoll(argv[4]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
