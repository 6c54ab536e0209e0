#include "runtime/state_source.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"
#include "runtime/checkpoint.h"
#include "runtime/initialise.h"

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

}  // namespace

StateReader::StateReader(const StateSource& source) : source_(source) {
  for (const ParameterSpec& spec : source.parameters) specs_[spec.name] = &spec;
  if (source.kind == StateSource::Kind::checkpoint) index_ = checkpoint_index(source.path);
}

const StoredTensor& StateReader::stored(const std::string& name, const std::string& file) {
  auto opened = files_.find(file);
  if (opened == files_.end()) opened = files_.emplace(file, SafetensorsFile::open(file)).first;
  const auto& tensors = opened->second.tensors();
  auto found = tensors.find(name);
  // Published GPT-2 files name the tensors with the class's prefix or without.
  if (found == tensors.end() && source_.kind == StateSource::Kind::safetensors) found = tensors.find("transformer." + name);
  if (found == tensors.end()) throw Error(concat(file, ": there is no tensor ", quote(name)), {}, meant(name, keys(tensors)));
  return found->second;
}

void StateReader::copy(const std::string& name, const TensorType& type, const std::string& file, std::span<std::byte> out) {
  const StoredTensor& tensor = stored(name, file);
  const bool convert = source_.kind == StateSource::Kind::safetensors && is_floating(type.dtype) && is_floating(tensor.type.dtype);
  if (tensor.type.shape != type.shape || (tensor.type.dtype != type.dtype && !convert))
    throw Error(concat(file, ": ", quote(name), " is ", tensor.type.text(), ", the program needs ", type.text()));
  if (tensor.type.dtype == type.dtype) {
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(type.elements()); ++i)
    store_element(type.dtype, load_element(tensor.type.dtype, tensor.bytes, i), out, i);
}

void StateReader::read(const std::string& name, const TensorType& type, std::span<std::byte> out) {
  if (source_.kind == StateSource::Kind::checkpoint) {
    const auto file = index_.find(name);
    if (file == index_.end())
      throw Error(concat(source_.path, ": the checkpoint has no tensor ", quote(name)), {}, meant(name, keys(index_)));
    return copy(name, type, file->second, out);
  }
  const auto spec = specs_.find(name);
  if (spec == specs_.end()) {  // moments and counters
    std::fill(out.begin(), out.end(), std::byte{0});
    return;
  }
  if (spec->second->type != type)
    throw Error(concat("parameter ", quote(name), " is ", spec->second->type.text(), ", the program needs ", type.text()));
  if (source_.kind == StateSource::Kind::initialise) return initialise(*spec->second, source_.seed, out);
  copy(name, type, source_.path, out);
}

}  // namespace penstock
