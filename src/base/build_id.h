// SPDX-License-Identifier: Apache-2.0
// Which build of Penstock something is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

// The linker's build id of this program, or of the library in it that Penstock is, in hexadecimal; its version where it has none.
std::string build_id();

// The facts that a program or a library in a file states about itself.
struct ElfFile {
  std::string build_id;     // the linker's; empty where it has none
  std::uint64_t bytes = 0;  // that the file has where it is whole; of a shorter one, code that is missing would end whoever runs it
};

// None where the file cannot be read, is no ELF file or ends within its headers.
std::optional<ElfFile> read_elf(const std::string& file);

}  // namespace penstock
