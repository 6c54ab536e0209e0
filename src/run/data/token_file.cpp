// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian and read as they lie in memory");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1;
// Behind the last number of an index that Penstock wrote, with the CRC-32 of all before it. Readers that count numbers pass over it.
constexpr std::string_view kSeal = "PENSTOCK";
constexpr std::size_t kSealed = kSeal.size() + sizeof(std::uint32_t);
// Megatron's numbers of the kinds of numbers that hold tokens.
constexpr std::uint8_t kInt32 = 4, kUint16 = 8;

std::string index_path(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".idx").string();
}

int width_for(std::int64_t vocabulary) {
  return vocabulary <= std::numeric_limits<std::uint16_t>::max() + 1 ? 2 : 4;
}

// Reads numbers one after the other.
class Bytes {
 public:
  Bytes(std::span<const std::byte> content, const std::string& file) : left_(content), file_(file) {}

  template <class T>
  T number() {
    return numbers<T>(1)[0];
  }
  template <class T>
  std::vector<T> numbers(std::uint64_t count) {
    if (count > left_.size() / sizeof(T)) fail(concat("it should have ", count, " numbers more, and has ", left_.size(), " bytes"));
    std::vector<T> out(count);
    if (count > 0) std::memcpy(out.data(), left_.data(), count * sizeof(T));
    left_ = left_.subspan(count * sizeof(T));
    return out;
  }
  std::size_t left() const { return left_.size(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(concat(file_, " is no index of tokens: ", what), {}, "Megatron-LM's .idx is read, of tokens of 16 or 32 bits");
  }

 private:
  std::span<const std::byte> left_;
  const std::string& file_;
};

template <class T>
void append(std::vector<std::byte>& out, const T& number) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&number, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::uint32_t checksum_of(std::span<const std::byte> content) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
}

// The content without its seal. Throws Error where it is not what the seal says.
std::span<const std::byte> unsealed(std::span<const std::byte> content, const std::string& file) {
  if (content.size() < kSealed || std::memcmp(content.data() + content.size() - kSealed, kSeal.data(), kSeal.size()) != 0) return content;
  const std::span<const std::byte> inner = content.first(content.size() - kSealed);
  std::uint32_t sum = 0;
  std::memcpy(&sum, content.data() + content.size() - sizeof sum, sizeof sum);
  if (sum != checksum_of(inner))
    throw Error(concat(file, " is damaged: it is not what its checksum says"), {}, "penstock data tokens writes the files again");
  return inner;
}

// Sequences lie inside of FILE.bin, and documents are runs of them without gaps.
void check(const TokenIndex& index, const std::string& file, std::int64_t bytes) {
  const std::int64_t tokens = bytes / index.width, sequences = std::ssize(index.lengths);
  for (std::int64_t s = 0; s < sequences; ++s)
    if (index.begins[s] < 0 || index.lengths[s] < 0 || index.lengths[s] > tokens - index.begins[s])
      throw Error(concat(file, ": sequence ", s, " has ", index.lengths[s], " tokens from number ", index.begins[s], " on, and there are ",
                         tokens));
  if (index.documents.empty() || index.documents.front() != 0 || index.documents.back() != sequences)
    throw Error(concat(file, ": documents go from sequence ", index.documents.empty() ? 0 : index.documents.front(), " to ",
                       index.documents.empty() ? 0 : index.documents.back(), ", and there are ", sequences));
  for (std::size_t d = 0; d + 1 < index.documents.size(); ++d) {
    const std::int64_t first = index.documents[d], end = index.documents[d + 1];
    if (first < 0 || end < first || end > sequences)
      throw Error(concat(file, ": document ", d, " goes from sequence ", first, " to ", end, ", and there are ", sequences));
    for (std::int64_t s = first + 1; s < end; ++s)
      if (index.begins[s] != index.begins[s - 1] + index.lengths[s - 1])
        throw Error(concat(file, ": in document ", d, " sequence ", s, " begins at token ", index.begins[s],
                           ", and the one before it ends at ", index.begins[s - 1] + index.lengths[s - 1]));
  }
}

TokenIndex index_by_ends(const TokenSource& tokens, int width, std::int32_t end) {
  constexpr std::int64_t kPiece = 1 << 16;
  TokenIndex out;
  out.width = width;
  std::int64_t begin = 0;
  const auto add = [&](std::int64_t until) {
    out.begins.push_back(begin);
    out.lengths.push_back(until - begin);
    out.documents.push_back(std::ssize(out.lengths));
    begin = until;
  };
  for (std::int64_t at = 0; at < tokens.size(); at += kPiece) {
    std::vector<std::int64_t> piece(std::min(kPiece, tokens.size() - at));
    tokens.copy(at, piece);
    for (std::size_t i = 0; i < piece.size(); ++i)
      if (piece[i] == end) add(at + static_cast<std::int64_t>(i) + 1);
  }
  if (begin < tokens.size()) add(tokens.size());
  return out;
}

}  // namespace

bool is_token_file(const std::string& path) {
  return path.ends_with(".bin");
}

