#include <cstdio>
#include <cstdlib>

#include "penstock/run.h"

// libtorch takes back what it registered, one by one, where a process ends by its end of main: a fifth of the time of a command with one
// step. Everything of ours has ended by then, so only what is buffered is left to write.
int main(int argc, char** argv) {
  const int code = penstock::run(argc, argv);
  std::fflush(nullptr);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they report what they found behind main
  std::quick_exit(code);
#endif
  return code;
}
