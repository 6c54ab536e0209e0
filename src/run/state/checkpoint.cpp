// SPDX-License-Identifier: Apache-2.0
#include "state/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <ranges>

#include "base/durable.h"
#include "base/regular_file.h"
#include "base/steady_file.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "program/piece.h"
#include "state/manifest.h"
#include "state/not_finite.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kUnfinished = ".part";  // suffix of folders that are being written or removed
constexpr const char* kManifest = "manifest.json";

// The step in "checkpoint-<step>"; -1 for any other name.
std::int64_t step_of(const std::string& name) {
  const auto step = parse_number<std::int64_t>(std::string_view(name).substr(std::min(name.size(), std::strlen(kPrefix))));
  return step && name == concat(kPrefix, *step) ? *step : -1;
}

fs::path folder_of(const std::string& out, std::int64_t step) {
  return fs::path(out) / concat(kPrefix, step);
}

// Removes a folder in two steps, renaming it first, so that half of one never carries the name.
void remove_whole(const fs::path& folder) {
  const fs::path part = folder.string() + kUnfinished;
  std::error_code ignored;
  fs::remove_all(part, ignored);
  fs::rename(folder, part, ignored);
  fs::remove_all(part, ignored);
}

// The names in a folder; none where there is no such folder. Throws CannotRead.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().filename().string());
  const bool none = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !none) throw CannotRead(folder, error.value());
  return out;
}

// Names the first tensor of a file whose values nothing can be trained on; "": there is none.
std::string not_finite(const std::map<std::string, FileTensor>& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (const std::string wrong = not_finite(tensor); !wrong.empty()) return concat(quote(name), " has ", wrong);
  return {};
}

void remove_unfinished(const std::string& out) {
  std::error_code ignored;
  for (const std::string& name : names_in(out))
    if (name.starts_with(kPrefix) && name.ends_with(kUnfinished)) fs::remove_all(fs::path(out) / name, ignored);
}

// Throws Error for state that is not finite: as the newest good state it would be gone on from.
Manifest manifest_of(const Checkpoint& info, const fs::path& folder, const std::vector<std::string>& names) {
  Manifest out{info.step, info.position, info.config, info.text, {}, {}};
  for (const std::string& name : names) {
    if (!is_plain_name(name)) throw Error(concat(quote(name), " is no file of ", folder.string()));
    const std::string path = (folder / name).string();
    const SteadyFile file(path);
    out.files[name] = {static_cast<std::uint64_t>(file.size()), content_hash(file)};
    const SafetensorsFile stored = SafetensorsFile::open(path);
    if (const std::string wrong = not_finite(stored.tensors()); !wrong.empty())
      throw Error(concat("state ", wrong), {}, "lower train.learning_rate, or clip gradients (train.clip)");
    for (const auto& [tensor, ignored] : stored.tensors()) out.tensors[tensor] = name;
  }
  return out;
}

void check_file(const fs::path& folder, const std::string& name, const Manifest::File& expected) {
  const std::string path = (folder / name).string();
  if (!is_there(path)) fail_damaged(path, "this file of the checkpoint is missing");
  const SteadyFile file(path);
  if (static_cast<std::uint64_t>(file.size()) != expected.bytes)
    fail_damaged(path, concat("it has ", file.size(), " bytes, its manifest says ", expected.bytes));
  if (content_hash(file) != expected.hash) fail_damaged(path, "its content is not what its manifest says");
  if (const std::string wrong = not_finite(SafetensorsFile::open(path).tensors()); !wrong.empty()) fail_damaged(path, wrong);
}

