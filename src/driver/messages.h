// The messages between the controller and a device. In one process they are passed as they are, between processes as bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "penstock/program.h"

namespace penstock {

struct Command {
  enum class Kind : std::uint8_t { load, unload, set_state, step, save_state, state, stop } kind = Kind::stop;
  std::uint64_t program = 0;            // for load, unload, step: the program's hash
  std::shared_ptr<const Program> body;  // for load
  StateSource source;                   // for set_state
  StepInput input;                      // for step
  bool record_spans = false;            // for step
  std::string text;                     // for save_state: the folder; for state: the tensor's name
};

// What a device owns of a state tensor: all of it, or a piece.
struct OwnedState {
  std::string name;
  std::vector<std::byte> bytes;
  DType dtype = DType::f32;
  bool operator==(const OwnedState&) const = default;
};

struct Reply {
  std::string error;     // a whole message; empty: no error
  bool aborted = false;  // whether the error is that another device failed
  // Peers, gone or silent, one of which the error blames; the peer's own error, where there is one, says more.
  std::vector<std::int32_t> lost;
  std::map<std::string, std::vector<std::byte>> outputs;  // for step
  DeviceReport report;                                    // for step
  std::string file;                                       // for save_state: empty if this device owns nothing
  std::vector<OwnedState> state;                          // for state: empty if this device owns nothing of it
  bool stopping = false;                                  // whether a signal asks the device's process to stop
};

// Encoding is little-endian, with lengths before contents and a version first. A program travels as its text. decode_* throw Error for
// bytes that encode() did not write.
std::vector<std::byte> encode(const Command& command);
std::vector<std::byte> encode(const Reply& reply);
Command decode_command(std::span<const std::byte> bytes);
Reply decode_reply(std::span<const std::byte> bytes);

}  // namespace penstock
