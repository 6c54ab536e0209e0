// SPDX-License-Identifier: Apache-2.0
#include "penstock/program.h"
#include "fuzz/fixpoint.h"
#include "program/verify.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto program = fuzz::read_back(
      fuzz::as_text(data, size), [](std::string_view text) { return parse_program(text); }, [](const Program& p) { return print(p); });
  if (!program) return 0;
  for (const ChannelModel model : {ChannelModel::tagged, ChannelModel::serial}) {
    try {
      verify(*program, {model, -1});
    } catch (const Error&) {
    }
  }
  return 0;
}
