// SPDX-License-Identifier: Apache-2.0
#include "state/weight_files.h"

#include <filesystem>
#include <set>

#include "base/json.h"
#include "base/regular_file.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "penstock/error.h"
#include "state/manifest.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kAgain = "fetch or save the folder again";

// The shard of each tensor, as the index says.
std::map<std::string, std::string> parse_index(const std::string& path) {
  const JsonFile file{path, kAgain};
  const nlohmann::json document = parse_json(read_file(path), file);
  const JsonNode root(document, file);
  std::map<std::string, std::string> out;
  root.at("weight_map").each_member([&](const std::string& tensor, const JsonNode& shard) {
    if (!is_plain_name(shard.text())) shard.fail(concat("is ", quote(shard.text()), ", which is no file beside the index"), kAgain);
    out[tensor] = shard.text();
  });
  return out;
}

std::map<std::string, std::string> files_of_shards(const std::string& index) {
  const std::map<std::string, std::string> shards = parse_index(index);
  const fs::path folder = fs::path(index).parent_path();
  std::set<std::string> names;
  for (const auto& [tensor, shard] : shards) names.insert(shard);
  std::map<std::string, std::string> out;
  for (const std::string& name : names) {
    const std::string file = (folder / name).string();
    if (!is_there(file)) throw Error(concat(file, " is not there"), {concat(index, " names it")}, kAgain);
    const SafetensorsFile opened = SafetensorsFile::open(file);
    for (const auto& [tensor, ignored] : opened.tensors())
      if (const auto [other, fresh] = out.emplace(tensor, file); !fresh)
        throw Error(concat("tensor ", quote(tensor), " is in two files"), {other->second, file}, kAgain);
  }
  for (const auto& [tensor, shard] : shards)
    if (const auto found = out.find(tensor); found == out.end() || found->second != (folder / shard).string())
      throw Error(concat((folder / shard).string(), " has no tensor ", quote(tensor)), {concat(index, " says that it is there")}, kAgain);
  return out;
}

std::map<std::string, std::string> files_of_one(const std::string& file) {
  std::map<std::string, std::string> out;
  const SafetensorsFile opened = SafetensorsFile::open(file);
  for (const auto& [tensor, ignored] : opened.tensors()) out[tensor] = file;
  return out;
}

}  // namespace

bool is_pretrained(const std::string& path) {
  const fs::path place(path);
  if (place.filename() == kIndex) return true;
  return is_there(place / kOneFile) || is_there(place / kIndex) || is_there(place / kConfig);
}

std::map<std::string, std::string> weight_files(const std::string& path) {
  if (fs::path(path).filename() == kIndex) return files_of_shards(path);
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return files_of_one(path);
  const fs::path folder(path);
  if (is_there(folder / kOneFile)) return files_of_one((folder / kOneFile).string());
  if (is_there(folder / kIndex)) return files_of_shards((folder / kIndex).string());
  throw Error(concat(path, " has neither ", kOneFile, " nor ", kIndex), {},
              is_there(folder / "pytorch_model.bin") ? "pytorch_model.bin is not read, as unpickling runs code from it: "
                                                       "AutoModel.from_pretrained(...).save_pretrained(...) writes safetensors"
                                                     : "name the folder that save_pretrained wrote, or a file of it");
}

}  // namespace penstock
