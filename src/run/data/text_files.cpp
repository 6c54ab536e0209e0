// SPDX-License-Identifier: Apache-2.0
#include "data/text_files.h"

#include <algorithm>
#include <filesystem>

#include "base/hash.h"
#include "base/text.h"
#include "data/text_check.h"
#include "penstock/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

bool is_skipped_folder(const std::string& name) {
  return name.starts_with('.') || name.starts_with("build") || name == "node_modules" || name == "__pycache__" || name == "runs";
}

[[noreturn]] void fail_no_text(const std::string& name, const std::string& why) {
  const bool tensors = why.find("safetensors") != std::string::npos;
  throw Error(concat(name, " is no text: ", why), {},
              tensors ? "--init starts from parameters"
                      : "files in UTF-16 are not read, and files of tokens are named *.bin and are data.documents");
}

// The files below a folder in the order of their names, without hidden files and build folders. Throws Error.
std::vector<std::string> files_under(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      if (is_skipped_folder(name)) it.disable_recursion_pending();
    } else if (it->is_regular_file(ignored) && !name.starts_with('.')) {
      out.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) throw Error(concat("cannot read ", folder, ": ", error.message()));
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TextFiles open_text(const std::vector<std::string>& paths) {
  TextFiles out;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const bool folder = fs::is_directory(path, ignored);
    for (const std::string& name : folder ? files_under(path) : std::vector<std::string>{path}) {
      SteadyFile file(name);
      if (file.size() == 0 && !folder) throw Error(concat(name, " is empty"), {}, "name a text of some kilobytes");
      std::vector<std::byte> begin(std::min(static_cast<std::size_t>(file.size()), kTextProbe));
      SteadyFile::Reading(file).read(0, begin);
      const std::string why = why_no_text(begin);
      if (!why.empty() && !folder) fail_no_text(name, why);
      out.skipped += !why.empty();
      if (file.size() > 0 && why.empty()) out.files.push_back(std::move(file));
    }
  }
  return out;
}

// Hashes pieces of 64 KiB of every file at equal distances, no more than kMost together: so a start takes no longer for a larger text, and
// a text that fits is hashed whole.
std::uint64_t hash_of(const std::vector<SteadyFile>& files) {
  constexpr std::int64_t kPiece = 64 << 10, kMost = 64 << 20;
  std::int64_t bytes = 0;
  for (const SteadyFile& file : files) bytes += file.size();
  const std::int64_t distance = kPiece * std::max<std::int64_t>(1, (bytes + kMost - 1) / kMost);
  Hash hash;
  std::vector<std::byte> piece(kPiece);
  for (const SteadyFile& file : files) {
    hash.add(fs::path(file.path()).filename().string());
    hash.add(static_cast<std::uint64_t>(file.size()));
    const SteadyFile::Reading reading(file);
    for (std::int64_t at = 0; at < file.size(); at += distance) {
      const std::span<std::byte> part = std::span(piece).first(std::min(kPiece, file.size() - at));
      reading.read(at, part);
      hash.add(std::span<const std::byte>(part));
    }
  }
  return hash.value();
}

}  // namespace penstock
