// SPDX-License-Identifier: Apache-2.0
// Tables of which a step moves only the rows that its samples name (train.lazy_rows).
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/text.h"
#include "config/compile.h"
#include "models/registry.h"
#include "penstock/session.h"
#include "support/seed.h"

namespace penstock {
namespace {

struct Steps {
  Graph whole, lazy;
  Program whole_program, lazy_program;
};

Steps steps_of(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"model.name=dlrm", "branches=2", "layers=2", "width=4", "embedding=3", "bag=2", "post=1", "batch=4",
                              "microbatches=2", "dtype=f64", "clip=0.1", "learning_rate=0.01", "warmup=0"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  Config config = load_config("", overrides, builtin_models());
  Steps out;
  for (const bool lazy : {false, true}) {
    config.train.lazy_rows = lazy;
    const Prepared prepared = prepare(config, builtin_models());
    (lazy ? out.lazy : out.whole) = training_graph(config, prepared);
    (lazy ? out.lazy_program : out.whole_program) = compile_training(config, prepared);
  }
  return out;
}

// Draws all that a step reads: of each table 8 keys of `rows`.
HostTensors drawn_data(const Graph& step, int rows, std::mt19937& random) {
  HostTensors out;
  for (std::size_t i = step.state; i < step.inputs.size(); ++i) {
    const auto& [type, name] = step.values[step.inputs[i]];
    std::vector<std::int64_t> whole(type.elements());
    for (std::size_t e = 0; e < whole.size(); ++e)
      whole[e] = name == "rows" ? static_cast<std::int64_t>(e) : static_cast<std::int64_t>(random() % static_cast<unsigned>(rows));
    std::vector<double> real;
    for (std::size_t e = 0; e < whole.size(); ++e) real.push_back(static_cast<double>(random() % 1000) / 1000);
    out[name] = type.dtype == DType::i64   ? host_tensor<std::int64_t>(type.shape, whole)
                : type.dtype == DType::f64 ? host_tensor<double>(type.shape, real)
                                           : host_tensor<float>(type.shape, {real.begin(), real.end()});
  }
  return out;
}

// The states behind a step from these. A session has one program, as those of a table are in shares by whole updates alone.
HostTensors stepped(Session& session, const Graph& step, const HostTensors& begin, const HostTensors& data) {
  session.set_state(begin);
  session.step("train", data);
  HostTensors out;
  for (int i = 0; i < step.state; ++i) {
    const std::string& name = step.values[step.inputs[i]].name;
    out[name] = session.state(name);
  }
  return out;
}

HostTensors begin_of(const Graph& step, std::mt19937& random) {
  HostTensors out;
  for (int i = 0; i < step.state; ++i) {
    const auto& [type, name] = step.values[step.inputs[i]];
    std::vector<double> real(type.elements());
    if (name.find(':') == name.npos)
      for (double& x : real) x = static_cast<double>(random() % 1000) / 500 - 1;
    out[name] = type.dtype == DType::i64 ? host_tensor<std::int64_t>(type.shape, {0}) : host_tensor<double>(type.shape, real);
  }
  return out;
}

// The table of a state's name, "emb_l.1.weight" or "first:emb_l.1.weight": its number; -1: it is of no table, or no row has a part of it.
int table_of(const std::string& name, const TensorType& type) {
  const std::size_t at = name.find("emb_l.");
  return at == name.npos || type.shape.size() != 2 ? -1 : name[at + 6] - '0';
}

// A lazy step is the whole one in all but the rows that no sample names, which it leaves to the bit.
void expect_named_rows_move(const Steps& steps, int rows, int devices) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  Session of_whole(devices), of_lazy(devices);
  of_whole.load("train", steps.whole_program);
  of_lazy.load("train", steps.lazy_program);
  HostTensors now = begin_of(steps.whole, random);
  std::size_t left = 0;
  for (int step = 0; step < 4; ++step) {
    const HostTensors data = drawn_data(steps.whole, rows, random);
    const HostTensors whole = stepped(of_whole, steps.whole, now, data), lazy = stepped(of_lazy, steps.lazy, now, data);
    for (const auto& [name, tensor] : lazy) {
      if (tensor.type.dtype != DType::f64) continue;
      const std::vector<double> found = values<double>(tensor), moved = values<double>(whole.at(name)),
                                before = values<double>(now.at(name));
      const int table = table_of(name, tensor.type);
      std::set<std::int64_t> named;
      if (table >= 0)
        for (const std::int64_t key : values<std::int64_t>(data.at(concat("sparse.", table)))) named.insert(key);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool moves = table < 0 || named.contains(static_cast<std::int64_t>(i) / tensor.type.shape[1]);
        left += !moves && moved[i] != before[i];
        if (moves)
          ASSERT_NEAR(found[i], moved[i], 1e-12) << name << "[" << i << "], step " << step;
        else
          ASSERT_EQ(found[i], before[i]) << name << "[" << i << "], step " << step;
      }
    }
    now = lazy;
  }
  EXPECT_GT(left, 0u) << "whole steps move other rows";
}

TEST(LazyRows, MoveAsInAWholeStepWhereTheyAreNamed) {
  for (const char* optimiser : {"adamw", "adam", "nadam", "sgd", "nesterov", "lion"})
    for (const int rows : {7, 40}) {
      SCOPED_TRACE(concat(optimiser, ", ", rows, " rows"));
      expect_named_rows_move(steps_of({concat("optimiser=", optimiser), concat("rows=", rows), "schedule=1f1b", "actors=2"}), rows, 2);
    }
}

TEST(LazyRows, MoveAlikeOnSeveralDevices) {
  const std::vector<std::vector<std::string>> ways = {
      {"schedule=zb-h1", "update=validated"},
      {"schedule=zb-h1", "update=stage", "clip=0"},
      {"schedule=1f1b", "pipeline.data=2"},
      {"schedule=1f1b", "pipeline.data=2", "zero=1"},
      {"schedule=zb-h1", "pipeline.data=2", "zero=1", "update=validated"},
      {"schedule=1f1b", "pipeline.data=2", "zero=2"},
      {"schedule=1f1b", "pipeline.data=2", "zero=3"},
  };
  for (std::vector<std::string> way : ways) {
    SCOPED_TRACE(join(way, ", "));
    const int devices = join(way, " ").find("=2") == std::string::npos ? 2 : 4;
    way.insert(way.begin(), {"rows=40", "actors=2"});
    expect_named_rows_move(steps_of(way), 40, devices);
  }
}

}  // namespace
}  // namespace penstock
