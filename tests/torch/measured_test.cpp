// SPDX-License-Identifier: Apache-2.0
// Recorded durations through the simulator give the recorded step: what is simulated is what ran.
#include "profile/measured.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "driver/check.h"
#include "driver/training.h"
#include "models/registry.h"
#include "support/random_schedule.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

Config small(const std::string& schedule, const std::string& chunks, const std::string& mesh) {
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const std::string& setting : {"schedule=" + schedule, "chunks=" + chunks, std::string("layers=4"), std::string("width=64"),
                                     std::string("context=64"), std::string("batch=16")})
    overrides.push_back(parse_override(setting));
  return parse_config("", "test", overrides, builtin_models());
}

struct Case {
  std::string schedule, chunks = "1";
  bool offloads = false;
  std::string mesh = "pipe=2", name = "";
};

class MeasuredSteps : public testing::TestWithParam<Case> {};

TEST_P(MeasuredSteps, ReplayGivesTheRecordedStepTime) {
  const Config config = small(GetParam().schedule, GetParam().chunks, GetParam().mesh);
  Prepared prepared = prepare(config, builtin_models());
  test::Random random(1);
  if (GetParam().offloads) prepared.schedule = test::with_host_copies(random, prepared.schedule, 1);
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(program.devices.size(), data);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  // A device that loses its core between two instructions leaves no span: of several steps, the middle one. Where other programs take cores
  // from most steps of a round, there is another.
  double middle = 1;
  StepInput input;
  for (int round = 0; round < 10 && std::abs(middle) > 0.01; ++round) {
    std::vector<double> errors;
    for (int step = 1; step <= 16; ++step) {
      ++input.step;
      const StepResult result = cluster->step(key, input, true);
      if (step <= 3) continue;
      const Recording recording = recording_of(program, result);
      errors.push_back(recording.replay(program).makespan / recording.seconds - 1);
    }
    std::sort(errors.begin(), errors.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    middle = errors[errors.size() / 2];
  }
  EXPECT_LE(std::abs(middle), 0.01);
  RecordProperty("relative_error", number(middle));
}

INSTANTIATE_TEST_SUITE_P(Schedules, MeasuredSteps,
                         testing::Values(Case{"sequential"}, Case{"gpipe"}, Case{"1f1b"}, Case{"interleaved-1f1b", "2"}, Case{"zb-h1"},
                                         Case{"gpipe", "1", true}, Case{"1f1b", "1", false, "pipe=2,tensor=2", "_tensors"}),
                         [](const auto& test) {
                           return join(split(test.param.schedule, '-'), "_") + (test.param.offloads ? "_offloading" : "") + test.param.name;
                         });

}  // namespace
}  // namespace penstock
