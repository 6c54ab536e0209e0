// SPDX-License-Identifier: Apache-2.0
// CPU seconds of each phase of compiling a GPT at several numbers of layers, and the power of the layers with which each grows:
//
//   build/bench/compile_bench                    # on two actors
//   build/bench/compile_bench pipe=2,data=2 zero=1
//   build/bench/compile_bench pipe=2,tensor=2
//   build/bench/compile_bench layers=75,150 rounds=1
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/compile.h"
#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct Sizes {
  std::vector<int> layers = {150, 300, 600, 1200};
  int rounds = 3;  // of each the least counts
};

// Of the thread's CPU: what else the machine does does not count.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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
  Lowering lowering = phases.time("trace, axes, stages, cut", [&] { return training_lowering(config, prepared); });
  double begin = cpu_seconds();
  run_passes(lowering, {}, [&](const LowerPass& pass, const Lowering&, double) {
    phases.note("pass " + std::string(pass.name), cpu_seconds() - begin);
    begin = cpu_seconds();
  });
  phases.time("memory plan, verification", [&] { return program_of(lowering[0].input, std::move(lowering[0].steps[0])); });
  const Program program = phases.time("all", [&] { return compile_training(config, prepared); });
  phases.time("text", [&] { return print(program); });
}

// The slope of the line through log(seconds) over log(layers), by least squares.
double exponent(const std::vector<int>& layers, const std::vector<double>& seconds) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(seconds.size());
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double lx = std::log(layers[i]), ly = std::log(std::max(seconds[i], 1e-9));
    x += lx, y += ly, xx += lx * lx, xy += lx * ly;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

// Takes `layers=` and `rounds=` out of the settings.
Sizes take_sizes(std::vector<std::string>& settings) {
  Sizes sizes;
  std::erase_if(settings, [&](const std::string& setting) {
    if (setting.starts_with("rounds=")) {
      sizes.rounds = std::stoi(setting.substr(7));
    } else if (setting.starts_with("layers=")) {
      sizes.layers.clear();
      for (const std::string& layers : split(setting.substr(7), ',')) sizes.layers.push_back(std::stoi(layers));
    } else {
      return false;
    }
    return true;
  });
  return sizes;
}

void run(std::vector<std::string> settings) {
  const ModelRegistry& models = builtin_models();
  const auto [sizes, rounds] = take_sizes(settings);
  std::vector<Phases> found(sizes.size());
  for (int round = 0; round < rounds; ++round)
    for (std::size_t s = 0; s < sizes.size(); ++s) compile_once(config_of(sizes[s], settings, models), models, found[s]);
  std::printf("%-36s", "seconds at layers");
  for (const int layers : sizes) std::printf("%10d", layers);
  std::printf("  exponent\n");
  for (std::size_t p = 0; p < found[0].least().size(); ++p) {
    std::vector<double> seconds;
    for (const Phases& phases : found) seconds.push_back(phases.least()[p].second);
    std::printf("%-36s", found[0].least()[p].first.c_str());
    for (const double one : seconds) std::printf("%10.4f", one);
    std::printf("%10.2f\n", exponent(sizes, seconds));
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
