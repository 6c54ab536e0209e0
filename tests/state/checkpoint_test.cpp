// SPDX-License-Identifier: Apache-2.0
#include "state/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>

#include "base/text.h"
#include "formats/safetensors.h"
#include "state/initialise.h"
#include "state/manifest.h"
#include "support/errors.h"
#include "support/permission.h"
#include "support/temporary.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::message_without_permission;
using test::TemporaryFolder;

// Two devices, one tensor each.
std::vector<std::string> save(const std::string& folder) {
  const std::vector<float> values = {1, 2, 3};
  const StoredTensor tensor{{DType::f32, {3}}, std::as_bytes(std::span(values))};
  write_safetensors(folder + "/device-0.safetensors", {{"wte.weight", tensor}});
  write_safetensors(folder + "/device-1.safetensors", {{"ln_f.weight", tensor}});
  return {"device-0.safetensors", "device-1.safetensors"};
}

// One device, whose tensor has a zero and then this value twice.
std::vector<std::string> save_poisoned(const std::string& folder, DType dtype, double value) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(3 * byte_size(dtype)));
  store_element(dtype, value, bytes, 1);
  store_element(dtype, value, bytes, 2);
  write_safetensors(folder + "/device-0.safetensors", {{"wte.weight", {{dtype, {3}}, bytes}}});
  return {"device-0.safetensors"};
}

std::string write(const TemporaryFolder& out, std::int64_t step, int keep = 3,
                  const std::function<std::vector<std::string>(const std::string&)>& save_state = save) {
  Checkpoint info;
  info.step = step;
  info.config = "[train]\nseed = 3\n";
  info.text = 0xffffffffffffffffull;
  return write_checkpoint(out.path().string(), info, keep, save_state);
}

constexpr const char* kHint =
    "\n  hint: the checkpoint is damaged or from another program; --resume of the run's folder takes the newest intact one";

std::string found_in(const std::string& path) {
  return find_checkpoint(path).checkpoint.folder;
}

TEST(Checkpoint, ReadsBackWhatItWrote) {
  const TemporaryFolder out;
  const std::string folder = write(out, 20);
  EXPECT_EQ(folder, out.file("checkpoint-20"));
  EXPECT_EQ(found_in(out.path().string()), folder);
  EXPECT_EQ(found_in(folder), folder);
  const Checkpoint info = read_checkpoint(folder);
  EXPECT_EQ(info.step, 20);
  EXPECT_EQ(info.config, "[train]\nseed = 3\n");
  EXPECT_EQ(info.text, 0xffffffffffffffffull);
  EXPECT_EQ(checkpoint_index(folder), (std::map<std::string, std::string>{{"wte.weight", folder + "/device-0.safetensors"},
                                                                          {"ln_f.weight", folder + "/device-1.safetensors"}}));
}

TEST(Checkpoint, TheNewestStayAndTheOldestGo) {
  const TemporaryFolder out;
  for (std::int64_t step : {5, 10, 100, 20}) write(out, step, 2);
  EXPECT_EQ(checkpoint_steps(out.path().string()), (std::vector<std::int64_t>{20, 100}));
  EXPECT_EQ(found_in(out.path().string()), out.file("checkpoint-100"));
  EXPECT_EQ(message_of([&] { write(out, 20); }), concat(out.file("checkpoint-20"), " is already there; it is not overwritten"));
}

TEST(Checkpoint, WhatAKilledRunLeavesIsIgnoredAndRemoved) {
  const TemporaryFolder out;
  fs::create_directories(out.path() / "checkpoint-5.part");
  save(out.file("checkpoint-5.part"));
  write_file(out.file("checkpoint-5.part/manifest.json"), "{}");
  fs::create_directories(out.path() / "checkpoint-6");  // no manifest: none
  EXPECT_EQ(message_of([&] { find_checkpoint(out.path().string()); }),
            concat("no checkpoint in ", out.path().string(), "\n  hint: name a run's folder or one of its checkpoint-STEP folders"));
  write(out, 5);
  EXPECT_FALSE(fs::exists(out.path() / "checkpoint-5.part"));
  EXPECT_EQ(found_in(out.path().string()), out.file("checkpoint-5"));
}

