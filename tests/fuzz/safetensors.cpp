// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <cstdint>
#include <cstring>
#include <span>

#include "base/invariant.h"
#include "penstock/error.h"

using namespace penstock;

namespace {

// Every tensor that comes back can be read.
void read(std::span<const std::byte> content) {
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> metadata;
  try {
    tensors = parse_safetensors(content, content.size(), "fuzz.safetensors", &metadata);
  } catch (const Error&) {
    return;
  }
  for (const auto& [name, tensor] : tensors) {
    const bool inside =
        tensor.begin >= 8 && tensor.begin <= std::ssize(content) && tensor.type.bytes() <= std::ssize(content) - tensor.begin;
    invariant(inside, "a tensor's bytes lie outside the file");
  }
}

}  // namespace

// The input as a file; and, as a changed length hides all that follows, the input after its first eight bytes as the header of one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> content = std::as_bytes(std::span(data, size));
  read(content);
  if (size < 8) return 0;
  const std::span<const std::byte> header = content.subspan(8);
  const std::uint64_t length = header.size();
  std::vector<std::byte> framed(sizeof length);
  std::memcpy(framed.data(), &length, sizeof length);
  framed.insert(framed.end(), header.begin(), header.end());
  framed.resize(framed.size() + 24);  // the bytes of the tensors in the corpus
  read(framed);
  return 0;
}
