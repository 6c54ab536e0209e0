// SPDX-License-Identifier: Apache-2.0
#include "report/png.h"

#include <zlib.h>

#include <string_view>

#include "base/invariant.h"

namespace penstock {
namespace {

constexpr std::size_t kColourBytes = 3;

void add_big_endian(std::string& out, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift & 0xff);
}

const Bytef* bytes_of(const std::string& text) {
  return reinterpret_cast<const Bytef*>(text.data());
}

// In zlib's format, as the bytes are.
std::string stored(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  const int failure = compress2(reinterpret_cast<Bytef*>(out.data()), &size, bytes_of(bytes), bytes.size(), Z_NO_COMPRESSION);
  invariant(failure == Z_OK, "zlib has the room that it asks for");
  out.resize(size);
  return out;
}

void add_chunk(std::string& out, std::string_view type, std::string_view content) {
  add_big_endian(out, static_cast<std::uint32_t>(content.size()));
  const std::string checked = std::string(type) + std::string(content);
  out += checked;
  add_big_endian(out, static_cast<std::uint32_t>(crc32_z(0, bytes_of(checked), checked.size())));
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
