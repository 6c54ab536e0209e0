// SPDX-License-Identifier: Apache-2.0
// One device: owns executor, transport and data, and obeys the controller.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "devices/cluster.h"
#include "devices/device_runner.h"
#include "devices/executor.h"
#include "driver/messages.h"

namespace penstock {

class Worker {
 public:
  // Makes a transport anew, as this command says: under a name that all devices say, for the number that this one has from now on.
  using Connect = std::function<std::unique_ptr<Transport>(const Command& reconnect)>;

  // `transport`: null where it is made by the first `reconnect`. `commit`: that of all devices of this process. `connect`: none where the
  // transport is made ready by its hub.
  Worker(int device, std::unique_ptr<Executor> executor, std::unique_ptr<Transport> transport, std::shared_ptr<const DataSource> data,
         std::shared_ptr<Commit> commit, std::chrono::nanoseconds deadline, Connect connect = {});

  // Never throws what a user or a peer can cause: it is in the reply. A program with fewer devices than this one's number leaves it idle.
  // After a failed step it does all but steps; those too where its executor has no lanes, or such as go on, and its transport was made
  // ready.
  Reply obey(const Command& command);

 private:
  struct Part {
    std::string name;
    TensorType type;
    bool owned;
    SlotId slot;
    std::size_t offset;  // in the slot
  };

  void obey(const Command& command, Reply& reply);
  void reconnect(const Command& command);
  void step(const Command& command, Reply& reply);
  void set_state(const StateSource& source);
  void save_state(const std::string& folder, Reply& reply);
  void persist(const Command& command, Reply& reply);
  bool persists() const;
  void bind(std::uint64_t program);
  std::vector<Part> state_parts() const;  // of the bound program
  std::vector<std::byte> bytes_of(const Part& part);
  void complete(Event event);
  std::set<std::string> owned_names(std::uint64_t program) const;
  std::map<std::string, SharedTensor> share_state() const;
  std::vector<OwnedState> find_state(const std::string& name);
  OwnedState copy_of(const std::string& name, std::uint64_t program);

  int device_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<const DataSource> data_;
  std::shared_ptr<Commit> commit_;
  std::chrono::nanoseconds deadline_;
  Connect connect_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Program>> programs_;  // that this device takes part in
  std::vector<std::uint64_t> order_;                                            // as they came
  std::uint64_t bound_ = 0;
  bool is_bound_ = false;
  std::unordered_map<std::uint64_t, std::unique_ptr<DeviceRunner>> runners_;  // of programs that made steps since addresses changed
  std::uint64_t placement_ = 0;                                               // of the executor, when that was
  bool stopped_ = false;                       // a step failed, and its lanes are stopped or its transport is gone
  std::shared_future<std::string> persisted_;  // the file that a thread writes, or has written
};

}  // namespace penstock
