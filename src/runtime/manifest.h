// manifest.json of a checkpoint: text in, text out. Its last member is a checksum of every byte before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string hash;  // content_hash
  };
  std::int64_t step = 0, position = 0;  // as in Checkpoint
  std::string config;
  std::uint64_t text = 0;
  std::map<std::string, File> files;           // beside the manifest
  std::map<std::string, std::string> tensors;  // or pieces: the file that each is in
};

// Whether it names a file beside the manifest, not one elsewhere.
bool is_plain_name(const std::string& name);

std::string content_hash(std::span<const std::byte> bytes);

std::string print(const Manifest& manifest);
// A JSON object without its closing brace, and the checksum that ends it.
std::string sealed_manifest(const std::string& head);
// `path` is what messages call it. Throws Error: not Penstock's, another version, a changed byte, a value out of range, a file that is not
// beside the manifest, a tensor in a file that is not listed, pieces that leave a gap.
Manifest parse_manifest(std::string_view text, const std::string& path);

// Throws Error for a damaged checkpoint, `path` the file in it.
[[noreturn]] void fail_damaged(const std::string& path, const std::string& what);

}  // namespace penstock
