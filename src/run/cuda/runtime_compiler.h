// SPDX-License-Identifier: Apache-2.0
// Compiles kernels for a card as the program runs, by NVIDIA's NVRTC, which is loaded when it is wanted first. No header of CUDA's is
// needed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cuda {

// kernels.cu, and the headers of kernels (cmake/embed.cmake).
extern const std::string_view kKernelsText, kElementTypeText, kPreludeText, kBlocksText, kChainText;

struct Nvrtc;  // the functions that are used of it

class RuntimeCompiler {
 public:
  // `library`: libnvrtc.so of the CUDA that libtorch was built with. Throws c10::Error where it cannot be loaded.
  explicit RuntimeCompiler(const std::string& library);
  ~RuntimeCompiler();

  // All that a cubin depends on beside the text and the card: NVRTC's version, the options and the headers.
  std::string identity() const;
  // A cubin for cards of this compute capability, 90 for 9.0, in which "chain" is as the text says; `log`, where it is given, is what the
  // compiler says of registers. Multiplications and additions stay two roundings, as in op by op. Throws c10::Error with NVRTC's words.
  std::string compile(const std::string& text, int capability, std::string* log = nullptr) const;
  // Likewise a cubin with all of kernels.cu, for builds without nvcc; it takes seconds.
  std::string compile_own(int capability, std::string* log = nullptr) const;

 private:
  std::string cubin_of(const std::string& text, std::vector<std::string> options, std::string* log) const;

  std::unique_ptr<const Nvrtc> nvrtc_;
};

}  // namespace penstock::cuda
