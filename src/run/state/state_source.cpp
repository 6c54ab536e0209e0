// SPDX-License-Identifier: Apache-2.0
#include "state/state_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "state/checkpoint.h"
#include "state/initialise.h"
#include "state/weight_files.h"

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

// A piece for messages: "f32[2,3]", "its elements [2:8] of f32", "its elements [0:2/4] as f32[3,2]".
std::string text(const Piece& piece, const TensorType& type) {
  if (piece.whole()) return type.text();
  const std::string cuts = piece_name(Piece{"", piece.cuts});
  return piece.is_strided() ? concat("its elements ", cuts, " as ", type.text()) : concat("its elements ", cuts, " of ", name(type.dtype));
}

[[noreturn]] void fail_type(const std::string& file, const std::string& name, const TensorType& found, const std::string& needed) {
  throw Error(concat(file, ": ", quote(name), " is ", found.text(), ", the program needs ", needed));
}

// Copies the elements of `from` from `begin` on, which are of this dtype.
void copy_elements(const StoredTensor& from, std::int64_t begin, DType dtype, std::span<std::byte> out) {
  invariant(from.type.dtype == dtype, "values in memory have the program's dtype");
  std::ranges::copy(from.bytes.subspan(static_cast<std::size_t>(begin * byte_size(dtype)), out.size()), out.begin());
}

// The same of a file's, converted to `dtype`.
void copy_elements(const FileTensor& from, std::int64_t begin, DType dtype, std::span<std::byte> out) {
  const std::size_t size = byte_size(from.type.dtype), first = static_cast<std::size_t>(begin) * size;
  if (from.type.dtype == dtype) return from.read(first, out);
  constexpr std::size_t kAtOnce = 1 << 16;  // elements
  const std::size_t count = out.size() / static_cast<std::size_t>(byte_size(dtype));
  std::vector<std::byte> part;
  for (std::size_t done = 0; done < count; done += kAtOnce) {
    part.resize(std::min(kAtOnce, count - done) * size);
    from.read(first + done * size, part);
    for (std::size_t i = 0; i < part.size() / size; ++i) store_element(dtype, load_element(from.type.dtype, part, i), out, done + i);
  }
}

// Returns the bytes in `out` of `count` elements, from element `at` on, of a value of this dtype.
std::span<std::byte> part_of(std::span<std::byte> out, DType dtype, std::int64_t at, std::int64_t count) {
  const std::size_t size = byte_size(dtype);
  return out.subspan(static_cast<std::size_t>(at) * size, static_cast<std::size_t>(count) * size);
}

// Copies the piece's elements of a tensor that holds the whole, converted to `dtype`.
template <class Tensor>
void copy_piece(const Tensor& whole, const Piece& piece, DType dtype, std::span<std::byte> out) {
  for_each_run(piece, whole.type.elements(),
               [&](const PieceRun& run) { copy_elements(whole, run.begin, dtype, part_of(out, dtype, run.at, run.size())); });
}

bool is_in_checkpoint(const StateSource& source) {
  std::error_code ignored;
  return source.kind == StateSource::Kind::checkpoint || (source.kind == StateSource::Kind::safetensors && !is_pretrained(source.path) &&
                                                          std::filesystem::is_directory(source.path, ignored));
}

}  // namespace

StateReader::StateReader(const StateSource& source) : source_(source) {
  for (const ParameterSpec& spec : source.parameters) specs_[spec.name] = &spec;
  if (is_in_checkpoint(source))
    index_ = checkpoint_index(source.path);
  else if (source.kind == StateSource::Kind::safetensors)
    weights_ = weight_files(source.path);
  for (const auto& [name, file] : index_)
    if (Piece piece = parse_piece(name); !piece.whole()) pieces_[piece.tensor].push_back(std::move(piece));
}

const std::map<std::string, FileTensor>& StateReader::tensors_of(const std::string& file) {
  auto opened = files_.find(file);
  if (opened == files_.end()) opened = files_.emplace(file, SafetensorsFile::open(file)).first;
  return opened->second.tensors();
}

const FileTensor& StateReader::stored(const std::string& name, const std::string& file) {
  const auto& tensors = tensors_of(file);
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw Error(concat(file, ": there is no tensor ", quote(name)), {}, meant(name, keys(tensors)));
  return found->second;
}

// A parameter that another program saved. Some published GPT-2 files name the tensors with the class's prefix.
const FileTensor& StateReader::weight(const std::string& name) {
  auto file = weights_.find(name);
  if (file == weights_.end()) file = weights_.find("transformer." + name);
  if (file == weights_.end()) throw Error(concat(source_.path, ": there is no tensor ", quote(name)), {}, meant(name, keys(weights_)));
  return stored(file->first, file->second);
}

// Whether the parameter begins as its Initialiser says.
bool StateReader::is_drawn(const ParameterSpec& spec) {
  if (source_.kind == StateSource::Kind::initialise) return true;
  if (!spec.adapter) return false;
  if (!index_.empty()) return !index_.contains(spec.name) && !pieces_.contains(spec.name);
  return !weights_.contains(spec.name);
}

void StateReader::read_parameter(const ParameterSpec& spec, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const std::int64_t elements = spec.type.elements();
  const bool same = piece.whole() ? spec.type == type : spec.type.dtype == type.dtype && fits(piece, elements, type.elements());
  if (!same) throw Error(concat("parameter ", quote(spec.name), " is ", spec.type.text(), ", the program needs ", text(piece, type)));
  if (is_drawn(spec))
    return for_each_run(piece, elements, [&](const PieceRun& run) {
      initialise(spec, source_.seed, part_of(out, type.dtype, run.at, run.size()), run.begin);
    });
  if (!index_.empty()) return read_state(piece_name(piece), piece, type, out);
  const FileTensor& tensor = weight(spec.name);
  const bool convert = is_floating(type.dtype) && is_floating(tensor.type.dtype);
  if (tensor.type.shape != spec.type.shape || (tensor.type.dtype != type.dtype && !convert))
    fail_type(source_.path, spec.name, tensor.type, spec.type.text());
  copy_piece(tensor, piece, type.dtype, out);
}

