// SPDX-License-Identifier: Apache-2.0
#include "torch/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr int kOldest = 21800;  // the first whose communicators share nothing unless asked, and that knows all of NcclConfig

std::string version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

NcclLibrary load_nccl(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error("cannot load NCCL, which backend nccl sends tensors with", {dlerror()},
                "install NCCL, set PENSTOCK_NCCL to its libnccl.so.2, or take --backend gloo");
  NcclLibrary out;
  const auto take = [&]<class F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (!function) throw Error(concat(path, " has no function ", name), {}, "set PENSTOCK_NCCL to the libnccl.so.2 of NCCL 2.18 or later");
  };
  take(out.get_version, "ncclGetVersion");
  int version = 0;
  out.get_version(&version);
  if (version < kOldest)
    throw Error(concat(path, " is NCCL ", version_text(version), ", which is too old"), {},
                concat("2.18 or later; set PENSTOCK_NCCL to one"));
  take(out.get_error_string, "ncclGetErrorString");
  take(out.get_last_error, "ncclGetLastError");
  take(out.get_unique_id, "ncclGetUniqueId");
  take(out.init_rank, "ncclCommInitRankConfig");
  take(out.abort, "ncclCommAbort");
  take(out.get_async_error, "ncclCommGetAsyncError");
  take(out.group_start, "ncclGroupStart");
  take(out.group_end, "ncclGroupEnd");
  take(out.send, "ncclSend");
  take(out.receive, "ncclRecv");
  return out;
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary loaded = [] {
    const char* const given = std::getenv("PENSTOCK_NCCL");
    return load_nccl(given ? given : "libnccl.so.2");
  }();
  return loaded;
}

}  // namespace penstock