TEST(Checkpoint, AFailedWriteLeavesTheLastOne) {
  const TemporaryFolder out;
  write(out, 5, 1);
  Checkpoint info;
  info.step = 10;
  EXPECT_EQ(message_of([&] {
              write_checkpoint(out.path().string(), info, 1, [](const std::string& folder) -> std::vector<std::string> {
                save(folder);
                throw Error("the disk is full");
              });
            }),
            "the disk is full");
  EXPECT_FALSE(fs::exists(out.path() / "checkpoint-10.part"));
  EXPECT_EQ(message_of([&] {
              write_checkpoint(out.path().string(), info, 1,
                               [](const std::string&) -> std::vector<std::string> { return {"../checkpoint-5/device-0.safetensors"}; });
            }),
            concat("\"../checkpoint-5/device-0.safetensors\" is no file of ", out.file("checkpoint-10.part")));
  EXPECT_FALSE(fs::exists(out.path() / "checkpoint-10.part"));
  EXPECT_EQ(found_in(out.path().string()), out.file("checkpoint-5"));
  EXPECT_EQ(read_checkpoint(out.file("checkpoint-5")).step, 5);
}

TEST(Checkpoint, DamageIsNamed) {
  const TemporaryFolder out;
  const std::string folder = write(out, 1), file = folder + "/device-1.safetensors", manifest = folder + "/manifest.json";
  const std::string good = read_file(file), good_manifest = read_file(manifest);
  const auto failure = [&] { return message_of([&] { read_checkpoint(folder); }); };

  write_file(file, good.substr(0, good.size() - 1));
  EXPECT_EQ(failure(), concat(file, ": it has ", good.size() - 1, " bytes, its manifest says ", good.size(), kHint));
  std::string changed = good;
  changed.back() ^= 1;
  write_file(file, changed);
  EXPECT_EQ(failure(), concat(file, ": its content is not what its manifest says", kHint));
  fs::remove(file);
  EXPECT_EQ(failure(), concat(file, ": this file of the checkpoint is missing", kHint));
  write_file(file, good);

  write_file(manifest, good_manifest.substr(0, good_manifest.size() / 2));
  EXPECT_EQ(failure(), concat(manifest, ": not the manifest of a Penstock checkpoint", kHint));
  Manifest moved = parse_manifest(good_manifest, manifest);
  moved.position = -8;
  write_file(manifest, print(moved));
  EXPECT_EQ(failure(), concat(manifest, ": position is -8; it must be a whole number from 0"));
  fs::remove(manifest);
  EXPECT_EQ(
      failure(),
      concat(folder, " is no checkpoint: it has no manifest.json\n  hint: name a run's folder or one of its checkpoint-STEP folders"));
}

TEST(Checkpoint, TheNewestIntactOneIsFound) {
  const TemporaryFolder out;
  for (std::int64_t step : {5, 10, 20}) write(out, step);
  fs::create_directories(out.path() / "checkpoint-30");
  const auto bytes = fs::file_size(out.file("checkpoint-20/device-0.safetensors"));
  write_file(out.file("checkpoint-20/device-0.safetensors"), "");
  const FoundCheckpoint found = find_checkpoint(out.path().string());
  EXPECT_EQ(found.checkpoint.step, 10);
  ASSERT_EQ(found.damaged.size(), 2u);
  EXPECT_EQ(found.damaged[0].folder, out.file("checkpoint-30"));
  EXPECT_EQ(found.damaged[0].damage, concat(out.file("checkpoint-30"), " is no checkpoint: it has no manifest.json"));
  EXPECT_EQ(found.damaged[1].folder, out.file("checkpoint-20"));
  EXPECT_EQ(found.damaged[1].damage, concat(out.file("checkpoint-20/device-0.safetensors"), ": it has 0 bytes, its manifest says ", bytes));

  EXPECT_EQ(set_aside(out.file("checkpoint-20"), "damaged"), out.file("checkpoint-20.damaged"));
  EXPECT_EQ(checkpoint_steps(out.path().string()), (std::vector<std::int64_t>{5, 10}));
  write(out, 20);
  EXPECT_EQ(set_aside(out.file("checkpoint-20"), "damaged"), out.file("checkpoint-20.damaged-2"));
  EXPECT_TRUE(fs::exists(out.path() / "checkpoint-20.damaged" / "manifest.json"));
}

