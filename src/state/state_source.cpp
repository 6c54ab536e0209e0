#include "state/state_source.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"
#include "state/checkpoint.h"
#include "state/initialise.h"

namespace penstock {
namespace {

template <class Map>
std::vector<std::string> keys(const Map& map) {
  std::vector<std::string> out;
  for (const auto& entry : map) out.push_back(entry.first);
  return out;
}

std::string meant(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string near = nearest(name, candidates);
  return near.empty() ? "it is of another model" : concat("it has ", near);
}

// A piece for messages: "f32[2,3]", "its elements [2:8] of f32".
std::string text(const Piece& piece, const TensorType& type) {
  return piece.whole() ? type.text() : concat("its elements ", piece_name("", piece.begin, piece.end), " of ", name(type.dtype));
}

[[noreturn]] void fail_type(const std::string& file, const std::string& name, const TensorType& found, const std::string& needed) {
  throw Error(concat(file, ": ", quote(name), " is ", found.text(), ", the program needs ", needed));
}

// Copies the elements of `from` from `begin` on, converted to `dtype`.
void copy_elements(const StoredTensor& from, std::int64_t begin, DType dtype, std::span<std::byte> out) {
  const std::size_t first = begin;
  if (from.type.dtype == dtype) {
    std::ranges::copy(from.bytes.subspan(first * byte_size(dtype), out.size()), out.begin());
    return;
  }
  for (std::size_t i = 0; i < out.size() / static_cast<std::size_t>(byte_size(dtype)); ++i)
    store_element(dtype, load_element(from.type.dtype, from.bytes, first + i), out, i);
}

}  // namespace

StateReader::StateReader(const StateSource& source) : source_(source) {
  for (const ParameterSpec& spec : source.parameters) specs_[spec.name] = &spec;
  if (source.kind == StateSource::Kind::checkpoint) index_ = checkpoint_index(source.path);
  for (const auto& [name, file] : index_)
    if (Piece piece = parse_piece(name); !piece.whole()) pieces_[piece.tensor].push_back(std::move(piece));
}

const StoredTensor& StateReader::stored(const std::string& name, const std::string& file) {
  auto opened = files_.find(file);
  if (opened == files_.end()) opened = files_.emplace(file, SafetensorsFile::open(file)).first;
  const auto& tensors = opened->second.tensors();
  auto found = tensors.find(name);
  // Some published GPT-2 files name the tensors with the class's prefix.
  if (found == tensors.end() && source_.kind == StateSource::Kind::safetensors) found = tensors.find("transformer." + name);
  if (found == tensors.end()) throw Error(concat(file, ": there is no tensor ", quote(name)), {}, meant(name, keys(tensors)));
  return found->second;
}

void StateReader::read_parameter(const ParameterSpec& spec, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const bool fits = piece.whole() ? spec.type == type : spec.type.dtype == type.dtype && piece.end <= spec.type.elements();
  if (!fits) throw Error(concat("parameter ", quote(spec.name), " is ", spec.type.text(), ", the program needs ", text(piece, type)));
  if (source_.kind == StateSource::Kind::initialise) return initialise(spec, source_.seed, out, piece.begin);
  const StoredTensor& tensor = stored(spec.name, source_.path);
  const bool convert = is_floating(type.dtype) && is_floating(tensor.type.dtype);
  if (tensor.type.shape != spec.type.shape || (tensor.type.dtype != type.dtype && !convert))
    fail_type(source_.path, spec.name, tensor.type, spec.type.text());
  copy_elements(tensor, piece.begin, type.dtype, out);
}

void StateReader::read_state(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  auto file = index_.find(name);
  const bool same_form = file != index_.end();
  if (!same_form) file = index_.find(piece.tensor);
  if (file == index_.end()) return assemble(name, piece, type, out);
  const StoredTensor& tensor = stored(file->first, file->second);
  const bool fits = same_form ? tensor.type == type : tensor.type.dtype == type.dtype && piece.end <= tensor.type.elements();
  if (!fits) fail_type(file->second, file->first, tensor.type, text(piece, type));
  copy_elements(tensor, same_form ? 0 : piece.begin, type.dtype, out);
}

// Puts the value together from pieces, which leave no gap (read_checkpoint).
void StateReader::assemble(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const auto held = pieces_.find(piece.tensor);
  if (held == pieces_.end())
    throw Error(concat(source_.path, ": the checkpoint has no tensor ", quote(name)), {}, meant(name, keys(index_)));
  const std::int64_t elements = end_of(held->second), end = piece.whole() ? type.elements() : piece.end;
  if (piece.whole() ? elements != end : elements < end)
    throw Error(concat(source_.path, ": the pieces of ", quote(piece.tensor), " have ", elements, " elements, the program needs ",
                       text(piece, type)));
  for (const Cut& cut : cover(held->second, piece.begin, end)) {
    const Piece& from = held->second[cut.piece];
    const std::string from_name = piece_name(from.tensor, from.begin, from.end), file = index_.at(from_name);
    const StoredTensor& tensor = stored(from_name, file);
    const TensorType needed{type.dtype, {from.end - from.begin}};
    if (tensor.type != needed) fail_type(file, from_name, tensor.type, needed.text());
    const std::size_t size = byte_size(type.dtype);
    copy_elements(
        tensor, cut.begin - from.begin, type.dtype,
        out.subspan(static_cast<std::size_t>(cut.begin - piece.begin) * size, static_cast<std::size_t>(cut.end - cut.begin) * size));
  }
}

bool StateReader::has(const std::string& name) const {
  return source_.kind != StateSource::Kind::values || source_.values.contains(parse_piece(name).tensor);
}

void StateReader::read_value(const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const std::vector<std::byte>& whole = source_.values.at(piece.tensor);
  const std::size_t begin = piece.begin * byte_size(type.dtype);
  if (begin + out.size() > whole.size())
    throw Error(concat("the value of ", quote(piece.tensor), " has ", whole.size(), " bytes, the program needs ", text(piece, type)));
  std::ranges::copy(std::span(whole).subspan(begin, out.size()), out.begin());
}

void StateReader::read(const std::string& name, const TensorType& type, std::span<std::byte> out) {
  const Piece piece = parse_piece(name);
  if (source_.kind == StateSource::Kind::values) return read_value(piece, type, out);
  if (source_.kind == StateSource::Kind::checkpoint) return read_state(name, piece, type, out);
  if (const auto spec = specs_.find(piece.tensor); spec != specs_.end()) return read_parameter(*spec->second, piece, type, out);
  std::ranges::fill(out, std::byte{0});  // moments and counters start at zero
}

}  // namespace penstock
