// SPDX-License-Identifier: Apache-2.0
#include "driver/holders.h"

#include <algorithm>
#include <iterator>

#include "program/piece.h"
#include "program/state_parts.h"

namespace penstock {

void Holders::load(std::uint64_t key, const Program& program) {
  Loaded& loaded = programs_[key];
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    const DeviceProgram& device = program.devices[d];
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        if (holds_state(slot.kind)) loaded.holders[parse_piece(name).tensor].emplace(d, name);
    for (const Instruction& instruction : device.instructions)
      for (const SlotId slot : checks::states_written(device, instruction))
        for (const std::string& name : device.slots[slot].names) loaded.updated.insert(parse_piece(name).tensor);
  }
  for (const auto& [tensor, parts] : loaded.holders) {
    std::set<Part>& known = holders_[tensor];
    if (std::ranges::includes(known, parts)) continue;
    ++changes_;
    if (!known.empty()) std::ranges::set_difference(parts, known, std::inserter(behind_[tensor], behind_[tensor].end()));
    known.insert(parts.begin(), parts.end());
  }
}

void Holders::stepped(std::uint64_t key) {
  Loaded& loaded = programs_.at(key);
  if (loaded.known != changes_) {
    loaded.elsewhere.clear();
    for (const std::string& tensor : loaded.updated) {
      std::set<Part> others;
      std::ranges::set_difference(holders_.at(tensor), loaded.holders.at(tensor), std::inserter(others, others.end()));
      if (!others.empty()) loaded.elsewhere[tensor] = std::move(others);
    }
    loaded.known = changes_;
  }
  for (const auto& [tensor, parts] : loaded.elsewhere) behind_[tensor].insert(parts.begin(), parts.end());
}

// Parts that no loaded program has are not set.
void Holders::set(const std::string& tensor) {
  std::set<Part>& behind = behind_[tensor];
  if (const auto known = holders_.find(tensor); known != holders_.end()) behind = known->second;
  for (const auto& [key, loaded] : programs_)
    if (const auto parts = loaded.holders.find(tensor); parts != loaded.holders.end())
      for (const Part& part : parts->second) behind.erase(part);
  if (behind.empty()) behind_.erase(tensor);
}

void Holders::set_all() {
  for (const auto& entry : holders_) set(entry.first);
}

void Holders::moved(std::uint64_t key) {
  for (const auto& [tensor, parts] : programs_.at(key).holders) {
    const auto behind = behind_.find(tensor);
    if (behind == behind_.end()) continue;
    for (const Part& part : parts) behind->second.erase(part);
    if (behind->second.empty()) behind_.erase(behind);
  }
}

void Holders::regroup(const std::vector<std::int32_t>& from) {
  programs_.clear();
  ++changes_;
  for (Parts* all : {&holders_, &behind_}) {
    Parts renumbered;
    for (const auto& [tensor, parts] : *all)
      for (std::size_t d = 0; d < from.size(); ++d)
        for (auto part = parts.lower_bound({static_cast<std::size_t>(from[d]), ""});
             from[d] >= 0 && part != parts.end() && part->first == static_cast<std::size_t>(from[d]); ++part)
          renumbered[tensor].emplace(d, part->second);
    *all = std::move(renumbered);
  }
}

void Holders::forget(const std::string& tensor, const Part& part) {
  ++changes_;
  holders_.at(tensor).erase(part);
  if (const auto behind = behind_.find(tensor); behind != behind_.end() && behind->second.erase(part) > 0 && behind->second.empty())
    behind_.erase(behind);
}

std::vector<std::string> Holders::outdated(std::uint64_t key) const {
  const Parts& holders = programs_.at(key).holders;
  std::vector<std::string> out;
  for (const auto& [tensor, parts] : behind_)
    if (const auto here = holders.find(tensor); here != holders.end())
      if (std::ranges::any_of(parts, [&](const Part& part) { return here->second.contains(part); })) out.push_back(tensor);
  return out;
}

bool Holders::is_behind(const std::string& tensor, const Part& part) const {
  const auto found = behind_.find(tensor);
  return found != behind_.end() && found->second.contains(part);
}

std::optional<std::uint64_t> Holders::outdated_in_all(const std::string& tensor) const {
  std::optional<std::uint64_t> found;
  for (const auto& [key, loaded] : programs_) {
    const auto parts = loaded.holders.find(tensor);
    if (parts == loaded.holders.end()) continue;
    if (std::ranges::none_of(parts->second, [&](const Part& part) { return is_behind(tensor, part); })) return {};
    found = key;
  }
  return found;
}

bool Holders::any_has(const std::string& tensor, const Part& part) const {
  return std::ranges::any_of(programs_, [&](const auto& entry) {
    const auto parts = entry.second.holders.find(tensor);
    return parts != entry.second.holders.end() && parts->second.contains(part);
  });
}

}  // namespace penstock
