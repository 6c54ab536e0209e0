// SPDX-License-Identifier: Apache-2.0
// The messages between the controller and a device. In one process they are passed as they are, between processes as bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/cluster.h"
#include "penstock/program.h"
#include "penstock/shared_tensor.h"

namespace penstock {

struct Command {
  enum class Kind : std::uint8_t {
    load,
    unload,
    set_state,
    step,
    save_state,
    persist,
    persisted,
    state,
    share_state,
    forget,
    disconnect,
    reconnect,
    begin_call,
    end_call,
    stop
  } kind = Kind::stop;
  std::uint64_t program = 0;                 // for load, unload, step: the program's hash
  std::shared_ptr<const Program> body = {};  // for load
  StateSource source = {};                   // for set_state
  StepInput input = {};                      // for step
  bool record_spans = false;                 // for step
  std::string text = {};                     // for save_state, persist: the folder; for state: the tensor's name; for begin_call: the call;
                                             // for reconnect: a name that no connections had before
  std::int32_t device = -1, devices = 0;     // for reconnect: the number that it has from now on, of how many; -1: as before
  Shared results = {};                       // for end_call
  std::string error = {};                    // for end_call and stop: a whole message; empty: no error
  std::vector<std::string> names = {};       // for forget: of states that no loaded program has; for persist: of parts of
                                             // a snapshot
};

// The part of a state tensor that a device owns: all of it, or a piece.
struct OwnedState {
  std::string name;
  std::vector<std::byte> bytes;
  DType dtype = DType::f32;
  bool operator==(const OwnedState&) const = default;
};

struct Reply {
  std::string error = {};  // a whole message; empty: no error
  bool aborted = false;    // whether the error is that another device failed
  // Peers, gone or silent, one of which the error blames; the peer's own error, where there is one, says more.
  std::vector<std::int32_t> lost = {};
  std::map<std::string, std::vector<std::byte>> outputs = {};  // for step
  DeviceReport report = {};                                    // for step
  std::string file = {};                                       // for save_state, persist: empty if this device owns nothing; for
                                                               // persisted: empty until it is written
  std::vector<OwnedState> state = {};                          // for state: empty if this device owns nothing of it
  std::map<std::string, SharedTensor> shared = {};             // for share_state: what stays in this process
  bool wrote = false;                                          // for step: whether a device of this process had begun to write state
  bool stopping = false;                                       // whether a signal asks the device's process to stop
};

// The graphs of tasks that went through messages lately. The controller has one for all commands that it encodes, each device one for those
// that it decodes: they take in the same, so a program is sent without the tasks that the devices have.
class SentTasks {
 public:
  // The graph of this hash of its text; null: it is not there.
  const TaskGraph* find(std::uint64_t text_hash);
  void add(std::uint64_t text_hash, const TaskGraph& graph);
  // To be called behind each program: forgets graphs that many programs did without.
  void end_program();

 private:
  struct Sent {
    TaskGraph graph;
    std::int64_t used = 0;  // the last program that had it
  };
  std::unordered_map<std::uint64_t, Sent> graphs_;
  std::int64_t programs_ = 0;
};

// Encoding is little-endian, with lengths before contents and a version first. A program travels as its text, and so do the graphs of its
// tasks. decode_* throw Error for bytes that encode() did not write, and for programs with tasks that `tasks` lacks.
std::vector<std::byte> encode(const Command& command, SentTasks& tasks);
std::vector<std::byte> encode(const Reply& reply);
Command decode_command(std::span<const std::byte> bytes, SentTasks& tasks);
Reply decode_reply(std::span<const std::byte> bytes);

}  // namespace penstock
