// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "torch/kernel.h"

namespace penstock {
namespace {

std::map<std::string_view, const Kernel*> make_index() {
  std::map<std::string_view, const Kernel*> index;
  for (auto family :
       {elementwise_kernels(), activation_kernels(), reduction_kernels(), shape_kernels(), product_kernels(), convolution_kernels(),
        normalisation_kernels(), attention_kernels(), embedding_kernels(), loss_kernels(), random_kernels(), optimiser_kernels()})
    for (const Kernel& kernel : family) index.emplace(kernel.name, &kernel);
  return index;
}

}  // namespace

const Kernel* find_kernel(std::string_view name) {
  static const auto index = make_index();
  auto it = index.find(name);
  return it == index.end() ? nullptr : it->second;
}

}  // namespace penstock
