// SPDX-License-Identifier: Apache-2.0
#include "data/sequence_dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "penstock/trace.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;
using Numbers = std::vector<std::int64_t>;

SequenceDataset dataset(const std::vector<std::string>& paths, std::int64_t context, std::int64_t batch, double validation = 0,
                        std::int64_t seed = 0) {
  return {Sequences::of_documents(paths, *load_tokenizer("bytes")), join(paths, ", "), context, {batch, validation, seed}};
}

// The port's values for these rows of the samples; `length`: of a row of tokens or targets, 0 for other ports.
// `begins`: of rows of several samples.
Numbers values(const SequenceDataset& data, const std::string& port, const Numbers& samples, std::int64_t length, std::int64_t first = 0,
               const Numbers& begins = {}) {
  StepInput input;
  input.seed = 9;
  input.samples = samples;
  input.begins = begins;
  const std::int64_t rows = port == "seed" || port == "count" ? 1 : (begins.empty() ? std::ssize(samples) : std::ssize(begins)) - first;
  Numbers out(static_cast<std::size_t>(rows * std::max<std::int64_t>(length, 1)));
  const TensorType type{DType::i64, length > 0 ? Shape{rows, length} : Shape{}};
  data.fill({port, type, false, first}, input, first, rows, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(SequenceDataset, DocumentsArePaddedBehindTheirEnd) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "abcd");
  write_file(folder.file("b.txt"), "xy");
  const SequenceDataset data = dataset({folder.path().string()}, 8, 1);
  EXPECT_EQ(data.length(0), 3);
  EXPECT_EQ(data.length(1), 1);
  EXPECT_EQ(values(data, "tokens.3", {0, 1}, 4), (Numbers{'a', 'b', 'c', 0, 'x', 0, 0, 0}));
  EXPECT_EQ(values(data, "targets.3", {0, 1}, 4), (Numbers{'b', 'c', 'd', kIgnored, 'y', kIgnored, kIgnored, kIgnored}));
  EXPECT_EQ(values(data, "targets.3", {0, 1}, 4, 1), (Numbers{'y', kIgnored, kIgnored, kIgnored})) << "the rows of a later micro-batch";
  EXPECT_EQ(values(data, "rows.3", {1, 0}, 0), (Numbers{1, 0})) << "dropout goes by the samples, however a batch is cut";
  EXPECT_EQ(values(data, "count", {1, 0}, 0), Numbers{4});
  EXPECT_EQ(values(data, "seed", {1, 0}, 0), Numbers{9});
  EXPECT_EQ(data.summary(), "2 sequences of 1 to 3 tokens");
}

TEST(SequenceDataset, LinesAreDocumentsOrPairs) {
  const TemporaryFolder folder;
  const std::string file = folder.file("pairs.jsonl");
  write_file(file, "{\"input\": \"ab\", \"target\": \"cde\"}\n\n{\"text\": \"\\u00e9\"}\n{\"text\": \"q\"}\n");
  const SequenceDataset data = dataset({file}, 8, 1);
  EXPECT_EQ(values(data, "tokens.0", {0, 1}, 4), (Numbers{'a', 'b', 'c', 'd', 0xc3, 0, 0, 0})) << "bytes of UTF-8 are tokens";
  EXPECT_EQ(values(data, "targets.0", {0, 1}, 4), (Numbers{kIgnored, 'c', 'd', 'e', 0xa9, kIgnored, kIgnored, kIgnored}));
  EXPECT_EQ(values(data, "count", {0, 1}, 0), Numbers{4});
  EXPECT_EQ(data.summary(), "2 sequences of 1 to 4 tokens (1 without a target left out)");
}

TEST(SequenceDataset, WhatIsLongerThanTheContextIsCut) {
  const TemporaryFolder folder;
  write_file(folder.file("long.txt"), "abcdefgh");
  write_file(folder.file("pairs.jsonl"), "{\"input\": \"abcdefgh\", \"target\": \"ij\"}\n");
  const SequenceDataset data = dataset({folder.path().string()}, 4, 1);
  EXPECT_EQ(values(data, "targets.0", {0}, 4), (Numbers{'b', 'c', 'd', 'e'}));
  EXPECT_EQ(values(data, "targets.0", {1}, 4), Numbers(4, kIgnored)) << "nothing of the target is left";
  EXPECT_EQ(values(data, "count", {1}, 0), Numbers{0});
  EXPECT_EQ(data.summary(), "2 sequences of 4 to 4 tokens (2 cut)");
}

