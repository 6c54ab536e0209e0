// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_checkpoints.h"

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/text.h"
#include "cli/output.h"
#include "penstock/error.h"
#include "state/checkpoint.h"

namespace penstock {
namespace {

struct Finding {
  std::string folder;
  Checkpoint checkpoint;  // set where it is intact
  std::string damage;
};

Finding look_at(const std::string& folder) {
  try {
    return {folder, read_checkpoint(folder), ""};
  } catch (const Error& error) {
    return {folder, {}, error.what()};
  }
}

std::size_t count_files(const Checkpoint& checkpoint) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : checkpoint.files) files.insert(file);
  return files.size();
}

nlohmann::ordered_json json_of(const Finding& found) {
  nlohmann::ordered_json out = {{"folder", found.folder}, {"intact", found.damage.empty()}};
  if (found.damage.empty()) {
    out["step"] = found.checkpoint.step;
    out["tensors"] = found.checkpoint.files.size();
    out["files"] = count_files(found.checkpoint);
  } else {
    out["damage"] = found.damage;
  }
  return out;
}

std::string text_of(const Finding& found) {
  if (!found.damage.empty()) return concat(found.folder, ": DAMAGED\n  ", found.damage, "\n");
  return concat(found.folder, ": intact, step ", found.checkpoint.step, ", ", found.checkpoint.files.size(), " tensors or pieces in ",
                count_files(found.checkpoint), " files\n");
}

}  // namespace

bool verify_checkpoints(const std::string& folder, bool json) {
  std::vector<std::string> folders;
  for (const auto& [step, each] : checkpoint_folders(folder)) folders.push_back(each);
  if (folders.empty()) folders = {folder};
  std::error_code ignored;
  if (folders[0] == folder && !std::filesystem::exists(std::filesystem::path(folder) / "manifest.json", ignored))
    throw Error(concat("no checkpoint in ", folder), {}, "name a run's folder or one of its checkpoint-STEP folders");
  nlohmann::ordered_json out = {{"kind", "checkpoints"}, {"intact", true}, {"checkpoints", nlohmann::json::array()}};
  for (const std::string& each : folders) {
    const Finding found = look_at(each);
    out["checkpoints"].push_back(json_of(found));
    if (!found.damage.empty()) out["intact"] = false;
    if (!json) std::cout << text_of(found);
  }
  if (json) print_json(out);
  return out["intact"];
}

}  // namespace penstock
