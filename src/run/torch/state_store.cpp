// SPDX-License-Identifier: Apache-2.0
#include "torch/state_store.h"

#include <algorithm>
#include <set>

#include "torch/device.h"

namespace penstock {

std::byte* StateStore::find(const Slot& slot) const {
  std::byte* begin = nullptr;
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    auto entry = entries_.find(slot.names[i]);
    if (entry == entries_.end() || entry->second.type != slot.parts[i] || entry->second.leaves) return nullptr;
    if (i == 0) begin = entry->second.data;
    if (entry->second.data != begin + part_offset(slot, i)) return nullptr;
  }
  return begin;
}

// The memory that the parts leave (`left`) is to stay until the copies are done.
void StateStore::move(const Slot& slot, const std::shared_ptr<Arena>& block, std::byte* address,
                      std::vector<std::shared_ptr<Arena>>& left) {
  for (std::size_t i = 0; i < slot.parts.size(); ++i) {
    Entry& entry = entries_[slot.names[i]];
    std::byte* data = address + part_offset(slot, i);
    if (entry.data && entry.type == slot.parts[i])
      copy_bytes({data, lies_on()}, {entry.data, lies_on()}, static_cast<std::size_t>(entry.type.bytes()));
    if (entry.block) left.push_back(std::move(entry.block));
    entry = {block, data, slot.parts[i]};
  }
}

std::int64_t StateStore::bytes_to_place(const DeviceProgram& device) const {
  std::int64_t bytes = 0;
  for (const Slot& slot : device.slots)
    if (has(slot) && !find(slot)) bytes += slot_bytes(slot);
  return bytes;
}

void StateStore::place(const DeviceProgram& device, std::vector<std::byte*>& addresses) {
  std::vector<std::size_t> homeless;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < device.slots.size(); ++i) {
    const Slot& slot = device.slots[i];
    if (!has(slot)) continue;
    addresses[i] = find(slot);
    if (addresses[i]) continue;
    homeless.push_back(i);
    bytes += slot_bytes(slot);
  }
  if (homeless.empty()) return;
  std::ranges::stable_sort(homeless, {}, [&](std::size_t i) { return device.slots[i].offset; });
  auto block = std::make_shared<Arena>(holds_ == Holds::state ? Arena(bytes, device_) : Arena::beside(bytes, device_));
  std::byte* next = block->data();
  std::vector<std::shared_ptr<Arena>> left;
  for (std::size_t i : homeless) {
    addresses[i] = next;
    move(device.slots[i], block, next, left);
    next += slot_bytes(device.slots[i]);
  }
  synchronise(device_);
  ++placed_;
}

void StateStore::forget(const std::vector<std::string>& names) {
  for (const std::string& name : names) entries_.erase(name);
  std::map<const Arena*, std::int64_t> used;
  for (const auto& [name, entry] : entries_) used[entry.block.get()] += entry.type.bytes();
  for (auto& [name, entry] : entries_) entry.leaves = 2 * used.at(entry.block.get()) < entry.block->bytes();
}

SharedTensor StateStore::share(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || !lies_on().is_cpu()) return {};
  return {entry->second.type, {entry->second.block, entry->second.data}};
}

std::int64_t StateStore::bytes() const {
  std::set<const Arena*> blocks;
  std::int64_t sum = 0;
  for (const auto& [name, entry] : entries_)
    if (blocks.insert(entry.block.get()).second) sum += entry.block->bytes();
  return sum;
}

}  // namespace penstock
