// SPDX-License-Identifier: Apache-2.0
// Setting and saving state through a cluster.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "formats/safetensors.h"
#include "state/initialise.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/file_tensors.h"
#include "support/random_program.h"

namespace penstock {
namespace {

using test::message_of;

// Two devices; the second keeps a copy of the first's "w".
Program program_with_state() {
  return parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %s state @0 (f32[3] "w", f32[3] "first:w")
device 1 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %c copy @0 (f32[3] "w")
  slot %v state @64 (i64[] "step")
)");
}

class State : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    cluster_->load(program_with_state());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& tensor, TensorType type) {
    const std::vector<std::byte> bytes(static_cast<std::size_t>(type.bytes()));
    write_safetensors(file(name), {{tensor, {type, bytes}}}, {});
  }
  StateSource parameters(const std::string& path) const {
    return {StateSource::Kind::safetensors, 0, {{"w", {DType::f32, {3}}, {Initialiser::Kind::normal, 1.0}, true}}, path};
  }
  std::string failure(const StateSource& source) {
    return message_of([&] { cluster_->set_state(source); });
  }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / concat("penstock-state-", ::getpid());
  std::unique_ptr<Cluster> cluster_ =
      make_thread_cluster(2, [](int) { return make_fake_executor({}); }, std::make_shared<test::HashData>());
};

TEST_F(State, InitialisedByNameOnEveryDevice) {
  StateSource source = parameters("");
  source.kind = StateSource::Kind::initialise;
  source.seed = 5;
  cluster_->set_state(source);
  std::vector<std::byte> expected(12);
  initialise(source.parameters[0], 5, expected);
  EXPECT_EQ(cluster_->state("w"), expected);
  EXPECT_EQ(cluster_->state("first:w"), std::vector<std::byte>(12));
  source.parameters[0].type = {DType::f32, {4}};
  EXPECT_EQ(failure(source), "parameter \"w\" is f32[4], the program needs f32[3]");
}

TEST_F(State, EachDeviceWritesWhatItOwns) {
  StateSource source = parameters("");
  source.kind = StateSource::Kind::initialise;
  cluster_->set_state(source);
  EXPECT_EQ(cluster_->save_state(folder_.string()), (std::vector<std::string>{"device-0.safetensors", "device-1.safetensors"}));
  const auto first = SafetensorsFile::open(file("device-0.safetensors")), second = SafetensorsFile::open(file("device-1.safetensors"));
  EXPECT_EQ(first.tensors().size(), 2u);
  EXPECT_EQ(second.tensors().size(), 1u);
  EXPECT_TRUE(second.tensors().contains("step"));
  const auto w = cluster_->state("w");
  EXPECT_TRUE(std::ranges::equal(w, test::bytes_of(first.tensors().at("w"))));
}

TEST_F(State, ADeviceThatOwnsNothingWritesNoFile) {
  cluster_ = make_thread_cluster(2, [](int) { return make_fake_executor({}); }, std::make_shared<test::HashData>());
  cluster_->load(parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=0, step_bytes=0, scratch_bytes=0}
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %s state @0 (f32[3] "w")
)"));
  EXPECT_EQ(cluster_->save_state(folder_.string()), (std::vector<std::string>{"device-1.safetensors"}));
}

TEST_F(State, ParametersFromAFile) {
  const double values[] = {1, 2, 0.1};
  write_safetensors(file("f64"), {{"w", {{DType::f64, {3}}, std::as_bytes(std::span(values))}}}, {});
  cluster_->set_state(parameters(file("f64")));
  const auto w = cluster_->state("w");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(load_element(DType::f32, w, i), static_cast<double>(static_cast<float>(values[i])));
  write("shape", "w", {DType::f32, {4}});
  EXPECT_EQ(failure(parameters(file("shape"))), concat(file("shape"), ": \"w\" is f32[4], the program needs f32[3]"));
  write("other", "u", {DType::f32, {3}});
  EXPECT_EQ(failure(parameters(file("other"))), concat(file("other"), ": there is no tensor \"w\"\n  hint: it has u"));
  write("foreign", "encoder.layer.attention", {DType::f32, {3}});
  EXPECT_EQ(failure(parameters(file("foreign"))), concat(file("foreign"), ": there is no tensor \"w\"\n  hint: it is of another model"));
}

TEST_F(State, AFailureLeavesTheClusterUsable) {
  EXPECT_NE(failure(parameters(file("missing"))), "no error");
  write("good", "w", {DType::f32, {3}});
  EXPECT_EQ(failure(parameters(file("good"))), "no error");
}

}  // namespace
}  // namespace penstock
