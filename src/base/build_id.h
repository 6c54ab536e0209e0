// Which build of Penstock something is.
#pragma once

#include <string>

namespace penstock {

// The linker's build id of this program, or of the library in it that Penstock is, in hexadecimal; its version where it has none.
std::string build_id();

// The linker's build id of the program or library in a file; empty where it has none, or cannot be read.
std::string build_id_of(const std::string& file);

}  // namespace penstock
