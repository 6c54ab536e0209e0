#include "state/safetensors.h"

#include <algorithm>
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

  [[noreturn]] void fail(const std::string& what) const {
    const std::string where = tensor.empty() ? std::string(file) : concat(file, ": tensor ", quote(tensor));
    throw Error(concat(where, ": ", what), {}, "the file is damaged, truncated, or not a safetensors file");
  }
};

json parse_header(std::span<const std::byte> content, const Place& place) {
  std::uint64_t length = 0;
  if (content.size() < sizeof length) place.fail(concat("only ", content.size(), " bytes; a safetensors file has at least 8"));
  std::memcpy(&length, content.data(), sizeof length);
  if (length > kMaxHeader || length > content.size() - sizeof length)
    place.fail(concat("the header should have ", length, " bytes, the file has ", content.size()));
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

StoredTensor parse_tensor(const json& entry, std::span<const std::byte> data, const Place& place) {
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

  StoredTensor tensor;
  tensor.type.dtype = known->second;
  for (const json& size : shape) tensor.type.shape.push_back(static_cast<std::int64_t>(to_unsigned(size, "a size of its shape", place)));
  const std::uint64_t begin = to_unsigned(offsets[0], "its begin", place), end = to_unsigned(offsets[1], "its end", place);
  if (begin > end || end > data.size()) place.fail(concat("it spans bytes ", begin, " to ", end, " of ", data.size()));
  const std::int64_t bytes = checked_bytes(tensor.type, place);
  if (static_cast<std::uint64_t>(bytes) != end - begin)
    place.fail(concat(tensor.type.text(), " has ", bytes, " bytes, the file gives it ", end - begin));
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

// Checks that tensors lie side by side, with no overlaps and no holes, as the format requires.
void check_layout(const std::map<std::string, StoredTensor>& tensors, std::span<const std::byte> data, std::string_view file) {
  std::vector<std::pair<const std::byte*, const std::string*>> order;
  for (const auto& [name, tensor] : tensors)
    if (!tensor.bytes.empty()) order.emplace_back(tensor.bytes.data(), &name);
  std::sort(order.begin(), order.end());
  const std::byte* end = data.data();
  for (const auto& [begin, name] : order) {
    if (begin != end) Place{file, *name}.fail(begin < end ? "it overlaps another tensor" : "the bytes before it belong to no tensor");
    end += tensors.at(*name).bytes.size();
  }
  if (end != data.data() + data.size()) Place{file, {}}.fail("bytes at the end belong to no tensor");
}

}  // namespace

std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> content, std::string_view file,
                                                      std::map<std::string, std::string>* metadata) {
  const json header = parse_header(content, {file, {}});
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  const std::span<const std::byte> data = content.subspan(sizeof length + length);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors.emplace(name, parse_tensor(entry, data, {file, name}));
      continue;
    }
    if (!entry.is_object()) Place{file, {}}.fail("__metadata__ is not an object of texts");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) Place{file, {}}.fail(concat("__metadata__ ", quote(key), " is not a text"));
      if (metadata != nullptr) metadata->emplace(key, value.get<std::string>());
    }
  }
  check_layout(tensors, data, file);
  return tensors;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  result.file_ = MappedFile(path);
  result.tensors_ = parse_safetensors(result.file_.bytes(), path, &result.metadata_);
  return result;
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
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const auto& [name, type] : tensors) {
    invariant(!header.contains(name), "stored tensors have unique names");
    header[name] = {{"dtype", stored_name(type.dtype)}, {"shape", type.shape}, {"data_offsets", {offset, offset + type.bytes()}}};
    offset += type.bytes();
  }
  std::string text = header.dump(-1, ' ', true, json::error_handler_t::replace);
  while (text.size() % 8 != 0) text += ' ';  // padding, so that the tensors begin aligned
  const std::uint64_t length = text.size();

  DurableFile out(path);
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(std::as_bytes(std::span(text)));
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const std::span<const std::byte> bytes = bytes_of(n);
    invariant(static_cast<std::int64_t>(bytes.size()) == tensors[n].second.bytes(), "a stored tensor has the size of its type");
    out.write(bytes);
  }
  out.commit();
}

}  // namespace penstock
