// SPDX-License-Identifier: Apache-2.0
// manifest.json of a checkpoint: text in, text out. Its last member is a checksum of every byte before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/steady_file.h"
#include "program/piece.h"

namespace penstock {

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string hash;  // as content_hash gives it
  };
  std::int64_t step = 0, position = 0;  // as in Checkpoint
  std::string config;
  std::uint64_t text = 0;
  std::map<std::string, File> files;           // by name; they lie beside the manifest
  std::map<std::string, std::string> tensors;  // the file that holds each tensor or piece
};

// Whether the name is that of a file beside the manifest, not of one elsewhere.
bool is_plain_name(const std::string& name);

std::string content_hash(std::span<const std::byte> bytes);
std::string content_hash(const SteadyFile& file);  // throws Error where the file is changed meanwhile

std::string print(const Manifest& manifest);
// The manifest's text: `head` is a JSON object without its closing brace, after which the checksum is put.
std::string sealed_manifest(const std::string& head);
// Reads a manifest; `path` is the name for messages. Throws Error: not Penstock's, another version, a changed byte, a value out of range, a
// file that is not beside the manifest, a tensor in a file that is not listed, ranges that leave a gap.
Manifest parse_manifest(std::string_view text, const std::string& path);

// Throws Error, as for a damaged checkpoint, where pieces of a tensor of so many elements leave a gap.
void check_gap(const std::string& path, const std::vector<Piece>& pieces, std::int64_t elements);
// Throws Error for a damaged checkpoint; `path` is the file in it.
[[noreturn]] void fail_damaged(const std::string& path, const std::string& what);

}  // namespace penstock
