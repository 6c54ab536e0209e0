// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "base/text.h"
#include "data/sequences.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;
using Numbers = std::vector<std::int64_t>;

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// An index as Megatron-LM's IndexedDatasetBuilder writes it, field by field.
std::string megatron_index(std::uint8_t kind, const std::vector<std::int32_t>& lengths, const Numbers& pointers, const Numbers& documents) {
  return concat(std::string("MMIDIDX\0\0", 9), bytes_of(std::vector<std::uint64_t>{1}), std::string(1, static_cast<char>(kind)),
                bytes_of(std::vector<std::uint64_t>{lengths.size(), documents.size()}), bytes_of(lengths), bytes_of(pointers),
                bytes_of(documents));
}

std::string golden(const std::string& name) {
  return test::tests_folder() + "/golden/tokenizer/" + name;
}

Numbers tokens_of(const Sequences& sequences, std::int64_t sequence) {
  Numbers out(static_cast<std::size_t>(sequences.lengths(sequence).tokens()));
  sequences.copy(sequence, 0, out);
  return out;
}

class TokenFiles : public testing::Test {
 protected:
  // The message with the folder's name left out.
  std::string refusal(const std::function<void()>& call) const {
    std::string message = message_of(call);
    for (std::size_t at; (at = message.find(folder.path().string() + "/")) != message.npos;)
      message.erase(at, folder.path().string().size() + 1);
    return message;
  }
  std::string bin() const { return folder.file("x.bin"); }
  void write(const std::string& tokens, const std::string& index) const {
    write_file(bin(), tokens);
    write_file(folder.file("x.idx"), index);
  }
  std::string reading_documents() const {
    return refusal([&] { tokens_of(Sequences::of_documents({bin()}, *bytes), 0); });
  }

  const TemporaryFolder folder;
  const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");
};

TEST_F(TokenFiles, AsMegatronWritesThem) {
  write(bytes_of(std::vector<std::uint16_t>{7, 8, 9, 10, 11, 12}), megatron_index(8, {2, 3, 1}, {0, 4, 10}, {0, 1, 3}));
  const Sequences both = Sequences::of_documents({bin()}, *bytes);
  ASSERT_EQ(both.size(), 2);
  EXPECT_EQ(tokens_of(both, 0), (Numbers{7, 8}));
  EXPECT_EQ(tokens_of(both, 1), (Numbers{9, 10, 11, 12})) << "a document of two sequences is both of them";
  write(bytes_of(std::vector<std::int32_t>{7, 8, 9}), megatron_index(4, {1, 2}, {0, 4}, {0, 2}));
  const Sequences pair = Sequences::of_pairs({bin()}, *bytes);
  EXPECT_EQ(tokens_of(pair, 0), (Numbers{7, 8, 9}));
  EXPECT_EQ(pair.lengths(0).input, 1);
  EXPECT_EQ(pair.lengths(0).target, 2);
}

TEST_F(TokenFiles, AsNanoGptWritesThem) {
  const std::shared_ptr<const Tokenizer> gpt2 = load_tokenizer(golden("gpt2.json"));
  write_file(bin(), bytes_of(std::vector<std::uint16_t>{5, 6, 0, 7, 0, 8, 9}));
  const Sequences documents = Sequences::of_documents({bin()}, *gpt2);
  ASSERT_EQ(documents.size(), 3);
  EXPECT_EQ(tokens_of(documents, 0), (Numbers{5, 6, 0})) << "a document ends with the token that says so";
  EXPECT_EQ(tokens_of(documents, 1), (Numbers{7, 0}));
  EXPECT_EQ(tokens_of(documents, 2), (Numbers{8, 9})) << "the last may have been cut";
  EXPECT_EQ(reading_documents(),
            "x.bin has no index x.idx, and the tokenizer no token that ends a document\n  hint: data.tokenizer names the one that made the "
            "file; penstock data tokens writes files with an index");
}

