// SPDX-License-Identifier: Apache-2.0
// Kernels whose text is made as the program runs, by the host's compiler that built the stand-in.
#pragma once

#include <string>

namespace penstock::standin {

// All that what is compiled depends on beside the text. Throws c10::Error where the compiler, or a header of the kernels, is not there.
std::string compiler();
// The bytes of a library with the text's kernel "chain". Throws c10::Error with what the compiler says.
std::string compile(const std::string& text);
// For launch_kernel. Throws c10::Error for what is no such library.
void* load_kernel(const std::string& image, const char* name);

}  // namespace penstock::standin
