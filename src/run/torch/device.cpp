// SPDX-License-Identifier: Apache-2.0
#include "torch/device.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/device_name.h"
#include "base/machine.h"
#include "base/text.h"
#include "base/words.h"
#include "driver/ranks.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// A device whose library makes libtorch know it.
struct Library {
  const char* file;
  const char* absent;  // what to do where there is no such file
  const char* broken;  // where it cannot be loaded
};

constexpr Library kCuda = {"libpenstock_cuda.so",
                           "it is built with a libtorch for CUDA: name a Python that has one in PENSTOCK_PYTHON, and build again",
                           "libtorch for CUDA needs NVIDIA's libraries: pip install torch, with all that it depends on"};
constexpr Library kStandin = {"libpenstock_standin.so", "it is built with the tests (make test)", "build it again (make test)"};

// The library lies beside what this function is linked into, the program's backend or a test, or, as it is built, one or two folders above.
const DeviceFunctions* load(const Library& library, const char* name) {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&load), &here);
  std::filesystem::path folder = std::filesystem::absolute(here.dli_fname ? here.dli_fname : "").parent_path();
  std::error_code none;
  for (int above = 0; above < 2 && !std::filesystem::exists(folder / library.file, none); ++above) folder = folder.parent_path();
  const std::filesystem::path path = folder / library.file;
  if (!std::filesystem::exists(path, none))
    throw Error(concat("this build has no device ", quote(name)), {concat("there is no ", library.file)}, library.absent);
  if (void* const loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
    return reinterpret_cast<const DeviceFunctions* (*)()>(dlsym(loaded, "penstock_device_functions"))();
  throw Error(concat("cannot load ", library.file, ", which is the device ", quote(name)), {dlerror()}, library.broken);
}

const DeviceFunctions& loaded(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) {
    static const DeviceFunctions* const cuda = load(kCuda, "cuda");
    return *cuda;
  }
  static const DeviceFunctions* const standin = load(kStandin, "standin");
  return *standin;
}

c10::Device open_card(std::optional<int> wanted) {
  const DeviceFunctions& functions = loaded(c10::DeviceType::CUDA);
  const int count = functions.count();
  if (count == 0)
    throw Error("there is no CUDA device", {functions.why_none()}, "--device cpu, or a machine with an NVIDIA GPU and its driver");
  const int card = chosen_card(wanted, count, [](const char* name) -> const char* { return std::getenv(name); });
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // its allocator
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(card)};
}

}  // namespace

int chosen_card(std::optional<int> wanted, int count, const std::function<const char*(const char*)>& get) {
  const bool is_given_one = count == 1 && get("CUDA_VISIBLE_DEVICES");
  const int card = wanted ? *wanted : is_given_one ? 0 : local_rank_from(get);
  if (card < count) return card;
  throw Error(concat("there is no cuda:", card, "; this process sees ", counted(count, "CUDA device")), {},
              wanted ? "they are numbered from 0, as CUDA_VISIBLE_DEVICES orders them"
                     : "each process has the card of its number on this host: start fewer, or name one: --device cuda:0");
}

c10::Device open_device(const std::string& name) {
  const std::optional<DeviceName> wanted = parse_device_name(name);
  if (!wanted) throw Error(concat("there is no device ", quote(name)), {}, join(device_kinds(), ", ") + ", or one card: cuda:1");
  if (is_host(name)) return c10::DeviceType::CPU;
  if (wanted->kind == "cuda") return open_card(wanted->index);
  loaded(c10::DeviceType::PrivateUse1);
  return {c10::DeviceType::PrivateUse1, 0};
}

const DeviceFunctions* functions_of(c10::Device device) {
  return device.is_cpu() ? nullptr : &loaded(device.type());
}

std::string processor_of(c10::Device device) {
  return device.is_cpu() ? processor_name() : functions_of(device)->name(device);
}

at::Tensor bytes_at(const Memory& memory, std::size_t bytes) {
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(memory.device);
  return at::for_blob(memory.data, {static_cast<std::int64_t>(bytes)}).options(options).target_device(memory.device).make_tensor();
}

void copy_bytes(const Memory& to, const Memory& from, std::size_t bytes) {
  if (bytes == 0) return;
  if (to.device.is_cpu() && from.device.is_cpu())
    std::memcpy(to.data, from.data, bytes);
  else
    bytes_at(to, bytes).copy_(bytes_at(from, bytes), true);
}

void zero_bytes(const Memory& memory, std::size_t bytes) {
  if (bytes > 0) bytes_at(memory, bytes).zero_();
}

void synchronise(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace penstock
