// CPU seconds of each phase of compiling a GPT at several numbers of layers, and the power of the layers with which each grows:
//
//   build/bench/compile_bench                    # on two actors
//   build/bench/compile_bench pipe=2,data=2 zero=1
//   build/bench/compile_bench pipe=2,tensor=2
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config/compile.h"
#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr int kLayers[] = {150, 300, 600, 1200};
constexpr int kRounds = 3;  // of each the least counts

// Of the process's CPU: what else the machine does does not count.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The least seconds of each phase, in the order in which they run.
class Phases {
 public:
  template <class Work>
  auto time(const std::string& phase, Work&& work) {
    const double begin = cpu_seconds();
    auto out = work();
    note(phase, cpu_seconds() - begin);
    return out;
  }
  void note(const std::string& phase, double seconds) {
    const auto found = std::ranges::find(least_, phase, &std::pair<std::string, double>::first);
    if (found == least_.end())
      least_.emplace_back(phase, seconds);
    else
      found->second = std::min(found->second, seconds);
  }
  const std::vector<std::pair<std::string, double>>& least() const { return least_; }

 private:
  std::vector<std::pair<std::string, double>> least_;
};

Config config_of(int layers, const std::vector<std::string>& settings, const ModelRegistry& models) {
  std::vector<Override> overrides = {parse_override("layers=" + std::to_string(layers)), parse_override("microbatches=4")};
  for (const std::string& setting : settings) {
    if (!setting.starts_with("pipe="))
      overrides.push_back(parse_override(setting));
    else
      for (const Override& axis : parse_mesh(setting)) overrides.push_back(axis);
  }
  return load_config("", overrides, models);
}

void compile_once(const Config& config, const ModelRegistry& models, Phases& phases) {
  const Prepared prepared = phases.time("model", [&] { return prepare(config, models); });
  phases.time("trace", [&] { return training_graph(config, prepared); });
  std::vector<LowerInput> inputs = phases.time("trace, axes, stages, cut", [&] { return training_inputs(config, prepared); });
  if (inputs.size() == 1) {
    Draft draft;
    double begin = cpu_seconds();
    run_passes(inputs[0], draft, {}, [&](const LowerPass& pass, const Draft&, double) {
      phases.note("pass " + std::string(pass.name), cpu_seconds() - begin);
      begin = cpu_seconds();
    });
    phases.time("memory plan, verification", [&] { return program_of(inputs[0], std::move(draft)); });
  } else {
    phases.time("passes, memory plan, verification", [&] { return lower(inputs); });
  }
  const Program program = phases.time("all", [&] { return compile_training(config, prepared); });
  phases.time("text", [&] { return print(program); });
}

// The slope of the line through log(seconds) over log(layers), by least squares.
double exponent(const std::vector<double>& seconds) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(seconds.size());
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double lx = std::log(kLayers[i]), ly = std::log(std::max(seconds[i], 1e-9));
    x += lx, y += ly, xx += lx * lx, xy += lx * ly;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

void run(const std::vector<std::string>& settings) {
  const ModelRegistry& models = builtin_models();
  std::vector<Phases> found;
  for (const int layers : kLayers) {
    Phases& phases = found.emplace_back();
    for (int round = 0; round < kRounds; ++round) compile_once(config_of(layers, settings, models), models, phases);
  }
  std::printf("%-36s", "seconds at layers");
  for (const int layers : kLayers) std::printf("%10d", layers);
  std::printf("  exponent\n");
  for (std::size_t p = 0; p < found[0].least().size(); ++p) {
    std::vector<double> seconds;
    for (const Phases& phases : found) seconds.push_back(phases.least()[p].second);
    std::printf("%-36s", found[0].least()[p].first.c_str());
    for (const double one : seconds) std::printf("%10.4f", one);
    std::printf("%10.2f\n", exponent(seconds));
  }
}

}  // namespace
}  // namespace penstock

int main(int count, char** arguments) {
  try {
    penstock::run({arguments + 1, arguments + count});
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
