// What the controller tells a device and what it answers. In one process these travel as they are, between processes as bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/cluster.h"

namespace penstock {

struct Command {
  enum class Kind : std::uint8_t { load, set_state, step, save_state, state, stop } kind = Kind::stop;
  std::uint64_t program = 0;            // load, step: its hash
  std::shared_ptr<const Program> body;  // load
  StateSource source;                   // set_state
  StepInput input;                      // step
  bool record_spans = false;            // step
  std::string text;                     // save_state: the folder; state: the tensor's name
};

// What a device owns of a state tensor: all of it, or a piece.
struct OwnedState {
  std::string name;
  std::vector<std::byte> bytes;
  bool operator==(const OwnedState&) const = default;
};

struct Reply {
  std::string error;               // a whole message; empty: it went well
  bool aborted = false;            // the error is that another device failed
  std::vector<std::int32_t> lost;  // the error blames one of these peers, gone or silent: its own, where there is one, tells more
  std::map<std::string, std::vector<std::byte>> outputs;  // step
  DeviceReport report;                                    // step
  std::string file;                                       // save_state: empty if this device owns nothing
  std::vector<OwnedState> state;                          // state: none if this device owns nothing of it
  bool stopping = false;                                  // a signal asks the device's process to stop
};

// Little-endian, lengths before contents, a version first. A program travels as its text. decode_* throw Error for bytes that
// encode() did not write.
std::vector<std::byte> encode(const Command& command);
std::vector<std::byte> encode(const Reply& reply);
Command decode_command(std::span<const std::byte> bytes);
Reply decode_reply(std::span<const std::byte> bytes);

}  // namespace penstock
