#include "cli/kernels.h"

#include "torch/choose.h"

namespace penstock {

void choose_kernels(const Config& config, Program& program) {
  if (config.run.kernels != "own") choose_kernels(program, config.run.kernels);
}

}  // namespace penstock