TEST(Checkpoint, StateThatIsNotFiniteIsNeverTheNewest) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      const TemporaryFolder out;
      write(out, 5);
      const auto poisoned = [&](const std::string& folder) { return save_poisoned(folder, dtype, bad); };
      const std::string found = concat("\"wte.weight\" has 2 values that are not finite, the first (element 1) is ", number(bad));
      EXPECT_EQ(message_of([&] { write(out, 10, 3, poisoned); }),
                concat("state ", found, "\n  hint: lower train.learning_rate, or clip gradients (train.clip)"));
      EXPECT_EQ(checkpoint_folders(out.path().string()), (std::map<std::int64_t, std::string>{{5, out.file("checkpoint-5")}}));
      // Another program, or an earlier version, may have written such a one.
      fs::copy(out.file("checkpoint-5"), out.file("checkpoint-10"));
      poisoned(out.file("checkpoint-10"));
      const std::string file = out.file("checkpoint-10/device-0.safetensors"), path = out.file("checkpoint-10/manifest.json");
      Manifest manifest = parse_manifest(read_file(path), path);
      const std::string content = read_file(file);
      manifest.files["device-0.safetensors"] = {content.size(), content_hash(std::as_bytes(std::span(content)))};
      write_file(path, print(manifest));
      const FoundCheckpoint newest = find_checkpoint(out.path().string());
      EXPECT_EQ(newest.checkpoint.folder, out.file("checkpoint-5"));
      EXPECT_EQ(newest.damaged.at(0).damage, concat(file, ": ", found));
    }
  const TemporaryFolder out;
  write(out, 5, 3, [](const std::string& folder) { return save_poisoned(folder, DType::f32, std::numeric_limits<float>::max()); });
  EXPECT_EQ(checkpoint_steps(out.path().string()), std::vector<std::int64_t>{5});
}

// What cannot be read may be intact, so nothing older is taken in its place.
TEST(Checkpoint, WithoutPermissionItIsNotDamaged) {
  for (const char* shut : {"checkpoint-10", "checkpoint-10/manifest.json", "checkpoint-10/device-1.safetensors", ""}) {
    const TemporaryFolder out;
    for (std::int64_t step : {5, 10}) write(out, step);
    fs::permissions(out.path(), fs::perms::all);
    const std::string failure = message_without_permission(out.path() / shut, [&] { find_checkpoint(out.path().string()); });
    EXPECT_EQ(failure.find("cannot read " + out.path().string()), 0u) << failure;
    EXPECT_NE(failure.find(": Permission denied\n  hint: let this user read it, and the folders that lead there"), std::string::npos)
        << failure;
  }
}

TEST(Checkpoint, FoldersThatAreSetAsideAreNoLongerListed) {
  const TemporaryFolder out;
  for (std::int64_t step : {5, 10, 20}) write(out, step);
  std::map<std::int64_t, std::string> folders = {
      {5, out.file("checkpoint-5")}, {10, out.file("checkpoint-10")}, {20, out.file("checkpoint-20")}};
  EXPECT_EQ(checkpoint_folders(out.path().string()), folders);
  EXPECT_EQ(set_aside(out.file("checkpoint-20"), "later"), out.file("checkpoint-20.later"));
  folders.erase(20);
  EXPECT_EQ(checkpoint_folders(out.path().string()), folders);
}

TEST(Checkpoint, WhereNoneIsIntactEachDamageIsNamed) {
  const TemporaryFolder out;
  for (std::int64_t step : {5, 10}) {
    fs::remove(fs::path(write(out, step)) / "device-1.safetensors");
  }
  EXPECT_EQ(message_of([&] { find_checkpoint(out.path().string()); }),
            concat("no checkpoint in ", out.path().string(), " is intact\n  ", out.file("checkpoint-10/device-1.safetensors"),
                   ": this file of the checkpoint is missing\n  ", out.file("checkpoint-5/device-1.safetensors"),
                   ": this file of the checkpoint is missing\n  hint: begin anew, with another --out"));
}

}  // namespace
}  // namespace penstock
