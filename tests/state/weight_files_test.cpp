// SPDX-License-Identifier: Apache-2.0
#include "state/weight_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/text.h"
#include "formats/safetensors.h"
#include "state/state_source.h"
#include "support/errors.h"
#include "support/permission.h"
#include "support/temporary.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::message_without_permission;
using test::TemporaryFolder;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kAgain = "\n  hint: fetch or save the folder again";

void write_tensors(const std::string& path, const std::vector<std::string>& names) {
  const std::vector<float> values = {1, 2, 3};
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  for (const std::string& name : names) tensors.push_back({name, {{DType::f32, {3}}, std::as_bytes(std::span(values))}});
  write_safetensors(path, tensors);
}

// Two shards with three tensors, as save_pretrained writes them.
void write_shards(const TemporaryFolder& folder) {
  write_tensors(folder.file("one.safetensors"), {"a", "transformer.b"});
  write_tensors(folder.file("two.safetensors"), {"c"});
  write_file(folder.file(kIndex),
             R"({"metadata": {"total_size": 36}, "weight_map": {"a": "one.safetensors", "transformer.b": "one.safetensors",
                                     "c": "two.safetensors"}})");
}

TEST(WeightFiles, AreFoundInAFileAFolderAndShards) {
  const TemporaryFolder one, whole, shards;
  write_tensors(one.file("x.safetensors"), {"a"});
  EXPECT_FALSE(is_pretrained(one.file("x.safetensors")));
  EXPECT_FALSE(is_pretrained(one.path().string()));
  EXPECT_EQ(weight_files(one.file("x.safetensors")), (std::map<std::string, std::string>{{"a", one.file("x.safetensors")}}));

  write_file(whole.file("config.json"), "{}");
  write_tensors(whole.file("model.safetensors"), {"a"});
  EXPECT_TRUE(is_pretrained(whole.path().string()));
  EXPECT_EQ(weight_files(whole.path().string()), (std::map<std::string, std::string>{{"a", whole.file("model.safetensors")}}));

  write_shards(shards);
  const std::map<std::string, std::string> expected = {
      {"a", shards.file("one.safetensors")}, {"transformer.b", shards.file("one.safetensors")}, {"c", shards.file("two.safetensors")}};
  for (const std::string& path : {shards.path().string(), shards.file(kIndex)}) {
    EXPECT_TRUE(is_pretrained(path));
    EXPECT_EQ(weight_files(path), expected);
    StateSource source;
    source.kind = StateSource::Kind::safetensors;
    source.path = path;
    for (const char* name : {"a", "b", "c"}) source.parameters.push_back({name, {DType::f32, {3}}, {}, true});
    StateReader reader(source);
    for (const char* name : {"a", "b", "c"}) {
      std::vector<float> out(3);
      reader.read(name, {DType::f32, {3}}, std::as_writable_bytes(std::span(out)));
      EXPECT_EQ(out, (std::vector<float>{1, 2, 3})) << name;
    }
  }
}

TEST(WeightFiles, WhatDoesNotFitTogetherIsNamed) {
  const TemporaryFolder folder;
  const std::string index = folder.file(kIndex), one = folder.file("one.safetensors"), two = folder.file("two.safetensors");
  const auto failure = [&] { return message_of([&] { weight_files(folder.path().string()); }); };
  write_file(folder.file("config.json"), "{}");
  EXPECT_EQ(failure(), concat(folder.path().string(), " has neither model.safetensors nor ", kIndex,
                              "\n  hint: name the folder that save_pretrained wrote, or a file of it"));
  write_file(folder.file("pytorch_model.bin"), "");
  EXPECT_NE(failure().find("hint: pytorch_model.bin is not read, as unpickling runs code from it"), std::string::npos);

  write_shards(folder);
  fs::remove(two);
  EXPECT_EQ(failure(), concat(two, " is not there\n  ", index, " names it", kAgain));
  write_tensors(two, {"c", "a"});
  EXPECT_EQ(failure(), concat("tensor \"a\" is in two files\n  ", one, "\n  ", two, kAgain));
  write_tensors(two, {"d"});
  EXPECT_EQ(failure(), concat(two, " has no tensor \"c\"\n  ", index, " says that it is there", kAgain));
  write_tensors(two, {"c"});
  EXPECT_EQ(failure(), "no error");

  const auto with_index = [&](const std::string& text) {
    write_file(index, text);
    return failure();
  };
  EXPECT_EQ(with_index(R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})"),
            concat(index, ": the key \"a\" is there twice in one object"));
  EXPECT_EQ(with_index(R"({"weight_map": {"a": "../one.safetensors"}})"),
            concat(index, ": weight_map.a is \"../one.safetensors\", which is no file beside the index", kAgain));
  EXPECT_EQ(
      with_index("{}"),
      concat(index, " has no key \"weight_map\"\n  hint: the file is damaged, or of another version: fetch or save the folder again"));
  EXPECT_EQ(with_index("[").find(concat(index, ":1:")), 0u);
}

TEST(WeightFiles, InAFolderThatCannotBeReadAreNotSaidToBeAbsent) {
  const TemporaryFolder outer;
  fs::permissions(outer.path(), fs::perms::all);
  const std::string folder = outer.file("saved");
  fs::create_directory(folder);
  write_tensors(folder + "/model.safetensors", {"a"});
  for (const auto look : {+[](const std::string& path) { weight_files(path); }, +[](const std::string& path) { is_pretrained(path); }})
    EXPECT_EQ(message_without_permission(folder, [&] { look(folder); }),
              concat("cannot read ", folder,
                     "/model.safetensors: Permission denied\n  hint: let this user read it, and the folders that "
                     "lead there"));
}

}  // namespace
}  // namespace penstock
