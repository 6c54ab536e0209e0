// SPDX-License-Identifier: Apache-2.0
// A driver without a card, which writes down what it is asked for. Handles are names.
#include <cstdint>
#include <cstring>
#include <string>

namespace {

std::string calls;
constexpr int kInvalidValue = 1, kInvalidImage = 200, kNotFound = 500;

}  // namespace

extern "C" {

const char* fake_driver_calls() {
  return calls.c_str();
}

int cuInit(unsigned) {
  calls = "init";
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kInvalidValue   ? "CUDA_ERROR_INVALID_VALUE"
          : error == kInvalidImage ? "CUDA_ERROR_INVALID_IMAGE"
                                   : "CUDA_ERROR_NOT_FOUND";
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == kInvalidValue ? "invalid argument" : nullptr;
  return error == kInvalidValue ? 0 : kInvalidValue;
}

int cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**, unsigned) {
  if (std::strcmp(static_cast<const char*>(image), "image") != 0) return kInvalidImage;
  *library = const_cast<void*>(image);
  calls += ", load";
  return 0;
}

int cuLibraryUnload(void*) {
  calls += ", unload";
  return 0;
}

int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  if (std::strcmp(static_cast<const char*>(library), "image") != 0 || std::strcmp(name, "twice") != 0) return kNotFound;
  static char handle[] = "twice";
  *kernel = handle;
  return 0;
}

// Writes down the launch of a kernel with arguments (pointer, int64_t, int, float, bool), as the test gives them.
int cuLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  if (x == 0 || y == 0 || threads_x == 0 || z != 1 || threads_y != 1 || threads_z != 1 || shared != 0 || extra) return kInvalidValue;
  calls += ", " + std::string(static_cast<const char*>(kernel)) + " " + std::to_string(x) + "x" + std::to_string(y) + "x" +
           std::to_string(threads_x) + " on " + static_cast<const char*>(stream) + ": " +
           (*static_cast<void**>(arguments[0]) ? "memory " : "null ") + std::to_string(*static_cast<std::int64_t*>(arguments[1])) + " " +
           std::to_string(*static_cast<int*>(arguments[2])) + " " + std::to_string(*static_cast<float*>(arguments[3])) + " " +
           std::to_string(static_cast<int>(*static_cast<bool*>(arguments[4])));
  return 0;
}

}  // extern "C"
