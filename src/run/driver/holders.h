// SPDX-License-Identifier: Apache-2.0
// Which devices have the present value of each state.
//
// A program leaves all copies that it has alike, which the verifier proves. But programs need not have a state on the same devices: a
// training step updates running statistics on the device where they arise, a gradient step, in which nobody reads them, has them on the
// first, and an evaluation on each that reads them. So a device may have the value of an earlier step, until the present one is brought to
// it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/program.h"

namespace penstock {

class Holders {
 public:
  // A program that is loaded. Devices that had nothing of a state which others have are behind.
  void load(std::uint64_t key, const Program& program);
  void unload(std::uint64_t key) { programs_.erase(key); }
  // A step of the program has ended well: what it updates is out of date where other programs alone have it.
  void stepped(std::uint64_t key);
  // All devices have been given the present value of this tensor; of all.
  void set(const std::string& tensor) { behind_.erase(tensor); }
  void set_all() { behind_.clear(); }

  // The names of the tensors that a step of the program changes.
  const std::set<std::string>& updated(std::uint64_t key) const { return programs_.at(key).updated; }
  // The tensors that are out of date on a device on which the program has them.
  std::vector<std::string> outdated(std::uint64_t key) const;
  // The tensors that are out of date anywhere.
  std::vector<std::string> outdated() const;
  // The devices on which this tensor is.
  std::set<std::size_t> behind(const std::string& tensor) const;

 private:
  using Devices = std::map<std::string, std::set<std::size_t>>;  // by tensor
  struct Loaded {
    Devices holders;
    std::set<std::string> updated;
    Devices elsewhere = {};   // of what it updates, the devices on which it does not have it,
    std::int64_t known = -1;  // as of this number of changes_
  };

  std::map<std::uint64_t, Loaded> programs_;
  Devices holders_;           // of all programs that were ever loaded: what is unloaded leaves its state where it is
  std::int64_t changes_ = 0;  // of holders_
  Devices behind_;            // no set is empty
};

}  // namespace penstock
