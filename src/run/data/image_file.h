// SPDX-License-Identifier: Apache-2.0
// Images in the two formats that need no library: PPM (P6, colours) and PGM (P5, grey), both binary, with one byte for a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/steady_file.h"

namespace penstock {

// Pixels row by row, each with its colours red, green and blue: [size][size][3].
using Pixels = std::vector<std::uint8_t>;

class ImageFile {
 public:
  // Reads the header only. Throws Error: unreadable, another format, another size than `size` x `size`, a file that ends early.
  ImageFile(const std::string& path, std::int64_t size);
  // Grey images have it as all three colours. Throws Error for a file that was changed since.
  Pixels read() const;
  const SteadyFile& file() const { return file_; }

 private:
  SteadyFile file_;
  std::int64_t size_, begin_ = 0;  // of the pixels in the file
  bool is_grey_ = false;
};

}  // namespace penstock
