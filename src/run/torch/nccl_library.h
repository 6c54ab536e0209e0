// SPDX-License-Identifier: Apache-2.0
// NVIDIA's NCCL, which moves tensors between GPUs of different processes, as its library gives it when it is loaded. What is declared here
// are facts of its binary interface from its documentation (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html); nothing is
// linked to it.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

namespace penstock {

// Values of ncclResult_t; all others are errors.
inline constexpr int kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInvalidUsage = 5, kNcclRemoteError = 6, kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;  // of ncclDataType_t: all that is sent are bytes

struct NcclComm;  // what an ncclComm_t points to

// An ncclUniqueId.
struct NcclId {
  char bytes[128] = {};
};

// An ncclConfig_t as of version 2.18. NCCL takes from `size` how much of it there is.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = 0;  // calls return kNcclInProgress where they would wait for a peer
  int cga_cluster_size = INT_MIN, min_ctas = INT_MIN;
  int max_ctas = INT_MIN;  // thread blocks that one operation may take; INT_MIN: as NCCL likes
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 48 && sizeof(NcclId) == 128);

// Streams are void*, as DeviceFunctions::stream_handle gives them. Operations are enqueued on them.
struct NcclLibrary {
  int (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclComm* communicator) = nullptr;
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*init_rank)(NcclComm** communicator, int ranks, NcclId id, int rank, NcclConfig* config) = nullptr;
  int (*abort)(NcclComm* communicator) = nullptr;
  int (*get_async_error)(NcclComm* communicator, int* result) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, NcclComm* communicator, void* stream) = nullptr;
  int (*receive)(void* to, std::size_t count, int type, int peer, NcclComm* communicator, void* stream) = nullptr;
};

// Throws Error: no such library, one without a function of these, or older than 2.18.
NcclLibrary load_nccl(const std::string& path);

// libnccl.so.2 as the system finds it, or the library that PENSTOCK_NCCL names; loaded once. Throws as load_nccl.
const NcclLibrary& nccl_library();

}  // namespace penstock
