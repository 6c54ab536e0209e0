#include "state/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/text.h"
#include "support/errors.h"
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
  return message_of([&] { parse_safetensors(std::as_bytes(std::span(text)), "x.safetensors"); });
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
  const StoredTensor& read = file.tensors().at("h.0.w");
  EXPECT_EQ(read.type, a.type);
  EXPECT_EQ(std::memcmp(read.bytes.data(), weights.data(), 24), 0);
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
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int edits = 0; edits < 3; ++edits) bad[random() % bad.size()] = static_cast<char>(random());
    parse_message(bad.substr(0, random() % (bad.size() + 1)));
  }
}

TEST(Safetensors, MissingFileIsNamed) {
  EXPECT_EQ(message_of([] { SafetensorsFile::open("/nonexistent/m.safetensors"); }),
            "cannot read /nonexistent/m.safetensors: No such file or directory");
}

}  // namespace
}  // namespace penstock