void StateReader::read_state(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  auto file = index_.find(name);
  const bool same_form = file != index_.end();
  if (!same_form) file = index_.find(piece.tensor);
  if (file == index_.end()) return assemble(name, piece, type, out);
  const FileTensor& tensor = stored(file->first, file->second);
  const bool same =
      same_form ? tensor.type == type : tensor.type.dtype == type.dtype && fits(piece, tensor.type.elements(), type.elements());
  if (!same) fail_type(file->second, file->first, tensor.type, text(piece, type));
  copy_piece(tensor, same_form ? Piece{piece.tensor} : piece, type.dtype, out);
}

// Returns the number of elements of the tensor of which the checkpoint has these pieces.
std::int64_t StateReader::elements_in(const std::vector<Piece>& pieces) {
  std::int64_t elements = 0;
  for (const Piece& piece : pieces) {
    const std::string name = piece_name(piece);
    const std::int64_t held = piece.is_strided() ? stored(name, index_.at(name)).type.elements() : 0;
    elements = std::max(elements, least_elements(piece, held));
  }
  return elements;
}

// Puts the value together from pieces, which leave no gap (read_checkpoint).
void StateReader::assemble(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const auto held = pieces_.find(piece.tensor);
  if (held == pieces_.end())
    throw Error(concat(source_.path, ": the checkpoint has no tensor ", quote(name)), {}, meant(name, keys(index_)));
  const std::int64_t elements = elements_in(held->second);
  if (!fits(piece, elements, type.elements()))
    throw Error(concat(source_.path, ": the pieces of ", quote(piece.tensor), " have ", elements, " elements, the program needs ",
                       text(piece, type)));
  std::map<std::size_t, const FileTensor*> tensors;
  for (const PieceCopy& copy : cover(held->second, piece, elements)) {
    const FileTensor*& tensor = tensors[copy.piece];
    if (!tensor) tensor = &stored_piece(held->second[copy.piece], elements, type.dtype);
    copy_elements(*tensor, copy.from, type.dtype, part_of(out, type.dtype, copy.to, copy.count));
  }
}

// A piece of a tensor of so many elements, as the checkpoint has it.
const FileTensor& StateReader::stored_piece(const Piece& piece, std::int64_t elements, DType dtype) {
  const std::string name = piece_name(piece), file = index_.at(name);
  const FileTensor& tensor = stored(name, file);
  const std::int64_t held = elements_of(piece, elements);
  if (piece.cuts.back().stride == 0) {
    if (const TensorType needed{dtype, {held}}; tensor.type != needed) fail_type(file, name, tensor.type, needed.text());
  } else if (tensor.type.dtype != dtype || !fits(piece, elements, tensor.type.elements())) {
    fail_type(file, name, tensor.type, concat(counted(held, "element"), " of ", penstock::name(dtype)));
  }
  return tensor;
}

bool StateReader::has(const std::string& name) const {
  if (source_.kind != StateSource::Kind::values || source_.values.contains(name)) return true;
  const std::string tensor = parse_piece(name).tensor;
  return source_.values.contains(tensor) || source_.files.contains(tensor);
}

void StateReader::read_value(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const auto same = source_.values.find(name);
  const std::vector<std::byte>& value = same != source_.values.end() ? same->second : source_.values.at(piece.tensor);
  const Piece wanted = same != source_.values.end() ? Piece{piece.tensor} : piece;
  const TensorType flat{type.dtype, {std::ssize(value) / byte_size(type.dtype)}};
  if (flat.bytes() != std::ssize(value) || !fits(wanted, flat.elements(), type.elements()))
    throw Error(concat("the value of ", quote(piece.tensor), " has ", value.size(), " bytes, the program needs ", text(piece, type)));
  copy_piece(StoredTensor{flat, value}, wanted, type.dtype, out);
}

void StateReader::read_file(const StoredTensorName& from, const Piece& piece, const TensorType& type, std::span<std::byte> out) {
  const FileTensor& tensor = stored(from.name, from.file);
  const bool convert = is_floating(type.dtype) && is_floating(tensor.type.dtype);
  const bool same = piece.whole() ? tensor.type.shape == type.shape : fits(piece, tensor.type.elements(), type.elements());
  if (!same || (tensor.type.dtype != type.dtype && !convert)) fail_type(from.file, from.name, tensor.type, text(piece, type));
  copy_piece(tensor, piece, type.dtype, out);
}

void StateReader::read(const std::string& name, const TensorType& type, std::span<std::byte> out) {
  const Piece piece = parse_piece(name);
  if (source_.kind == StateSource::Kind::values) {
    const auto stored = source_.files.find(piece.tensor);
    return stored == source_.files.end() ? read_value(name, piece, type, out) : read_file(stored->second, piece, type, out);
  }
  if (source_.kind == StateSource::Kind::checkpoint) return read_state(name, piece, type, out);
  if (const auto spec = specs_.find(piece.tensor); spec != specs_.end()) return read_parameter(*spec->second, piece, type, out);
  std::ranges::fill(out, std::byte{0});  // moments and counters start at zero
}

}  // namespace penstock
