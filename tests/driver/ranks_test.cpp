// SPDX-License-Identifier: Apache-2.0
#include "driver/ranks.h"

#include <gtest/gtest.h>

#include <map>

#include "support/errors.h"

namespace penstock {
namespace {

std::optional<Ranks> ranks(const std::map<std::string, std::string>& variables) {
  return ranks_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string failure(const std::map<std::string, std::string>& variables) {
  return test::message_of([&] { ranks(variables); });
}

TEST(Ranks, NoneWithoutALauncher) {
  EXPECT_FALSE(ranks({}));
  EXPECT_FALSE(ranks({{"SLURM_NTASKS", "4"}}));
}

TEST(Ranks, Torchrun) {
  const auto found = ranks({{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "host"},
                            {"MASTER_PORT", "1234"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->size, 4);
  EXPECT_EQ(found->address, "host");
  EXPECT_EQ(found->port, 1234);
  EXPECT_TRUE(found->store_runs);
  EXPECT_EQ(found->attempt, "2");
}

TEST(Ranks, MpirunAndSlurm) {
  auto found = ranks({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->address, "127.0.0.1");
  EXPECT_FALSE(found->store_runs);
  found = ranks({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}, {"MASTER_ADDR", "n0"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->address, "n0");
}

TEST(Ranks, Errors) {
  EXPECT_EQ(failure({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "environment variable RANK is \"x\"\n  expected a number from 0 to 1");
  EXPECT_EQ(failure({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "environment variable RANK is \"2\"\n  expected a number from 0 to 1");
  EXPECT_EQ(
      failure({{"RANK", "0"}}),
      "environment variable RANK is set, WORLD_SIZE is not\n  hint: start the processes with penstock launch, torchrun, mpirun or srun");
  EXPECT_EQ(failure({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "0"}}),
            "environment variable MASTER_PORT is \"0\"\n  expected a number from 1 to 65535");
  EXPECT_EQ(failure({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}}),
            "the processes run on several machines and MASTER_ADDR is not set\n  hint: set MASTER_ADDR to the host of rank 0");
}

TEST(Ranks, HelloNamesTheDifference) {
  const Hello first{"abc", "2.13.0", 2, "command: train\ndata: 1f\n[model]\nwidth = 64\n[data]\n"};
  EXPECT_EQ(print(parse_hello(print(first))), print(first));
  EXPECT_EQ(test::message_of([&] { check_hello(first, first, 1); }), "no error");
  EXPECT_EQ(
      test::message_of([&] { check_hello(first, {"abd", "2.13.0", 2, first.run}, 1); }),
      "rank 1 has another build of penstock than rank 0\n  rank 0: abc\n  rank 1: abd\n  hint: install the same build on every machine");
  EXPECT_EQ(test::message_of([&] { check_hello(first, {"abc", "2.13.0", 3, first.run}, 1); }),
            "rank 1 has another world size than rank 0\n  rank 0: 2\n  rank 1: 3\n  hint: start all processes with one launcher");
  EXPECT_EQ(
      test::message_of([&] { check_hello(first, {"abc", "2.12.0", 2, first.run}, 1); }),
      "rank 1 has another libtorch than rank 0\n  rank 0: 2.13.0\n  rank 1: 2.12.0\n  hint: install the same libtorch on every machine");
  const auto differs = [&](const std::string& mine, const std::string& theirs) {
    Hello other = first;
    other.run.replace(other.run.find(mine), mine.size(), theirs);
    EXPECT_EQ(print(parse_hello(print(other))), print(other));
    return test::message_of([&] { check_hello(first, other, 1); });
  };
  const std::string hint = "\n  hint: start all processes with the same command, on the same data";
  EXPECT_EQ(differs("train", "check"),
            "rank 1 has another command, data or configuration than rank 0\n  rank 0: command: train\n  rank 1: command: check" + hint);
  EXPECT_EQ(differs("data: 1f", "data: 2f"),
            "rank 1 has another command, data or configuration than rank 0\n  rank 0: data: 1f\n  rank 1: data: 2f" + hint);
  EXPECT_EQ(
      differs("64", "128"),
      "rank 1 has another command, data or configuration than rank 0\n  rank 0: [model] width = 64\n  rank 1: [model] width = 128" + hint);
}

TEST(Ranks, CallsThatDiffer) {
  const std::string call = "step\nx is f32[2] with contents 1\ny is f32[2] with contents 2";
  check_call(call, call, 1);
  EXPECT_EQ(test::message_of([&] { check_call(call, "state\nx is f32[2] with contents 1", 3); }),
            "rank 3 makes another call than rank 0\n  rank 0: step\n  rank 3: state\n"
            "  hint: all ranks make the same calls in the same order");
  EXPECT_EQ(test::message_of([&] { check_call(call, "step\nx is f32[2] with contents 1\ny is f32[2] with contents 3", 1); }),
            "rank 1 is given other data than rank 0: step\n  rank 0: y is f32[2] with contents 2\n"
            "  rank 1: y is f32[2] with contents 3\n"
            "  hint: all ranks are given the same batches: samplers that shuffle need the same seed on every rank");
  EXPECT_EQ(test::message_of([&] { check_call(call, "step\nx is f32[2] with contents 1", 1); }),
            "rank 1 is given other data than rank 0: step\n  rank 0: y is f32[2] with contents 2\n  rank 1: no more\n"
            "  hint: all ranks are given the same batches: samplers that shuffle need the same seed on every rank");
}

}  // namespace
}  // namespace penstock