TEST(SequenceDataset, RowsOfSeveralSamplesSayWhereTheseStand) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), "abcd");
  write_file(folder.file("b.txt"), "xy");
  write_file(folder.file("c.txt"), "pqr");
  const SequenceDataset data = dataset({folder.path().string()}, 8, 1);
  const Numbers samples = {2, 1, 0}, begins = {0, 2};
  EXPECT_EQ(values(data, "tokens.0", samples, 4, 0, begins), (Numbers{'p', 'q', 'x', 0, 'a', 'b', 'c', 0}));
  EXPECT_EQ(values(data, "targets.0", samples, 4, 0, begins), (Numbers{'q', 'r', 'y', kIgnored, 'b', 'c', 'd', kIgnored}));
  EXPECT_EQ(values(data, "targets.0", samples, 4, 1, begins), (Numbers{'b', 'c', 'd', kIgnored})) << "the row of a later micro-batch";
  EXPECT_EQ(values(data, "positions.0", samples, 4, 0, begins), (Numbers{0, 1, 0, 0, 0, 1, 2, 0}));
  EXPECT_EQ(values(data, "ranges.0", samples, 8, 1, begins), (Numbers{0, 1, 0, 2, 0, 3, 0, 0})) << "padding attends to nothing";
  EXPECT_EQ(values(data, "rows.0", samples, 4, 0, begins), (Numbers{2, 2, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(data, "count", samples, 0, 0, begins), Numbers{6});
  EXPECT_EQ(message_of([&] { values(data, "tokens.0", samples, 2, 0, begins); }), "sequence 1 has 1 tokens, its micro-batch 0");
  EXPECT_EQ(message_of([&] { values(data, "ranges.0", samples, 4, 0, begins); }), "samples of 3 tokens stand in a row of 2");
}

TEST(SequenceDataset, PairsReadApartHaveRowsOfInputs) {
  const TemporaryFolder folder;
  const std::string file = folder.file("pairs.jsonl");
  write_file(file, "{\"input\": \"abcdef\", \"target\": \"xyz\"}\n{\"input\": \"pq\", \"target\": \"\"}\n");
  const SequenceDataset data(Sequences::of_pairs({file}, *load_tokenizer("bytes")), file, 5, {1, 0, 0}, /*pairs=*/true);
  EXPECT_EQ(data.length(0), 8) << "an input of 5 tokens, of which one was cut, and a target of 3";
  EXPECT_EQ(data.target_length(0), 3);
  EXPECT_EQ(values(data, "inputs", {0, 1}, 5), (Numbers{'a', 'b', 'c', 'd', 'e', 'p', 'q', 0, 0, 0}));
  EXPECT_EQ(values(data, "tokens", {0, 1}, 4), (Numbers{0, 'x', 'y', 0, 0, 0, 0, 0})) << "the first predicts from nothing";
  EXPECT_EQ(values(data, "targets", {0, 1}, 4), (Numbers{'x', 'y', 'z', kIgnored, kIgnored, kIgnored, kIgnored, kIgnored}));
  EXPECT_EQ(values(data, "ranges", {0, 1}, 6), (Numbers{0, 1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(data, "input_ranges", {1}, 6), (Numbers{0, 2, 0, 2, 0, 0}));
  EXPECT_EQ(values(data, "memory_ranges", {0}, 8), (Numbers{0, 5, 0, 5, 0, 5, 0, 0}));
  EXPECT_EQ(values(data, "memory_ranges.0", {1, 0}, 6, 0, {0}), (Numbers{2, 7, 2, 7, 2, 7})) << "behind the inputs of the other";
  EXPECT_EQ(values(data, "count", {0, 1}, 0), Numbers{3});
  EXPECT_EQ(data.summary(), "2 sequences of 2 to 8 tokens (1 cut)");
}

TEST(SequenceDataset, AnEpochHasEachOnce) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += concat("{\"text\": \"", std::string(static_cast<std::size_t>(i + 2), 'a'), "\"}\n");
  write_file(folder.file("a.jsonl"), lines);
  const SequenceDataset data = dataset({folder.file("a.jsonl")}, 64, 4, 0.2, 7);
  std::set<std::int64_t> seen;
  for (std::int64_t position = 0; position < 16; position += 4)
    for (std::int64_t sample : data.training_samples(position)) EXPECT_TRUE(seen.insert(sample).second);
  for (std::int64_t sample : data.validation_samples(0)) EXPECT_TRUE(seen.insert(sample).second);
  EXPECT_EQ(seen.size(), 20);
}

TEST(SequenceDataset, Refused) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& content, std::int64_t batch = 1) {
    write_file(folder.file("x.jsonl"), content);
    std::string message = message_of([&] { dataset({folder.file("x.jsonl")}, 8, batch); });
    for (std::size_t at; (at = message.find(folder.path().string() + "/")) != message.npos;)
      message.erase(at, folder.path().string().size() + 1);
    return message;
  };
  EXPECT_EQ(refusal("{\"text\": \"abc\"}\n[1]\n"), "x.jsonl:2 is [1]; it must be an object");
  EXPECT_EQ(refusal("{\"text\": 7}\n"), "x.jsonl:1: text is 7; it must be a text");
  EXPECT_EQ(refusal("{\"input\": \"a\"}\n"),
            "x.jsonl:1 has no key \"target\"\n  hint: the file is damaged, or of another version: each line is an object with \"text\", or "
            "with \"input\" and \"target\"");
  EXPECT_EQ(refusal("{\"txt\": \"a\"}\n"), "x.jsonl:1 has no key \"text\", but \"txt\"\n  hint: did you mean \"text\"?");
  EXPECT_EQ(refusal("{\"text\": \"abc\"}\n", 2),
            "there are fewer sequences than one batch takes: 1 in x.jsonl\n  one batch takes 2; 1 are there beside validation\n"
            "  hint: name more documents, or lower train.batch");
  write_file(folder.file("y.txt"), "abcdef");
  const SequenceDataset data = dataset({folder.file("y.txt")}, 8, 1);
  EXPECT_EQ(message_of([&] { values(data, "tokens.0", {0}, 4); }), "sequence 0 has 5 tokens, its micro-batch 4");
  EXPECT_EQ(message_of([&] { values(data, "tokens.0", {3}, 4); }), "sequence 3 was asked for, there are 1");
  EXPECT_EQ(message_of([&] { values(data, "images", {0}, 4); }),
            "sequences have no data for port \"images\"\n  they give tokens, targets, inputs, where these stand, rows, seed and count");
}

}  // namespace
}  // namespace penstock
