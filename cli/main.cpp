#include "penstock/run.h"

int main(int argc, char** argv) {
  return penstock::run(argc, argv);
}
