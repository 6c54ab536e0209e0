// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/durable.h"
#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written as it lies in memory");

using nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes; the format's own limit

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"F64", DType::f64}, {"F32", DType::f32}, {"BF16", DType::bf16},    {"F16", DType::f16},
    {"I64", DType::i64}, {"I32", DType::i32}, {"BOOL", DType::boolean},
};

std::string_view stored_name(DType dtype) {
  for (const auto& [stored, ours] : kDTypes)
    if (ours == dtype) return stored;
  invariant(false, "a dtype without a safetensors name");
  return {};
}

// The place that every message begins with.
struct Place {
  std::string_view file;
  std::string tensor;

  [[noreturn]] void fail(const std::string& what, const char* hint = "the file is damaged, truncated, or not a safetensors file") const {
    const std::string where = tensor.empty() ? std::string(file) : concat(file, ": tensor ", quote(tensor));
    throw Error(concat(where, ": ", what), {}, hint);
  }
};

std::uint64_t header_length(std::span<const std::byte> content) {
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  return length;
}

json parse_header(std::span<const std::byte> content, std::uint64_t bytes, const Place& place) {
  if (bytes < sizeof(std::uint64_t)) place.fail(concat("only ", bytes, " bytes; a safetensors file has at least 8"));
  const std::uint64_t length = header_length(content);
  if (length > kMaxHeader || length > bytes - sizeof length)
    place.fail(concat("the header should have ", length, " bytes, the file has ", bytes));
  invariant(content.size() >= sizeof length + length, "the whole header is given");
  const char* begin = reinterpret_cast<const char*>(content.data()) + sizeof length;
  json header = json::parse(begin, begin + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) place.fail("the header is not a JSON object");
  return header;
}

// The bytes of the type. Throws Error unless dimensions are not negative and their product fits.
std::int64_t checked_bytes(const TensorType& type, const Place& place) {
  std::int64_t bytes = byte_size(type.dtype);
  for (std::int64_t size : type.shape) {
    if (size != 0 && bytes > std::numeric_limits<std::int64_t>::max() / size) place.fail("its shape is too large");
    bytes *= size;
  }
  return bytes;
}

std::uint64_t to_unsigned(const json& value, const char* what, const Place& place) {
  if (!value.is_number_unsigned()) place.fail(concat(what, " is not a whole number"));
  const std::uint64_t number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) place.fail(concat(what, " is too large"));
  return number;
}

// `data` bytes follow on the header, which ends at byte `header`.
TensorPlace parse_tensor(const json& entry, std::int64_t header, std::uint64_t data, const Place& place) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    place.fail("its entry needs dtype, shape and data_offsets");
  const json& dtype = entry["dtype"];
  const json& shape = entry["shape"];
  const json& offsets = entry["data_offsets"];
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& pair) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == pair.first;
  });
  if (known == std::end(kDTypes)) place.fail(concat("unknown dtype ", dtype.dump(-1, ' ', true, json::error_handler_t::replace)));
  if (!shape.is_array()) place.fail("its shape is not a list");
  if (!offsets.is_array() || offsets.size() != 2) place.fail("its data_offsets are not two numbers");

  TensorPlace tensor;
  tensor.type.dtype = known->second;
  for (const json& size : shape) tensor.type.shape.push_back(static_cast<std::int64_t>(to_unsigned(size, "a size of its shape", place)));
  const std::uint64_t begin = to_unsigned(offsets[0], "its begin", place), end = to_unsigned(offsets[1], "its end", place);
  if (begin > end || end > data) place.fail(concat("it spans bytes ", begin, " to ", end, " of ", data));
  const std::int64_t bytes = checked_bytes(tensor.type, place);
  if (static_cast<std::uint64_t>(bytes) != end - begin)
    place.fail(concat(tensor.type.text(), " has ", bytes, " bytes, the file gives it ", end - begin));
  tensor.begin = header + static_cast<std::int64_t>(begin);
  return tensor;
}

