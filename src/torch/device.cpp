#include "torch/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr const char* kStandin = "libpenstock_standin.so";

// The library lies beside what this function is linked into, the program's backend or a test, or, as it is built, one or two folders above.
const GraphFunctions* load_standin() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&load_standin), &here);
  std::filesystem::path folder = std::filesystem::absolute(here.dli_fname ? here.dli_fname : "").parent_path();
  std::error_code none;
  for (int above = 0; above < 2 && !std::filesystem::exists(folder / kStandin, none); ++above) folder = folder.parent_path();
  const std::filesystem::path path = folder / kStandin;
  if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
    return reinterpret_cast<const GraphFunctions* (*)()>(dlsym(library, "penstock_graph_functions"))();
  throw Error(concat("cannot load ", kStandin, ", which is the device ", quote("standin")), {dlerror()},
              "it is built with the tests (make test)");
}

const GraphFunctions* standin_graphs() {
  static const GraphFunctions* const loaded = load_standin();
  return loaded;
}

at::Tensor bytes_at(const Memory& memory, std::size_t bytes) {
  return at::from_blob(memory.data, {static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(memory.device));
}

}  // namespace

c10::Device open_device(const std::string& name) {
  if (name == "cpu") return c10::DeviceType::CPU;
  if (name != "standin") throw Error(concat("there is no device ", quote(name)), {}, "cpu or standin");
  standin_graphs();
  return {c10::DeviceType::PrivateUse1, 0};
}

const GraphFunctions* graphs_of(c10::Device device) {
  return device.is_cpu() ? nullptr : standin_graphs();
}

void copy_bytes(const Memory& to, const Memory& from, std::size_t bytes) {
  if (bytes == 0) return;
  if (to.device.is_cpu() && from.device.is_cpu())
    std::memcpy(to.data, from.data, bytes);
  else
    bytes_at(to, bytes).copy_(bytes_at(from, bytes), true);
}

void synchronise(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace penstock