// Checks that strided pieces leave no gap between them: their files say how many elements they have.
void check_strided(const fs::path& folder, const std::string& path, const std::map<std::string, std::string>& files) {
  std::map<std::string, std::vector<Piece>> pieces;
  std::map<std::string, std::int64_t> elements;  // by tensor
  std::map<std::string, SafetensorsFile> opened;
  for (const auto& [name, file] : files)
    if (Piece piece = parse_piece(name); !piece.whole()) pieces[piece.tensor].push_back(std::move(piece));
  std::erase_if(pieces, [](const auto& of_it) { return std::ranges::none_of(of_it.second, &Piece::is_strided); });
  for (const auto& [tensor, of_it] : pieces)
    for (const Piece& piece : of_it) {
      const std::string name = piece_name(piece), file = (folder / files.at(name)).string();
      if (!opened.contains(file)) opened.emplace(file, SafetensorsFile::open(file));
      const auto found = opened.at(file).tensors().find(name);
      if (found == opened.at(file).tensors().end()) fail_damaged(file, concat("there is no tensor ", quote(name)));
      elements[tensor] = std::max(elements[tensor], least_elements(piece, found->second.type.elements()));
    }
  for (const auto& [tensor, of_it] : pieces) check_gap(path, of_it, elements.at(tensor));
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string write_checkpoint(const std::string& out, const Checkpoint& info, int keep, const SaveState& save, int attempt) {
  const fs::path folder = folder_of(out, info.step);
  if (is_there(folder)) throw Error(concat(folder.string(), " is already there; it is not overwritten"));
  std::error_code error;
  fs::create_directories(out, error);
  remove_unfinished(out);
  const fs::path part = concat(folder.string(), attempt > 0 ? concat(".", attempt) : "", kUnfinished);
  if (!error && !fs::create_directory(part, error) && !error) error = std::make_error_code(std::errc::file_exists);
  if (error) throw Error(concat("cannot make ", part.string(), ": ", error.message()));
  try {
    write_file((part / kManifest).string(), print(manifest_of(info, part, save(part.string()))));
    sync_folder(part.string());
    fs::rename(part, folder, error);
    if (error) throw Error(concat("cannot rename ", part.string(), " to ", folder.string(), ": ", error.message()));
  } catch (...) {
    fs::remove_all(part, error);
    throw;
  }
  sync_folder(out);

  const std::vector<std::int64_t> steps = checkpoint_steps(out);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) remove_whole(folder_of(out, steps[i]));
  return folder.string();
}

Checkpoint read_checkpoint(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifest).string();
  if (!is_there(path))
    throw Error(concat(folder, " is no checkpoint: it has no manifest.json"), {},
                "name a run's folder or one of its checkpoint-STEP folders");
  const Manifest manifest = parse_manifest(read_file(path), path);
  for (const auto& [name, expected] : manifest.files) check_file(folder, name, expected);
  check_strided(folder, path, manifest.tensors);
  return {folder, manifest.step, manifest.position, manifest.config, manifest.text, manifest.tensors};
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  if (is_there(fs::path(path) / kManifest)) return {read_checkpoint(path), {}};
  if (checkpoint_steps(path).empty())
    throw Error(concat("no checkpoint in ", path), {}, "name a run's folder or one of its checkpoint-STEP folders");
  FoundCheckpoint found;
  const std::map<std::int64_t, std::string> folders = checkpoint_folders(path);
  for (const auto& [step, folder] : std::views::reverse(folders)) {
    try {
      found.checkpoint = read_checkpoint(folder);
      return found;
    } catch (const CannotRead&) {
      throw;  // it may be intact
    } catch (const Error& error) {
      found.damaged.push_back({step, folder, first_line(error.what())});
    }
  }
  std::vector<std::string> damages;
  for (const DamagedCheckpoint& damaged : found.damaged) damages.push_back(damaged.damage);
  throw Error(concat("no checkpoint in ", path, " is intact"), damages, "begin anew, with another --out");
}

bool names_checkpoint(std::string_view folder) {
  return folder.starts_with(kPrefix);
}

std::map<std::int64_t, std::string> checkpoint_folders(const std::string& out) {
  std::map<std::int64_t, std::string> folders;
  for (const std::string& name : names_in(out))
    if (const std::int64_t step = step_of(name); step >= 0) folders[step] = folder_of(out, step).string();
  return folders;
}

std::vector<std::int64_t> checkpoint_steps(const std::string& out) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, folder] : checkpoint_folders(out))
    if (is_there(fs::path(folder) / kManifest)) steps.push_back(step);
  return steps;
}

std::string set_aside(const std::string& folder, const std::string& why) {
  std::string name = concat(folder, ".", why);
  for (int i = 2; is_there(name); ++i) name = concat(folder, ".", why, "-", i);
  std::error_code error;
  fs::rename(folder, name, error);
  if (error) throw Error(concat("cannot rename ", folder, " to ", name, ": ", error.message()));
  return name;
}

std::map<std::string, std::string> checkpoint_index(const std::string& folder) {
  std::map<std::string, std::string> paths;
  for (const auto& [tensor, file] : read_checkpoint(folder).files) paths[tensor] = (fs::path(folder) / file).string();
  return paths;
}

}  // namespace penstock
