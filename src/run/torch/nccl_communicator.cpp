// SPDX-License-Identifier: Apache-2.0
#include "torch/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/text.h"
#include "devices/executor.h"
#include "torch/stream_lanes.h"

namespace penstock {
namespace {

// The first member draws the id, the others read it.
NcclId exchange_id(const NcclLibrary& library, c10d::Store& store, const std::string& name, bool is_first,
                   std::chrono::milliseconds longest) {
  NcclId id;
  if (is_first) {
    if (const int result = library.get_unique_id(&id); result != kNcclSuccess)
      throw Error(concat("NCCL draws no unique id: ", library.get_error_string(result)), {library.get_last_error(nullptr)});
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(id.bytes);
    store.set(name, std::vector<std::uint8_t>(bytes, bytes + sizeof id.bytes));
    return id;
  }
  store.wait({name}, longest);
  const std::vector<std::uint8_t> found = store.get(name);
  if (found.size() != sizeof id.bytes) throw Error("an id of NCCL came with another size", {concat(found.size(), " bytes")});
  std::memcpy(id.bytes, found.data(), found.size());
  return id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, c10d::Store& store, const std::string& name,
                                   const std::vector<std::int32_t>& members, std::size_t own, int blocks, std::chrono::milliseconds longest)
    : library_(library), others_(members), longest_(longest) {
  others_.erase(others_.begin() + static_cast<std::ptrdiff_t>(own));
  NcclId id;
  try {
    id = exchange_id(library, store, name, own == 0, longest);
  } catch (const c10::Error& error) {
    blame(concat("its NCCL id did not come: ", error.what_without_backtrace()));
  }
  NcclConfig config;
  config.max_ctas = blocks;
  const int result = library.init_rank(&handle_, static_cast<int>(members.size()), id, static_cast<int>(own), &config);
  try {
    check(result);
  } catch (...) {
    if (handle_) library.abort(handle_);
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  give_up();
}

void NcclCommunicator::blame(const std::string& why) const {
  throw PeerLost(others_, concat("device ", join_devices(others_, " or "), " was lost"), {why});
}

void NcclCommunicator::check(int result) const {
  const auto end = std::chrono::steady_clock::now() + longest_;
  while (result == kNcclInProgress) {
    if (std::chrono::steady_clock::now() > end)
      blame(concat("NCCL has waited for it for ", std::chrono::duration<double>(longest_).count(), " s"));
    std::this_thread::sleep_for(kPoll);
    int state = kNcclSuccess;
    const int asked = library_.get_async_error(handle_, &state);
    result = asked == kNcclSuccess ? state : asked;
  }
  if (result != kNcclSuccess) blame(concat("NCCL says: ", library_.get_error_string(result), ": ", library_.get_last_error(handle_)));
}

NcclComm* NcclCommunicator::handle() const {
  if (ending_.valid()) blame("what was sent was given up");
  return handle_;
}

void NcclCommunicator::look() const {
  if (ending_.valid()) return;
  int state = kNcclSuccess;
  const int asked = library_.get_async_error(handle_, &state);
  if (asked != kNcclSuccess || (state != kNcclSuccess && state != kNcclInProgress)) check(asked != kNcclSuccess ? asked : state);
}

void NcclCommunicator::give_up() {
  if (!ending_.valid()) ending_ = std::async(std::launch::async, [this] { library_.abort(handle_); });
}

}  // namespace penstock
