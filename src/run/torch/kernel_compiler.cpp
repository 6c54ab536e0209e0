// SPDX-License-Identifier: Apache-2.0
#include "torch/kernel_compiler.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/durable.h"
#include "base/hash.h"
#include "base/text.h"
#include "penstock/error.h"
#include "torch/device.h"

namespace penstock {
namespace {

// Why another user may change what lies there; empty: none may.
std::string why_not_private(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return "it cannot be looked at";
  if (status.st_uid != getuid()) return concat("it belongs to another user (number ", status.st_uid, ")");
  return status.st_mode & 022 ? "other users may write to it" : "";
}

std::string checked_folder() {
  const char* const given = std::getenv("PENSTOCK_CACHE");
  const std::string folder = given ? given : "";
  if (folder.empty() || folder == "off") return {};
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(folder).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (!error && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) error = std::error_code(errno, std::generic_category());
  const std::string why = error ? error.message() : why_not_private(folder);
  if (!why.empty())
    throw Error(concat("cannot keep kernels in ", folder), {why},
                "PENSTOCK_CACHE names a folder of the user's that can be made and written to by nobody else: chmod go-w");
  return folder;
}

// A file: its key's length, the key, the image, and the hash of the two.
std::string entry_of(const std::string& key, const std::string& image) {
  Hash hash;
  hash.add(key);
  hash.add(image);
  return concat("penstock kernel 1 ", key.size(), " ", hex(hash.value()), "\n", key, image);
}

std::optional<std::string> image_in(const std::string& path, const std::string& key) {
  std::error_code none;
  if (!std::filesystem::exists(path, none) || !why_not_private(path).empty()) return {};
  const std::string entry = read_file(path), head = entry.substr(0, entry.find('\n') + 1);
  if (entry.size() < head.size() + key.size()) return {};
  const std::string image = entry.substr(head.size() + key.size());
  return entry == entry_of(key, image) ? std::optional(image) : std::nullopt;
}

}  // namespace

KernelCompiler::KernelCompiler(c10::Device device) : device_(device), functions_(functions_of(device)) {
  if (!functions_) throw Error("fuse is for devices that compile kernels, and the device is cpu", {}, "device=\"cuda\", or without fuse");
  try {
    compiler_ = functions_->compiler(device);
    folder_ = checked_folder();
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE("run.fuse: chains of ops stay single ops: ", error.what_without_backtrace());
  }
}

std::string KernelCompiler::image_of(const std::string& text) {
  const std::string key = concat(compiler_, "\n", text);
  if (folder_.empty()) return functions_->compile(text, device_);
  Hash hash;
  hash.add(key);
  const std::string path = concat(folder_, "/kernel-", hex(hash.value()));
  if (const std::optional<std::string> kept = image_in(path, key)) return *kept;
  const std::string image = functions_->compile(text, device_);
  write_file(path, entry_of(key, image));
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return image;
}

void* KernelCompiler::kernel(const std::string& text, const char* name) {
  if (compiler_.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  auto entry = known_.find(text);
  if (entry == known_.end()) entry = known_.emplace(text, functions_->load_kernel(image_of(text), name)).first;
  return entry->second;
}

std::vector<std::string> KernelCompiler::texts() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [text, kernel] : known_) out.push_back(text);
  return out;
}

}  // namespace penstock
