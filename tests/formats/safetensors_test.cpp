// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/text.h"
#include "support/errors.h"
#include "support/rounds.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;

std::string content(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + std::string(data_bytes, '\1');
}

std::string parse_message(const std::string& text) {
  return message_of([&] { parse_safetensors(std::as_bytes(std::span(text)), text.size(), "x.safetensors"); });
}

constexpr const char* kHint = "\n  hint: the file is damaged, truncated, or not a safetensors file";

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const std::int64_t step = 7;
  const StoredTensor a{{DType::f32, {2, 3}}, std::as_bytes(std::span(weights))};
  const StoredTensor b{{DType::i64, {}}, std::as_bytes(std::span(&step, 1))};
  const StoredTensor empty{{DType::bf16, {0, 4}}, {}};
  write_safetensors(folder.file("x.safetensors"), {{"h.0.w", a}, {"step", b}, {"none", empty}}, {{"format", "pt"}});

  const SafetensorsFile file = SafetensorsFile::open(folder.file("x.safetensors"));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 3u);
  const FileTensor& read = file.tensors().at("h.0.w");
  EXPECT_EQ(read.type, a.type);
  std::vector<float> found(6);
  read.read(0, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, weights);
  read.read(8, std::as_writable_bytes(std::span(found).first(2)));
  EXPECT_EQ(found, (std::vector<float>{3, 4, 3, 4, 5, 6}));
  file.check();
  EXPECT_EQ(file.tensors().at("step").type, b.type);
  EXPECT_EQ(file.tensors().at("none").type, empty.type);
  EXPECT_FALSE(std::filesystem::exists(folder.file("x.safetensors.part")));
}

TEST(Safetensors, BadContentIsNamed) {
  EXPECT_EQ(parse_message("abc"), concat("x.safetensors: only 3 bytes; a safetensors file has at least 8", kHint));
  EXPECT_EQ(parse_message("plain text, not a header"),
            concat("x.safetensors: the header should have 7310503753715641456 bytes, the file has 24", kHint));
  EXPECT_EQ(parse_message(content("[1]", 0)), concat("x.safetensors: the header is not a JSON object", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)),
            concat("x.safetensors: tensor \"a\": unknown dtype \"U8\"", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4)),
            concat("x.safetensors: tensor \"a\": f32[2] has 8 bytes, the file gives it 4", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4)),
            concat("x.safetensors: tensor \"a\": it spans bytes 0 to 8 of 4", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8)),
            concat("x.safetensors: tensor \"a\": a size of its shape is not a whole number", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8)),
            concat("x.safetensors: tensor \"a\": its shape is too large", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                                      "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                  8)),
            concat("x.safetensors: tensor \"b\": it overlaps another tensor", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8)),
            concat("x.safetensors: tensor \"a\": the bytes before it belong to no tensor", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8)),
            concat("x.safetensors: bytes at the end belong to no tensor", kHint));
  EXPECT_EQ(parse_message(content(R"({"__metadata__":{"a":1}})", 0)), concat("x.safetensors: __metadata__ \"a\" is not a text", kHint));
  EXPECT_EQ(parse_message(content(R"({"a":[]})", 0)),
            concat("x.safetensors: tensor \"a\": its entry needs dtype, shape and data_offsets", kHint));
}

TEST(Safetensors, DamagedBytesGiveErrorsOnly) {
  const std::string good =
      content(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})", 16);
  std::mt19937_64 random(11);
  for (int round = 0; round < test::rounds(2000); ++round) {
    std::string bad = good;
    for (int edits = 0; edits < 3; ++edits) bad[random() % bad.size()] = static_cast<char>(random());
    parse_message(bad.substr(0, random() % (bad.size() + 1)));
  }
}

// One bit anywhere but in the padding of the header: the file is refused when it is opened, or when its tensors are checked.
TEST(Safetensors, FlippedBitsAreFound) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const StoredTensor a{{DType::f32, {2, 3}}, std::as_bytes(std::span(weights))};
  write_safetensors(path, {{"w", a}, {"v", {{DType::f32, {1}}, a.bytes.first(4)}}}, {{"format", "pt"}, {"graph", "x"}});
  const std::string good = read_file(path);
  std::mt19937_64 random(17);
  int refused = 0;
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    std::string bad = good;
    const std::size_t at = random() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ 1 << random() % 8);
    std::ofstream(path, std::ios::binary) << bad;
    std::map<std::string, std::string> metadata;
    const std::string message = message_of([&] {
      const SafetensorsFile file = SafetensorsFile::open(path);
      file.check();
      metadata = file.metadata();
    });
    const bool accepted = message == "no error";
    EXPECT_TRUE(accepted || message.starts_with(path)) << message;
    refused += !accepted;
    if (accepted && !metadata.contains("format")) ADD_FAILURE() << "byte " << at << " of " << good.size();
  }
  EXPECT_GT(refused, kRounds * 9 / 10) << "what is left has lost the name of its checksums, or is padding";
}

TEST(Safetensors, AFileThatIsCutWhileItIsReadIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  const std::vector<float> weights(1 << 16, 1.0f);
  write_safetensors(path, {{"w", {{DType::f32, {1 << 16}}, std::as_bytes(std::span(weights))}}});
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, 1 << 17);
  std::vector<float> found(1 << 16);
  EXPECT_EQ(message_of([&] { file.tensors().at("w").read(0, std::as_writable_bytes(std::span(found))); }),
            concat(path, " was changed while the run read it\n  hint: train on a copy that stays as it is"));
}

TEST(Safetensors, MissingFileIsNamed) {
  EXPECT_EQ(message_of([] { SafetensorsFile::open("/nonexistent/m.safetensors"); }),
            "cannot read /nonexistent/m.safetensors: No such file or directory\n  hint: there is no folder /nonexistent");
}

}  // namespace
}  // namespace penstock
