// SPDX-License-Identifier: Apache-2.0
// A program with a model that has collectives of its own.
#include "support/exchange_model.h"
#include "penstock/run.h"

int main(int argc, char** argv) {
  return penstock::run(argc, argv, penstock::test::exchange_models());
}
