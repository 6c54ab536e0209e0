// SPDX-License-Identifier: Apache-2.0
#include "state/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "penstock checkpoint";
constexpr int kVersion = 2;

constexpr const char* kSeal = ",\n \"checksum\": ";

bool is_sealed(std::string_view text) {
  const std::size_t end = text.rfind(kSeal);
  return end != text.npos && text == sealed_manifest(std::string(text.substr(0, end)));
}

std::uint64_t parse_hex(const JsonNode& node) {
  const std::string& text = node.text();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) node.fail(concat("is ", shown(node.value()), "; it must be hexadecimal"));
  return value;
}

// Checks that ranges leave no gap between them. They cannot say how many elements their tensor has: whoever reads it finds out. Strided
// pieces are looked at with their files (read_checkpoint), as their names do not say how many elements they have.
void check_pieces(const std::string& path, const std::map<std::string, std::string>& tensors) {
  std::map<std::string, std::vector<Piece>> pieces;
  for (const auto& [name, file] : tensors) {
    try {
      if (Piece piece = parse_piece(name); !piece.whole()) pieces[piece.tensor].push_back(std::move(piece));
    } catch (const Error& error) {
      throw Error(concat(path, ": ", error.what()));
    }
  }
  for (const auto& [tensor, of_it] : pieces) {
    if (std::ranges::any_of(of_it, &Piece::is_strided)) continue;
    std::int64_t elements = 0;
    for (const Piece& piece : of_it) elements = std::max(elements, least_elements(piece, 0));
    check_gap(path, of_it, elements);
  }
}

}  // namespace

void check_gap(const std::string& path, const std::vector<Piece>& pieces, std::int64_t elements) {
  if (const std::string gap = gap_in(pieces, elements); !gap.empty())
    fail_damaged(path, concat("the pieces of ", quote(pieces.front().tensor), " leave a gap: nobody wrote its elements ", gap));
}

void fail_damaged(const std::string& path, const std::string& what) {
  throw Error(concat(path, ": ", what), {},
              "the checkpoint is damaged or from another program; --resume of the run's folder takes the newest intact one");
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

std::string content_hash(std::span<const std::byte> bytes) {
  Hash hash;
  hash.add(bytes);
  return hex(hash.value());
}

std::string content_hash(const SteadyFile& file) {
  constexpr std::int64_t kPart = 1 << 20;  // a multiple of eight, so that parts give the hash of the whole
  Hash hash;
  hash.add(static_cast<std::uint64_t>(file.size()));
  const SteadyFile::Reading reading(file);
  std::vector<std::byte> part;
  for (std::int64_t at = 0; at < file.size(); at += kPart) {
    part.resize(static_cast<std::size_t>(std::min(kPart, file.size() - at)));
    reading.read(at, part);
    hash.add_content(part);
  }
  return hex(hash.value());
}

std::string sealed_manifest(const std::string& head) {
  return concat(head, kSeal, quote(content_hash(std::as_bytes(std::span(head)))), "\n}\n");
}

std::string print(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"bytes", file.bytes}, {"hash", file.hash}};
  const nlohmann::ordered_json out = {
      {"format", kFormat},         {"version", kVersion},        {"step", manifest.step}, {"position", manifest.position},
      {"config", manifest.config}, {"text", hex(manifest.text)}, {"files", files},        {"tensors", manifest.tensors},
  };
  std::string text = out.dump(1, ' ', false, json::error_handler_t::replace);
  text.resize(text.size() - 2);  // cuts off "\n}"
  return sealed_manifest(text);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const json unchecked = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!unchecked.is_object() || unchecked.value("format", json()) != kFormat)
    fail_damaged(path, "not the manifest of a Penstock checkpoint");
  if (unchecked.value("version", json()) != kVersion)
    fail_damaged(path,
                 concat("version ", shown(unchecked.value("version", json())), " of the format; this build reads version ", kVersion));
  if (!is_sealed(text)) fail_damaged(path, "its content is not what its checksum says");

  const JsonFile file{path, ""};
  const json document = parse_json(text, file);
  const JsonNode root(document, file);
  Manifest out;
  out.step = root.at("step").whole(0);
  out.position = root.at("position").whole(0);
  out.config = root.at("config").text();
  out.text = parse_hex(root.at("text"));
  root.at("files").each_member([&](const std::string& name, const JsonNode& entry) {
    if (!is_plain_name(name)) root.at("files").fail(concat("names ", quote(name), ", which is no file beside the manifest"));
    out.files[name] = {static_cast<std::uint64_t>(entry.at("bytes").whole(0)), entry.at("hash").text()};
  });
  root.at("tensors").each_member([&](const std::string& name, const JsonNode& of_file) {
    if (!out.files.contains(of_file.text())) of_file.fail(concat("is in ", quote(of_file.text()), ", which files does not list"));
    out.tensors[name] = of_file.text();
  });
  check_pieces(path, out.tensors);
  return out;
}

}  // namespace penstock