// Checks that tensors lie side by side from byte `begin` to `end`, with no overlaps and no holes, as the format requires.
void check_layout(const std::map<std::string, TensorPlace>& tensors, std::int64_t begin, std::int64_t end, std::string_view file) {
  std::vector<std::pair<std::int64_t, const std::string*>> order;
  for (const auto& [name, tensor] : tensors)
    if (tensor.type.bytes() > 0) order.emplace_back(tensor.begin, &name);
  std::sort(order.begin(), order.end());
  std::int64_t done = begin;
  for (const auto& [at, name] : order) {
    if (at != done) Place{file, *name}.fail(at < done ? "it overlaps another tensor" : "the bytes before it belong to no tensor");
    done += tensors.at(*name).type.bytes();
  }
  if (done != end) Place{file, {}}.fail("bytes at the end belong to no tensor");
}

// --- checksums: CRC-32 as eight hexadecimal digits, {"metadata": ..., "tensors": {name: ...}} as a text of the metadata

constexpr const char* kChecksums = "checksums";
constexpr const char* kChanged = "the file is damaged, or its values were changed by a program that kept the checksums in its metadata";

std::uint32_t add_to(std::uint32_t sum, std::span<const std::byte> bytes) {
  if (bytes.empty()) return sum;  // zlib takes no bytes at no address for a new beginning
  return static_cast<std::uint32_t>(crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string digits(std::uint32_t sum) {
  std::array<char, 9> out = {};
  std::snprintf(out.data(), out.size(), "%08x", sum);
  return out.data();
}

// The checksum of a tensor begins with its type: a header that gives the same bytes another shape is damaged too.
std::uint32_t checksum_of_type(const TensorType& type) {
  const std::string text =
      concat(stored_name(type.dtype), "[", join(type.shape, ",", [](std::int64_t size) { return std::to_string(size); }), "]");
  return add_to(0, std::as_bytes(std::span(text)));
}

std::string checksum_of(const std::map<std::string, std::string>& metadata) {
  std::uint32_t sum = 0;
  for (const auto& [key, text] : metadata)
    for (const std::string* part : {&key, &text})
      if (key != kChecksums) sum = add_to(sum, std::as_bytes(std::span(part->c_str(), part->size() + 1)));
  return digits(sum);
}

void set_checksums(std::map<std::string, TensorPlace>& tensors, const std::map<std::string, std::string>& metadata, const Place& place) {
  const auto text = metadata.find(kChecksums);
  if (text == metadata.end()) return;
  const json sums = json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  const auto is = [](const json& holder, const std::string& key) { return holder.contains(key) && holder[key].is_string(); };
  bool whole = sums.is_object() && is(sums, "metadata") && sums["metadata"] == checksum_of(metadata) && sums.contains("tensors") &&
               sums["tensors"].is_object() && sums["tensors"].size() == tensors.size();
  for (auto& [name, tensor] : tensors) {
    whole = whole && is(sums["tensors"], name);
    if (whole) tensor.checksum = sums["tensors"][name].get<std::string>();
  }
  if (!whole) place.fail("the header is not what its checksum says", kChanged);
}

// The header of a file to be written; `sums` are the checksums of the tensors, or as long.
std::string header_text(const std::vector<std::pair<std::string, TensorType>>& tensors, const std::map<std::string, std::string>& metadata,
                        const std::vector<std::string>& sums) {
  nlohmann::ordered_json header, of_tensors = nlohmann::ordered_json::object();
  for (std::size_t n = 0; n < tensors.size(); ++n) of_tensors[tensors[n].first] = sums[n];
  header["__metadata__"] = metadata;
  const auto dump = [](const nlohmann::ordered_json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); };
  header["__metadata__"][kChecksums] = dump({{"metadata", checksum_of(metadata)}, {"tensors", of_tensors}});
  std::int64_t offset = 0;
  for (const auto& [name, type] : tensors) {
    invariant(!header.contains(name), "stored tensors have unique names");
    header[name] = {{"dtype", stored_name(type.dtype)}, {"shape", type.shape}, {"data_offsets", {offset, offset + type.bytes()}}};
    offset += type.bytes();
  }
  std::string text = dump(header);
  while (text.size() % 8 != 0) text += ' ';  // padding, so that the tensors begin aligned
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

std::map<std::string, TensorPlace> parse_safetensors(std::span<const std::byte> begin, std::uint64_t bytes, std::string_view file,
                                                     std::map<std::string, std::string>* metadata) {
  const json header = parse_header(begin, bytes, {file, {}});
  const std::uint64_t data = sizeof(std::uint64_t) + header_length(begin);
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> texts;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors.emplace(name, parse_tensor(entry, static_cast<std::int64_t>(data), bytes - data, {file, name}));
      continue;
    }
    if (!entry.is_object()) Place{file, {}}.fail("__metadata__ is not an object of texts");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) Place{file, {}}.fail(concat("__metadata__ ", quote(key), " is not a text"));
      texts.emplace(key, value.get<std::string>());
    }
  }
  check_layout(tensors, static_cast<std::int64_t>(data), static_cast<std::int64_t>(bytes), file);
  set_checksums(tensors, texts, {file, {}});
  texts.erase(kChecksums);
  if (metadata != nullptr) *metadata = std::move(texts);
  return tensors;
}

