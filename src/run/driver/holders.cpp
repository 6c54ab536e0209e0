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
      for (const std::string& name : slot.names) loaded.holders[parse_piece(name).tensor].insert(d);
    for (const Instruction& instruction : device.instructions)
      for (const SlotId slot : checks::states_written(device, instruction))
        for (const std::string& name : device.slots[slot].names) loaded.updated.insert(parse_piece(name).tensor);
  }
  for (const auto& [tensor, devices] : loaded.holders) {
    std::set<std::size_t>& known = holders_[tensor];
    if (std::ranges::includes(known, devices)) continue;
    ++changes_;
    if (!known.empty()) std::ranges::set_difference(devices, known, std::inserter(behind_[tensor], behind_[tensor].end()));
    known.insert(devices.begin(), devices.end());
  }
}

void Holders::stepped(std::uint64_t key) {
  Loaded& loaded = programs_.at(key);
  if (loaded.known != changes_) {
    loaded.elsewhere.clear();
    for (const std::string& tensor : loaded.updated) {
      std::set<std::size_t> others;
      std::ranges::set_difference(holders_.at(tensor), loaded.holders.at(tensor), std::inserter(others, others.end()));
      if (!others.empty()) loaded.elsewhere[tensor] = std::move(others);
    }
    loaded.known = changes_;
  }
  for (const auto& [tensor, devices] : loaded.elsewhere) behind_[tensor].insert(devices.begin(), devices.end());
}

std::vector<std::string> Holders::outdated(std::uint64_t key) const {
  const Devices& holders = programs_.at(key).holders;
  std::vector<std::string> out;
  for (const auto& [tensor, devices] : behind_)
    if (const auto here = holders.find(tensor); here != holders.end())
      if (std::ranges::any_of(devices, [&](std::size_t device) { return here->second.contains(device); })) out.push_back(tensor);
  return out;
}

std::vector<std::string> Holders::outdated() const {
  std::vector<std::string> out;
  for (const auto& entry : behind_) out.push_back(entry.first);
  return out;
}

std::set<std::size_t> Holders::behind(const std::string& tensor) const {
  const auto found = behind_.find(tensor);
  return found == behind_.end() ? std::set<std::size_t>() : found->second;
}

}  // namespace penstock
