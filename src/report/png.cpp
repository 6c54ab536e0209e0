#include "report/png.h"

#include <algorithm>
#include <string_view>

#include "base/invariant.h"

namespace penstock {
namespace {

constexpr std::size_t kColourBytes = 3;
constexpr std::size_t kMostStored = 65535;  // bytes of a stored block of deflate

void add_big_endian(std::string& out, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift & 0xff);
}

void add_little_endian(std::string& out, std::size_t half_word) {
  out += static_cast<char>(half_word & 0xff);
  out += static_cast<char>(half_word >> 8 & 0xff);
}

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

std::uint32_t adler32(std::string_view bytes) {
  constexpr std::uint32_t kPrime = 65521;
  std::uint32_t a = 1, b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<std::uint8_t>(byte)) % kPrime;
    b = (b + a) % kPrime;
  }
  return b << 16 | a;
}

// zlib's format with blocks that are stored as they are.
std::string stored(std::string_view bytes) {
  std::string out = "\x78\x01";
  for (std::size_t begin = 0; begin < bytes.size(); begin += kMostStored) {
    const std::string_view block = bytes.substr(begin, kMostStored);
    out += begin + block.size() == bytes.size() ? '\1' : '\0';
    add_little_endian(out, block.size());
    add_little_endian(out, ~block.size());
    out += block;
  }
  add_big_endian(out, adler32(bytes));
  return out;
}

void add_chunk(std::string& out, std::string_view type, std::string_view content) {
  add_big_endian(out, static_cast<std::uint32_t>(content.size()));
  const std::string checked = std::string(type) + std::string(content);
  out += checked;
  add_big_endian(out, crc32(checked));
}

}  // namespace

std::string png(std::int64_t width, std::int64_t height, std::span<const std::uint8_t> pixels) {
  const std::size_t row = static_cast<std::size_t>(width) * kColourBytes;
  invariant(width > 0 && height > 0 && pixels.size() == row * static_cast<std::size_t>(height), "a picture has all of its pixels");
  std::string header;
  add_big_endian(header, static_cast<std::uint32_t>(width));
  add_big_endian(header, static_cast<std::uint32_t>(height));
  header.append("\x08\x02\0\0\0", 5);  // eight bits, colours, no interlacing
  std::string rows;
  for (std::size_t begin = 0; begin < pixels.size(); begin += row) {
    rows += '\0';  // the row is not filtered
    for (const std::uint8_t value : pixels.subspan(begin, row)) rows += static_cast<char>(value);
  }
  std::string out = "\x89PNG\r\n\x1a\n";
  add_chunk(out, "IHDR", header);
  add_chunk(out, "IDAT", stored(rows));
  add_chunk(out, "IEND", "");
  return out;
}

}  // namespace penstock
