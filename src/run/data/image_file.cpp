// SPDX-License-Identifier: Apache-2.0
#include "data/image_file.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/text.h"
#include "models/layers.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::size_t kLongestHeader = 1024;  // bytes, comments included

// The numbers of a header, between which stand blanks and comments that reach from # to the end of the line.
struct Header {
  std::string_view text;
  std::size_t at = 2;  // behind "P5" or "P6"

  std::optional<std::int64_t> number() {
    while (at < text.size() && (std::isspace(static_cast<unsigned char>(text[at])) != 0 || text[at] == '#'))
      at = text[at] == '#' ? std::min(text.find('\n', at), text.size()) : at + 1;
    const std::size_t begin = at;
    std::int64_t out = 0;
    constexpr std::size_t kDigits = 9;
    for (; at < text.size() && at - begin < kDigits && std::isdigit(static_cast<unsigned char>(text[at])) != 0; ++at)
      out = out * 10 + (text[at] - '0');
    return at > begin ? std::optional(out) : std::nullopt;
  }
};

}  // namespace

ImageFile::ImageFile(const std::string& path, std::int64_t size) : file_(path), size_(size) {
  std::string begin(std::min(static_cast<std::size_t>(file_.size()), kLongestHeader), '\0');
  SteadyFile::Reading(file_).read(0, std::as_writable_bytes(std::span(begin)));
  is_grey_ = begin.starts_with("P5");
  Header header{begin};
  const auto width = is_grey_ || begin.starts_with("P6") ? header.number() : std::nullopt;
  const auto height = header.number(), most = header.number();
  if (!width || !height || !most)
    throw Error(concat(path, " is no image that is read here"), {}, "use binary PPM (P6) or PGM (P5): convert IMAGE -depth 8 FILE.ppm");
  if (*most < 1 || *most > 255)
    throw Error(concat(path, " has values up to ", *most), {"one byte for a value is read"}, "convert IMAGE -depth 8 FILE.ppm");
  if (*width != size || *height != size)
    throw Error(concat(path, " is an image of ", *width, " x ", *height, "; the model reads ", size, " x ", size), {},
                concat("scale it, or set model.image_size: convert IMAGE -resize ", size, "x", size, "! FILE.ppm"));
  begin_ = static_cast<std::int64_t>(header.at) + 1;
  const std::int64_t bytes = size * size * (is_grey_ ? 1 : kColours);
  if (file_.size() < begin_ + bytes)
    throw Error(concat(path, " ends early: it has ", std::max<std::int64_t>(file_.size() - begin_, 0), " bytes of pixels, and ", size,
                       " x ", size, is_grey_ ? " in grey" : " in colours", " take ", bytes));
}

Pixels ImageFile::read() const {
  Pixels stored(static_cast<std::size_t>(size_ * size_ * (is_grey_ ? 1 : kColours)));
  SteadyFile::Reading(file_).read(begin_, std::as_writable_bytes(std::span(stored)));
  if (!is_grey_) return stored;
  Pixels out;
  for (const std::uint8_t grey : stored) out.insert(out.end(), static_cast<std::size_t>(kColours), grey);
  return out;
}

}  // namespace penstock
