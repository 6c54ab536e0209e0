// SPDX-License-Identifier: Apache-2.0
// Reads the values of a device's state from a StateSource.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "formats/safetensors.h"
#include "program/piece.h"

namespace penstock {

// Reads each file once, however many tensors come from it.
class StateReader {
 public:
  // Throws Error for a file or checkpoint that cannot be read. `source` outlives the reader.
  explicit StateReader(const StateSource& source);

  // Whether the source says anything of this state: `values` leaves the others as they are.
  bool has(const std::string& name) const;
  // Reads the value of one state tensor, or of a piece of one (program/piece.h), whether the source holds it whole or in other pieces.
  // `out` has the type's bytes. Throws Error naming file and tensor: missing, or of another type or size (values: as many bytes; a file of
  // parameters may have another floating dtype: it is converted).
  void read(const std::string& name, const TensorType& type, std::span<std::byte> out);

 private:
  const std::map<std::string, FileTensor>& tensors_of(const std::string& file);
  bool is_drawn(const ParameterSpec& spec);
  const FileTensor& stored(const std::string& name, const std::string& file);
  const FileTensor& weight(const std::string& name);
  void read_value(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out);
  void read_file(const StoredTensorName& stored, const Piece& piece, const TensorType& type, std::span<std::byte> out);
  void read_parameter(const ParameterSpec& spec, const Piece& piece, const TensorType& type, std::span<std::byte> out);
  void read_state(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out);
  void assemble(const std::string& name, const Piece& piece, const TensorType& type, std::span<std::byte> out);
  std::int64_t elements_in(const std::vector<Piece>& pieces);
  const FileTensor& stored_piece(const Piece& piece, std::int64_t elements, DType dtype);

  const StateSource& source_;
  std::map<std::string, const ParameterSpec*> specs_;
  std::map<std::string, std::string> index_;          // for a checkpoint: the file of each tensor or piece
  std::map<std::string, std::vector<Piece>> pieces_;  // for a checkpoint: the pieces of each tensor that it has in pieces
  std::map<std::string, std::string> weights_;        // for parameters that another program saved: the file of each tensor
  std::map<std::string, SafetensorsFile> files_;
};

}  // namespace penstock
