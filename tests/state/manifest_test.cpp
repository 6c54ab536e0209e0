// SPDX-License-Identifier: Apache-2.0
#include "state/manifest.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Manifest example() {
  Manifest out{20, 320, "[train]\nseed = 3\nlearning_rate = 0.001\n", 0xfedcba9876543210ull, {}, {}};
  out.files = {{"device-0.safetensors", {136, "9ae16a3b2f90404f"}}, {"device-1.safetensors", {264, "1"}}};
  out.tensors = {{"w[0:4]", "device-0.safetensors"}, {"w[4:8]", "device-1.safetensors"}, {"step", "device-0.safetensors"}};
  return out;
}

std::string failure(const std::string& text) {
  return message_of([&] { parse_manifest(text, "m.json"); });
}

TEST(Manifest, ReadsBackWhatItWrote) {
  const std::string text = print(example());
  const Manifest again = parse_manifest(text, "m.json");
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(again.step, 20);
  EXPECT_EQ(again.position, 320);
  EXPECT_EQ(again.text, 0xfedcba9876543210ull);
  EXPECT_EQ(again.config, example().config);
  EXPECT_EQ(again.files.at("device-1.safetensors").bytes, 264u);
  EXPECT_EQ(again.tensors, example().tensors);
}

TEST(Manifest, EveryChangedDigitIsFound) {
  const std::string good = print(example());
  int digits = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (good[i] < '0' || good[i] > '9') continue;
    ++digits;
    std::string text = good;
    for (char digit = '0'; digit <= '9'; ++digit) {
      if (digit == good[i]) continue;
      text[i] = digit;
      EXPECT_NE(failure(text), "no error") << "digit " << i << " as " << digit;
    }
  }
  EXPECT_GE(digits, 50);
}

TEST(Manifest, EveryChangedByteIsFound) {
  const std::string good = print(example());
  std::mt19937 random(5);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string text = good;
    text[i] = static_cast<char>(text[i] ^ (1 + static_cast<int>(random() % 255)));
    EXPECT_NE(failure(text), "no error") << "byte " << i;
    EXPECT_NE(failure(good.substr(0, i)), "no error") << "cut at " << i;
  }
}

TEST(Manifest, EveryFieldIsChecked) {
  const auto with = [](auto&& change) {
    Manifest wrong = example();
    change(wrong);
    return failure(print(wrong));
  };
  EXPECT_EQ(with([](Manifest& m) { m.position = -8; }), "m.json: position is -8; it must be a whole number from 0");
  EXPECT_EQ(with([](Manifest& m) { m.step = -1; }), "m.json: step is -1; it must be a whole number from 0");
  EXPECT_EQ(with([](Manifest& m) { m.files.clear(); }), "m.json: tensors.step is in \"device-0.safetensors\", which files does not list");
  for (const std::string name : {"../../x", "/etc/hostname", "a/b", "..", ".", ""})
    EXPECT_EQ(with([&](Manifest& m) { m.files[name] = {}; }),
              concat("m.json: files names ", quote(name), ", which is no file beside the manifest"));
  EXPECT_EQ(with([](Manifest& m) { m.tensors["step"] = "elsewhere"; }),
            "m.json: tensors.step is in \"elsewhere\", which files does not list");
}

TEST(Manifest, WhatIsMissingOrOfAnotherTypeIsNamed) {
  const std::string hint =
      "\n  hint: the checkpoint is damaged or from another program; --resume of the run's folder takes the newest intact one";
  EXPECT_EQ(failure("{}"), "m.json: not the manifest of a Penstock checkpoint" + hint);
  EXPECT_EQ(failure("[1"), "m.json: not the manifest of a Penstock checkpoint" + hint);
  EXPECT_EQ(failure(R"({"format": "penstock checkpoint", "version": 9})"),
            "m.json: version 9 of the format; this build reads version 2" + hint);
  EXPECT_EQ(failure(R"({"format": "penstock checkpoint", "version": 2, "step": 1})"),
            "m.json: its content is not what its checksum says" + hint);
  const auto sealed = [&](const std::string& members) {
    return failure(sealed_manifest(R"({"format": "penstock checkpoint", "version": 2, )" + members));
  };
  const std::string rest = R"("position": 2, "config": "", "text": "a", "files": {}, "tensors": {})";
  EXPECT_EQ(sealed(R"("step": 1, )" + rest), "no error");
  EXPECT_EQ(sealed(R"("step": "1", )" + rest), "m.json: step is \"1\"; it must be a whole number from 0");
  EXPECT_EQ(sealed(R"("step": 1e400, )" + rest), "m.json: not the manifest of a Penstock checkpoint" + hint);
  EXPECT_EQ(sealed(R"("step": 1, "step": 2, )" + rest), "m.json: the key \"step\" is there twice in one object");
  EXPECT_EQ(sealed(rest), "m.json has no key \"step\"\n  hint: the file is damaged, or of another version");
  EXPECT_EQ(sealed(R"("step": 1, "position": 2, "config": "", "text": "xyz", "files": {}, "tensors": {})"),
            "m.json: text is \"xyz\"; it must be hexadecimal");
  EXPECT_EQ(sealed(R"("step": 1, "position": 2, "config": 3, "text": "a", "files": {}, "tensors": {})"),
            "m.json: config is 3; it must be a text");
}

}  // namespace
}  // namespace penstock
