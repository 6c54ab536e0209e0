// SPDX-License-Identifier: Apache-2.0
// compile_text NVRTC CAPABILITY FILE|own OUT: compiles a generated kernel's text, or our own kernels, to a cubin, and prints what the
// compiler says.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "cuda/runtime_compiler.h"

int main(int count, char** arguments) {
  if (count != 5) return 2;
  try {
    std::ostringstream text;
    text << std::ifstream(arguments[3]).rdbuf();
    const penstock::cuda::RuntimeCompiler compiler(arguments[1]);
    std::string log;
    const int capability = std::atoi(arguments[2]);
    std::ofstream(arguments[4]) << (std::string(arguments[3]) == "own" ? compiler.compile_own(capability, &log)
                                                                       : compiler.compile(text.str(), capability, &log));
    std::cout << compiler.identity().substr(0, compiler.identity().find('\n')) << "\n" << log;
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
}