// Every bit of an index that we wrote; one of Megatron-LM has no checksum.
TEST_F(TokenFiles, FlippedBitsOfAnIndexAreFound) {
  TokenFileWriter writer(bin(), 300);
  writer.add({{1, 2, 3}, {4}});
  writer.add({{5, 6}});
  writer.commit();
  const std::string good = read_file(folder.file("x.idx"));
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(bin()));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(message_of([&] { parse_token_index(std::as_bytes(std::span(bad)), "x.idx", size); }), "") << "bit " << bit;
  }
  std::string swapped = good;
  std::swap(swapped[9 + 8 + 1 + 16], swapped[9 + 8 + 1 + 16 + 8]);  // the lengths of the first sequence and the last
  EXPECT_EQ(message_of([&] { parse_token_index(std::as_bytes(std::span(swapped)), "x.idx", size); }),
            "x.idx is damaged: it is not what its checksum says\n  hint: penstock data tokens writes the files again");
}

TEST_F(TokenFiles, WhatIsWrittenIsReadBack) {
  for (const std::int64_t vocabulary : {300, 65'536, 65'537}) {
    std::mt19937 random(static_cast<unsigned>(vocabulary));
    std::vector<std::vector<Numbers>> documents(20);
    TokenFileWriter writer(bin(), vocabulary);
    for (auto& document : documents) {
      document.resize(1 + random() % 2);
      for (Numbers& sequence : document)
        for (auto n = random() % 5; n > 0; --n) sequence.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(vocabulary)));
      writer.add(document);
    }
    writer.commit();
    const std::string content = read_file(folder.file("x.idx"));
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(bin()));
    const TokenIndex index = parse_token_index(std::as_bytes(std::span(content)), "x.idx", size);
    EXPECT_EQ(index.width, vocabulary <= 65'536 ? 2 : 4);
    EXPECT_EQ(print(index).size(), content.size());
    EXPECT_EQ(std::memcmp(print(index).data(), content.data(), content.size()), 0);
    const TokenFile tokens(SteadyFile(bin()), index.width, vocabulary);
    for (std::size_t d = 0; d < documents.size(); ++d)
      for (std::size_t s = 0; s < documents[d].size(); ++s) {
        const auto at = static_cast<std::size_t>(index.documents[d]) + s;
        Numbers read(static_cast<std::size_t>(index.lengths[at]));
        tokens.copy(index.begins[at], read);
        EXPECT_EQ(read, documents[d][s]);
      }
  }
}

TEST_F(TokenFiles, FilesThatAreNone) {
  const std::string two = bytes_of(std::vector<std::uint16_t>{7, 8}), index = megatron_index(8, {2}, {0}, {0, 1});
  const std::string hint = "\n  hint: Megatron-LM's .idx is read, of tokens of 16 or 32 bits";
  write(two + "x", index);
  EXPECT_EQ(reading_documents(),
            "x.bin has 5 bytes, no multiple of 2, the bytes of a token\n  hint: it was cut off, or is no file of tokens");
  write("", megatron_index(8, {}, {}, {0}));
  EXPECT_EQ(reading_documents(), "x.bin is empty");
  write(bytes_of(std::vector<std::uint16_t>{7, 300}), index);
  EXPECT_EQ(reading_documents(),
            "x.bin: token 1 is 300, and the tokenizer has 256\n  hint: data.tokenizer names the one that made the file");
  write(two, "hello");
  EXPECT_EQ(reading_documents(), "x.idx is no index of tokens: it does not begin with MMIDIDX" + hint);
  write(two, index.substr(0, 40));
  EXPECT_EQ(reading_documents(), "x.idx is no index of tokens: it should have 1 numbers more, and has 2 bytes" + hint);
  write(two, index + "y");
  EXPECT_EQ(reading_documents(), "x.idx is no index of tokens: 1 bytes follow on its last number" + hint);
  write(two, megatron_index(7, {2}, {0}, {0, 1}));
  EXPECT_EQ(reading_documents(), "x.idx is no index of tokens: its numbers are of kind 7" + hint);
  write(two, megatron_index(8, {2}, {1}, {0, 1}));
  EXPECT_EQ(reading_documents(), "x.idx is no index of tokens: a sequence begins at byte 1, inside a token of 2" + hint);
}