TokenIndex parse_token_index(std::span<const std::byte> content, const std::string& file, std::int64_t bytes) {
  Bytes in(unsealed(content, file), file);
  if (content.size() < kMagic.size() || std::memcmp(content.data(), kMagic.data(), kMagic.size()) != 0)
    in.fail("it does not begin with MMIDIDX");
  in.numbers<char>(kMagic.size());
  if (const auto version = in.number<std::uint64_t>(); version != kVersion) in.fail(concat("it has version ", version));
  const auto kind = in.number<std::uint8_t>();
  if (kind != kUint16 && kind != kInt32) in.fail(concat("its numbers are of kind ", static_cast<int>(kind)));
  TokenIndex out;
  out.width = kind == kUint16 ? 2 : 4;
  const auto sequences = in.number<std::uint64_t>(), documents = in.number<std::uint64_t>();
  for (const std::int32_t length : in.numbers<std::int32_t>(sequences)) out.lengths.push_back(length);
  for (const std::int64_t pointer : in.numbers<std::int64_t>(sequences)) {
    if (pointer % out.width != 0) in.fail(concat("a sequence begins at byte ", pointer, ", inside a token of ", out.width));
    out.begins.push_back(pointer / out.width);
  }
  out.documents = in.numbers<std::int64_t>(documents);
  if (in.left() > 0) in.fail(concat(in.left(), " bytes follow on its last number"));
  check(out, file, bytes);
  return out;
}

std::vector<std::byte> print(const TokenIndex& index) {
  std::vector<std::byte> out;
  for (const char c : kMagic) append(out, c);
  append(out, kVersion);
  append(out, index.width == 2 ? kUint16 : kInt32);
  append(out, static_cast<std::uint64_t>(index.lengths.size()));
  append(out, static_cast<std::uint64_t>(index.documents.size()));
  for (const std::int64_t length : index.lengths) append(out, static_cast<std::int32_t>(length));
  for (const std::int64_t begin : index.begins) append(out, begin * index.width);
  for (const std::int64_t first : index.documents) append(out, first);
  const std::uint32_t sum = checksum_of(out);
  for (const char c : kSeal) append(out, c);
  append(out, sum);
  return out;
}

TokenFile::TokenFile(SteadyFile file, int width, std::int64_t vocabulary) : file_(std::move(file)), width_(width), vocabulary_(vocabulary) {
  if (file_.size() == 0) throw Error(concat(file_.path(), " is empty"));
  if (file_.size() % width != 0)
    throw Error(concat(file_.path(), " has ", file_.size(), " bytes, no multiple of ", width, ", the bytes of a token"), {},
                "it was cut off, or is no file of tokens");
}

void TokenFile::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  invariant(begin >= 0 && begin + std::ssize(out) <= size(), "tokens that are there are asked for");
  std::vector<std::byte> bytes(out.size() * static_cast<std::size_t>(width_));
  SteadyFile::Reading(file_).read(begin * width_, bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t token = 0;
    std::memcpy(&token, bytes.data() + i * static_cast<std::size_t>(width_), static_cast<std::size_t>(width_));
    if (token >= vocabulary_)
      throw Error(
          concat(file_.path(), ": token ", begin + static_cast<std::int64_t>(i), " is ", token, ", and the tokenizer has ", vocabulary_),
          {}, "data.tokenizer names the one that made the file");
    out[i] = token;
  }
}

OpenedTokens open_tokens(const std::string& path, const Tokenizer& tokenizer) {
  OpenedTokens out;
  const SteadyFile& file = out.files.emplace_back(path);
  const std::string beside = index_path(path);
  if (std::error_code ignored; std::filesystem::exists(beside, ignored)) {
    const std::string content = read_all(out.files.emplace_back(beside));
    out.index = parse_token_index(std::as_bytes(std::span(content)), beside, out.files.front().size());
    out.tokens = std::make_unique<TokenFile>(out.files.front(), out.index.width, tokenizer.size());
    return out;
  }
  const std::optional<std::int32_t> end = tokenizer.end_of_text();
  if (!end)
    throw Error(concat(path, " has no index ", beside, ", and the tokenizer no token that ends a document"), {},
                "data.tokenizer names the one that made the file; penstock data tokens writes files with an index");
  const int width = width_for(tokenizer.size());
  out.tokens = std::make_unique<TokenFile>(file, width, tokenizer.size());
  out.index = index_by_ends(*out.tokens, width, *end);
  return out;
}

TokenFileWriter::TokenFileWriter(const std::string& path, std::int64_t vocabulary) : tokens_(path), index_file_(index_path(path)) {
  if (!is_token_file(path)) throw Error(concat(path, " is no name of a file of tokens"), {}, "it ends with .bin");
  index_.width = width_for(vocabulary);
}

void TokenFileWriter::add(const std::vector<std::vector<std::int64_t>>& document) {
  std::vector<std::byte> bytes;
  for (const std::vector<std::int64_t>& sequence : document) {
    index_.begins.push_back(index_.lengths.empty() ? 0 : index_.begins.back() + index_.lengths.back());
    index_.lengths.push_back(std::ssize(sequence));
    for (const std::int64_t token : sequence) {
      const std::span<const std::byte> number = std::as_bytes(std::span(&token, 1)).first(static_cast<std::size_t>(index_.width));
      bytes.insert(bytes.end(), number.begin(), number.end());
    }
  }
  index_.documents.push_back(std::ssize(index_.lengths));
  tokens_.write(bytes);
}

void TokenFileWriter::commit() {
  tokens_.commit();
  index_file_.write(print(index_));
  index_file_.commit();
}

}  // namespace penstock
