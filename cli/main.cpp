// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "base/sanitizer.h"
#include "penstock/run.h"

// libtorch takes back what it registered, one by one, where a process ends by its end of main: a fifth of the time of a command with one
// step. Everything of ours has ended by then, so only what is buffered is left to write.
int main(int argc, char** argv) {
  const int code = penstock::run(argc, argv);
  std::fflush(nullptr);
  if constexpr (penstock::kSanitizer == penstock::Sanitizer::none) std::quick_exit(code);  // they report what they found behind main
  return code;
}