TEST_F(TokenFiles, IndicesThatPointOutside) {
  const std::string two = bytes_of(std::vector<std::uint16_t>{7, 8});
  const auto refused = [&](const std::string& index) {
    write(two, index);
    return reading_documents();
  };
  EXPECT_EQ(refused(megatron_index(8, {1, 2}, {0, 2}, {0, 2})), "x.idx: sequence 1 has 2 tokens from number 1 on, and there are 2");
  EXPECT_EQ(refused(megatron_index(8, {-1}, {0}, {0, 1})), "x.idx: sequence 0 has -1 tokens from number 0 on, and there are 2");
  EXPECT_EQ(refused(megatron_index(8, {1}, {-2}, {0, 1})), "x.idx: sequence 0 has 1 tokens from number -1 on, and there are 2");
  EXPECT_EQ(refused(megatron_index(8, {1}, {0}, {0, 2})), "x.idx: documents go from sequence 0 to 2, and there are 1");
  EXPECT_EQ(refused(megatron_index(8, {1, 1}, {0, 2}, {0, 5, 2})), "x.idx: document 0 goes from sequence 0 to 5, and there are 2");
  EXPECT_EQ(refused(megatron_index(8, {1, 1}, {0, 0}, {0, 2})),
            "x.idx: in document 0 sequence 1 begins at token 0, and the one before it ends at 1");
}

TEST_F(TokenFiles, PairsHaveTwoSequences) {
  const auto refused = [&](const std::string& index) {
    write(bytes_of(std::vector<std::uint16_t>{7, 8}), index);
    return refusal([&] { Sequences::of_pairs({bin()}, *bytes); });
  };
  EXPECT_EQ(refused(megatron_index(8, {2}, {0}, {0, 1})), "x.bin: document 0 has 1 sequence; a pair has two");
  EXPECT_EQ(refused(megatron_index(8, {0, 2}, {0, 0}, {0, 2})), "x.bin: document 0 has an empty input");
  EXPECT_EQ(refused(megatron_index(8, {2, 0}, {0, 4}, {0, 2})),
            "no pair has a target, of 1 in x.bin\n  hint: nothing can be learnt from them");
}

// Cut off, it would end a process that has it mapped.
TEST_F(TokenFiles, AFileThatShrinksIsNamed) {
  write(bytes_of(std::vector<std::uint16_t>{7, 8}), megatron_index(8, {2}, {0}, {0, 1}));
  const Sequences documents = Sequences::of_documents({bin()}, *bytes);
  std::filesystem::resize_file(bin(), 2);
  EXPECT_EQ(refusal([&] { tokens_of(documents, 0); }),
            "x.bin was changed while the run read it\n  hint: train on a copy that stays as it is");
}

TEST_F(TokenFiles, TheFingerprintIsOfTokensIndexAndTokenizer) {
  const auto fingerprint = [&](std::uint16_t token, const Numbers& documents, const std::string& tokenizer = "bytes") {
    write(bytes_of(std::vector<std::uint16_t>{7, token}), megatron_index(8, {1, 1}, {0, 2}, documents));
    return Sequences::of_documents({bin()}, *load_tokenizer(tokenizer)).fingerprint();
  };
  const std::uint64_t first = fingerprint(8, {0, 2});
  EXPECT_EQ(fingerprint(8, {0, 2}), first);
  EXPECT_NE(fingerprint(9, {0, 2}), first);
  EXPECT_NE(fingerprint(8, {0, 1, 2}), first);
  EXPECT_NE(fingerprint(8, {0, 2}, golden("gpt2.json")), first);
}

}  // namespace
}  // namespace penstock
