#include "runtime/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/durable.h"
#include "base/hash.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "runtime/mapped_file.h"
#include "runtime/safetensors.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "penstock checkpoint";
constexpr int kVersion = 1;
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kUnfinished = ".part";  // folders being written or removed

std::string content_hash(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes.size());
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash.add(word);
  }
  for (std::byte byte : bytes) hash.add(static_cast<std::uint64_t>(byte));
  return concat(std::hex, hash.value());
}

// The step of "checkpoint-<step>"; -1 for any other name.
std::int64_t step_of(const std::string& name) {
  std::int64_t step = -1;
  const std::string_view digits = std::string_view(name).substr(std::min(name.size(), std::strlen(kPrefix)));
  if (!name.starts_with(kPrefix) || digits.empty()) return -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return error == std::errc() && end == digits.data() + digits.size() ? step : -1;
}

fs::path folder_of(const std::string& out, std::int64_t step) {
  return fs::path(out) / concat(kPrefix, step);
}

// A folder goes in two steps too, so that half of one never carries the name.
void remove_whole(const fs::path& folder) {
  const fs::path part = folder.string() + kUnfinished;
  std::error_code ignored;
  fs::remove_all(part, ignored);
  fs::rename(folder, part, ignored);
  fs::remove_all(part, ignored);
}

void remove_unfinished(const std::string& out) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kUnfinished)) fs::remove_all(entry.path(), ignored);
  }
}

json manifest_of(const Checkpoint& info, const fs::path& folder, const std::vector<std::string>& names) {
  json files = json::object(), tensors = json::object();
  for (const std::string& name : names) {
    const std::string path = (folder / name).string();
    const MappedFile file(path);
    files[name] = {{"bytes", file.bytes().size()}, {"hash", content_hash(file.bytes())}};
    for (const auto& [tensor, ignored] : parse_safetensors(file.bytes(), path)) tensors[tensor] = name;
  }
  return {{"format", kFormat},     {"version", kVersion}, {"step", info.step}, {"position", info.position},
          {"config", info.config}, {"text", info.text},   {"files", files},    {"tensors", tensors}};
}

[[noreturn]] void fail_manifest(const std::string& path, const std::string& what) {
  throw Error(concat(path, ": ", what), {}, "the checkpoint is damaged or from another program; resume from another one");
}

json read_manifest(const std::string& path) {
  const json manifest = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || manifest.value("format", json()) != kFormat)
    fail_manifest(path, "not the manifest of a Penstock checkpoint");
  if (manifest.value("version", json()) != kVersion)
    fail_manifest(path,
                  concat("version ", manifest.value("version", json()).dump(), " of the format; this build reads version ", kVersion));
  return manifest;
}

void check_file(const fs::path& folder, const std::string& name, const json& expected) {
  const std::string path = (folder / name).string();
  if (!fs::exists(path)) fail_manifest(path, "this file of the checkpoint is missing");
  const MappedFile file(path);
  const std::uint64_t bytes = expected.at("bytes").get<std::uint64_t>();
  if (file.bytes().size() != bytes) fail_manifest(path, concat("it has ", file.bytes().size(), " bytes, its manifest says ", bytes));
  if (content_hash(file.bytes()) != expected.at("hash").get<std::string>())
    fail_manifest(path, "its content is not what its manifest says");
}

// What pieces cannot say is how many elements their tensor has: whoever reads it finds out.
void check_pieces(const std::string& path, const std::map<std::string, std::string>& files) {
  std::map<std::string, std::vector<Piece>> pieces;
  for (const auto& [name, file] : files) {
    try {
      if (Piece piece = parse_piece(name); !piece.whole()) pieces[piece.tensor].push_back(std::move(piece));
    } catch (const Error& error) {
      throw Error(concat(path, ": ", error.what()));
    }
  }
  for (const auto& [tensor, of_it] : pieces)
    if (const std::string gap = gap_in(of_it); !gap.empty())
      fail_manifest(path, concat("the pieces of ", quote(tensor), " leave a gap: nobody wrote its elements ", gap));
}

}  // namespace

std::string write_checkpoint(const std::string& out, const Checkpoint& info, int keep,
                             const std::function<std::vector<std::string>(const std::string&)>& save) {
  const fs::path folder = folder_of(out, info.step);
  if (fs::exists(folder)) throw Error(concat(folder.string(), " is already there; it is not overwritten"));
  std::error_code error;
  fs::create_directories(out, error);
  remove_unfinished(out);
  const fs::path part = folder.string() + kUnfinished;
  if (!error) fs::create_directory(part, error);
  if (error) throw Error(concat("cannot make ", part.string(), ": ", error.message()));
  write_file((part / "manifest.json").string(),
             manifest_of(info, part, save(part.string())).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  sync_folder(part.string());
  fs::rename(part, folder, error);
  if (error) throw Error(concat("cannot rename ", part.string(), " to ", folder.string(), ": ", error.message()));
  sync_folder(out);

  const std::vector<std::int64_t> steps = checkpoint_steps(out);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) remove_whole(folder_of(out, steps[i]));
  return folder.string();
}

Checkpoint read_checkpoint(const std::string& folder) {
  const std::string path = (fs::path(folder) / "manifest.json").string();
  if (!fs::exists(path))
    throw Error(concat(folder, " is no checkpoint: it has no manifest.json"), {},
                "name a run's folder or one of its checkpoint-STEP folders");
  const json manifest = read_manifest(path);
  Checkpoint info;
  info.folder = folder;
  try {
    info.step = manifest.at("step").get<std::int64_t>();
    info.position = manifest.at("position").get<std::int64_t>();
    info.config = manifest.at("config").get<std::string>();
    info.text = manifest.at("text").get<std::uint64_t>();
    info.files = manifest.at("tensors").get<std::map<std::string, std::string>>();
    for (const auto& [name, expected] : manifest.at("files").items()) check_file(folder, name, expected);
  } catch (const json::exception& wrong) {
    fail_manifest(path, concat("an entry is missing or of another type (", wrong.what(), ")"));
  }
  check_pieces(path, info.files);
  return info;
}

std::string find_checkpoint(const std::string& path) {
  if (fs::exists(fs::path(path) / "manifest.json")) return path;
  const std::vector<std::int64_t> steps = checkpoint_steps(path);
  if (steps.empty()) throw Error(concat("no checkpoint in ", path), {}, "name a run's folder or one of its checkpoint-STEP folders");
  return folder_of(path, steps.back()).string();
}

std::vector<std::int64_t> checkpoint_steps(const std::string& out) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, ignored)) {
    const std::int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && fs::exists(entry.path() / "manifest.json")) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::map<std::string, std::string> checkpoint_index(const std::string& folder) {
  std::map<std::string, std::string> paths;
  for (const auto& [tensor, file] : read_checkpoint(folder).files) paths[tensor] = (fs::path(folder) / file).string();
  return paths;
}

}  // namespace penstock
