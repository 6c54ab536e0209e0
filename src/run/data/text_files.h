// SPDX-License-Identifier: Apache-2.0
// The files of a text that a run reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/steady_file.h"

namespace penstock {

struct TextFiles {
  std::vector<SteadyFile> files;
  std::int64_t skipped = 0;  // files of folders that are no text
};
// Takes files and, recursively, the text files of folders in the order of their names; hidden files and build folders are left out. Throws
// Error: unreadable, a named file that is empty or no text.
TextFiles open_text(const std::vector<std::string>& paths);

// A hash of the files' names, sizes and contents; of more than 64 MiB only pieces are hashed, spread evenly.
std::uint64_t hash_of(const std::vector<SteadyFile>& files);

}  // namespace penstock