// Small pieces that lie near one another are read together.
struct FileTensor::Content {
  SteadyFile file;
  std::vector<std::byte> block = {};
  std::int64_t begin = 0;  // of the block, in the file

  void read(std::int64_t at, std::span<std::byte> out) {
    constexpr std::int64_t kBlock = 64 << 10;
    if (std::ssize(out) >= kBlock) return SteadyFile::Reading(file).read(at, out);
    if (at < begin || at + std::ssize(out) > begin + std::ssize(block)) {
      std::vector<std::byte> next(static_cast<std::size_t>(std::min(kBlock, file.size() - at)));
      SteadyFile::Reading(file).read(at, next);
      block = std::move(next);
      begin = at;
    }
    std::ranges::copy(std::span(block).subspan(static_cast<std::size_t>(at - begin), out.size()), out.begin());
  }
};

FileTensor::FileTensor(std::shared_ptr<Content> content, TensorPlace place)
    : type(place.type), content_(std::move(content)), place_(std::move(place)) {}

void FileTensor::read(std::size_t at, std::span<std::byte> out) const {
  invariant(std::ssize(out) + static_cast<std::int64_t>(at) <= type.bytes(), "bytes of the tensor are asked for");
  content_->read(place_.begin + static_cast<std::int64_t>(at), out);
}

void FileTensor::check(const std::string& name) const {
  if (!place_.checksum) return;
  std::uint32_t sum = checksum_of_type(type);
  for_each_part(*this, [&](std::size_t, std::span<const std::byte> part) { sum = add_to(sum, part); });
  if (digits(sum) != *place_.checksum) Place{content_->file.path(), name}.fail("it is not what its checksum says", kChanged);
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const auto content = std::make_shared<FileTensor::Content>(FileTensor::Content{SteadyFile(path)});
  const SteadyFile& file = content->file;
  std::vector<std::byte> begin(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), sizeof(std::uint64_t))));
  const SteadyFile::Reading reading(file);
  reading.read(0, begin);
  if (begin.size() == sizeof(std::uint64_t)) {
    const std::uint64_t all = std::min<std::uint64_t>(header_length(begin), kMaxHeader) + sizeof(std::uint64_t);
    begin.resize(std::min<std::uint64_t>(all, static_cast<std::uint64_t>(file.size())));
    reading.read(0, begin);
  }
  SafetensorsFile result;
  for (auto& [name, place] : parse_safetensors(begin, static_cast<std::uint64_t>(file.size()), path, &result.metadata_))
    result.tensors_.emplace(name, FileTensor(content, std::move(place)));
  return result;
}

void SafetensorsFile::check() const {
  for (const auto& [name, tensor] : tensors_) tensor.check(name);
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, StoredTensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, TensorType>> types;
  for (const auto& [name, tensor] : tensors) types.emplace_back(name, tensor.type);
  write_safetensors(path, types, [&](std::size_t n) { return tensors[n].second.bytes; }, metadata);
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, TensorType>>& tensors,
                       const std::function<std::span<const std::byte>(std::size_t n)>& bytes_of,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> sums(tensors.size(), digits(0));  // the header is as long without them: they are known when all is written
  DurableFile out(path);
  const std::string before = header_text(tensors, metadata, sums);
  out.write(std::as_bytes(std::span(before)));
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const std::span<const std::byte> bytes = bytes_of(n);
    invariant(static_cast<std::int64_t>(bytes.size()) == tensors[n].second.bytes(), "a stored tensor has the size of its type");
    out.write(bytes);
    sums[n] = digits(add_to(checksum_of_type(tensors[n].second), bytes));
  }
  const std::string header = header_text(tensors, metadata, sums);
  out.write_again(std::as_bytes(std::span(header)));
  out.commit();
}

}  // namespace penstock
