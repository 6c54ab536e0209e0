// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"
#include "fuzz/fixpoint.h"

using namespace penstock;

namespace {

ModelRegistry models() {
  ModelEntry gpt;
  gpt.numbers = {{"layers", 4}, {"width", 128}, {"dropout", 0}};
  gpt.words = {{"activation", "gelu"}};
  return {{"gpt", gpt}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_config(text, "fuzz.toml", {}, models()); },
      [](const Config& config) { return print(config); });
  return 0;
}
