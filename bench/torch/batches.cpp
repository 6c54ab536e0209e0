// SPDX-License-Identifier: Apache-2.0
// Shows what lies between a batch of samples and its run: what a core spends on the plan, on each pass of lowering, and on binding, for a
// GPT of 4 layers. Lengths are drawn log-normal, as documents have them (median 384 tokens, sigma 1.26), and cut at the context.
//
//   batches [actors] [samples] [batches] [KEY=VALUE of the configuration ...]
//
// How many micro-batches there are is the planner's choice: a larger batch.fixed makes fewer. Times are CPU time of the thread in
// milliseconds, medians over batches without a new class; those that have some say what a new class takes beside that.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "base/text.h"
#include "config/compile.h"
#include "driver/batch_steps.h"
#include "driver/messages.h"
#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "torch/executor.h"

namespace penstock {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * (static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
}

class DrawnLengths : public Dataset {
 public:
  DrawnLengths(std::int64_t context, std::size_t count) : context_(context) {
    std::mt19937_64 random(1);
    std::lognormal_distribution<double> length(std::log(384.0), 1.26);
    for (std::size_t i = 0; i < count; ++i) lengths_.push_back(std::clamp<std::int64_t>(std::llround(length(random)), 1, context));
  }
  std::vector<std::int64_t> training_samples(std::int64_t) const override { return {}; }
  std::vector<std::int64_t> validation_samples(std::int64_t) const override { return {}; }
  std::int64_t tokens() const override { return context_; }
  std::string summary() const override { return "drawn lengths"; }
  std::int64_t length(std::int64_t sample) const override { return lengths_.at(static_cast<std::size_t>(sample)); }
  void fill(const Port&, const StepInput&, std::int64_t, std::int64_t, std::span<std::byte>) const override {}

 private:
  std::int64_t context_;
  std::vector<std::int64_t> lengths_;
};

// The times that each part took, batch after batch.
struct Times {
  std::vector<std::string> order{};
  std::map<std::string, std::vector<double>> of{};

  void add(const std::string& part, double milliseconds) {
    if (!of.contains(part)) order.push_back(part);
    of[part].push_back(milliseconds);
  }
  template <class Do>
  auto measure(const std::string& part, const Do& act) {
    const double begin = now();
    auto out = act();
    add(part, now() - begin);
    return out;
  }
};

double median(std::vector<double> list) {
  if (list.empty()) return 0;
  std::ranges::nth_element(list, list.begin() + std::ssize(list) / 2);
  return list[list.size() / 2];
}

// From a batch to its run.
double to_run(const Times& times) {
  double sum = 0;
  for (const char* part : {"plan and lower", "hash", "verify again", "bind"})
    if (const auto found = times.of.find(part); found != times.of.end()) sum += median(found->second);
  return sum;
}

std::size_t instructions_in(const Program& program) {
  std::size_t out = 0;
  for (const DeviceProgram& device : program.devices) out += device.instructions.size();
  return out;
}

// The times of the messages between processes.
struct Ends {
  SentTasks sent, taken;
};

// One batch from its samples to bound kernels. What stands behind "aside" was measured by itself, on the same program.
// Returns how many of its classes were new.
std::int64_t take(BatchSteps& steps, const std::vector<std::int64_t>& samples, std::vector<std::unique_ptr<Executor>>& executors,
                  Ends& ends, Times& times) {
  const BatchStep batch = times.measure("plan and lower", [&] { return steps.step(samples); });
  times.measure("hash", [&] { return hash(*batch.program); });
  times.measure("bind", [&] {
    for (std::size_t d = 0; d < executors.size(); ++d) executors[d]->load(batch.program, static_cast<int>(d));
    return 0;
  });
  times.measure("verify again", [&] {
    verify(*batch.program);
    return 0;
  });
  Program copy = times.measure("aside: copy", [&] { return *batch.program; });
  times.measure("aside: memory plan", [&] {
    plan_memory(copy);
    return 0;
  });
  times.add("micro-batches", batch.program->microbatches);
  times.add("tasks", static_cast<double>(batch.program->tasks.size()));
  times.add("instructions", static_cast<double>(instructions_in(*batch.program)));
  Command command;
  command.kind = Command::Kind::load;
  command.program = hash(*batch.program);
  command.body = batch.program;
  const std::vector<std::byte> bytes = times.measure("processes: encode", [&] { return encode(command, ends.sent); });
  times.measure("processes: decode", [&] { return decode_command(bytes, ends.taken).program; });
  return batch.new_classes;
}

void run(int count, char** arguments) {
  const auto number = [&](int i, int otherwise) { return i < count ? std::atoi(arguments[i]) : otherwise; };
  const int actors = number(1, 2), samples = number(2, 64), batches = number(3, 40);
  std::vector<Override> overrides;
  for (int i = 4; i < count; ++i) overrides.push_back(parse_override(arguments[i]));
  const Config config =
      parse_config(concat("[model]\nname = \"gpt\"\nlayers = 4\nwidth = 128\nheads = 4\ncontext = 2048\n[train]\nbatch = ", samples,
                          "\n[batch]\nplanner = \"dynapipe\"\n[pipeline]\nmicrobatches = ", samples, "\nactors = ", actors, "\n"),
                   "benchmark", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  const DrawnLengths data(2048, static_cast<std::size_t>(samples) * static_cast<std::size_t>(2 * batches));
  BatchSteps steps(config, prepared, data);
  std::vector<std::unique_ptr<Executor>> executors;
  for (int d = 0; d < actors; ++d) executors.push_back(make_torch_executor(1));
  Times warm;
  Ends ends;
  std::vector<std::pair<std::int64_t, double>> fresh;  // new classes of a batch, and what it took
  std::vector<std::int64_t> batch(static_cast<std::size_t>(samples));
  for (int b = 0; b < 2 * batches; ++b) {
    for (int i = 0; i < samples; ++i) batch[i] = static_cast<std::int64_t>(b) * samples + i;
    Times once;
    const std::int64_t new_classes = take(steps, batch, executors, ends, once);
    if (new_classes > 0) fresh.emplace_back(new_classes, to_run(once));
    if (b < batches || new_classes > 0) continue;
    for (const std::string& part : once.order) warm.add(part, once.of[part][0]);
  }
  std::vector<double> of_new_class;
  for (const auto& [classes, milliseconds] : fresh) of_new_class.push_back((milliseconds - to_run(warm)) / static_cast<double>(classes));
  warm.add("a new class", median(of_new_class));
  for (const std::string& part : warm.order) std::printf("%-24s %10.3f\n", part.c_str(), median(warm.of[part]));
}

}  // namespace
}  // namespace penstock

int main(int count, char** arguments) {
  try {
    penstock::run(count, arguments);
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
