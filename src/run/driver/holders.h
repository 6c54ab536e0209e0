// SPDX-License-Identifier: Apache-2.0
// Which parts that devices hold have the present value of a state.
//
// A program leaves all copies that it has alike, which the verifier proves. But programs need not have a state on the same devices, or in
// the same pieces: a training step updates running statistics on the device where they arise, a gradient step, in which nobody reads them,
// has them on the first, and an evaluation on each that reads them; and a program for fewer devices has larger shares. So a part may have
// the value of an earlier step, or none, until the present one is moved there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/program.h"

namespace penstock {

class Holders {
 public:
  using Part = std::pair<std::size_t, std::string>;  // device, and the name of the state or of the piece of one

  // A program that is loaded. Parts of tensors that are there which were not there are behind.
  void load(std::uint64_t key, const Program& program);
  void unload(std::uint64_t key) { programs_.erase(key); }
  // A step of the program has ended well: what it updates is out of date in the parts that other programs alone have.
  void stepped(std::uint64_t key);
  // All parts of loaded programs have been given a new value of this tensor; of all tensors.
  void set(const std::string& tensor);
  void set_all();
  // All parts of this program have been given the present values.
  void moved(std::uint64_t key);
  // All programs are gone, and the devices have other numbers: by new number the old one, -1 for one that holds nothing.
  void regroup(const std::vector<std::int32_t>& from);
  // The part is there no more.
  void forget(const std::string& tensor, const Part& part);

  // The names of the tensors that a step of the program changes.
  const std::set<std::string>& updated(std::uint64_t key) const { return programs_.at(key).updated; }
  // The tensors that are out of date in a part that the program has.
  std::vector<std::string> outdated(std::uint64_t key) const;
  bool is_behind(const std::string& tensor, const Part& part) const;
  // A program that has the tensor, where each that has it has it out of date.
  std::optional<std::uint64_t> outdated_in_all(const std::string& tensor) const;
  // Whether a program has a part of the tensor, and whether any has this one.
  bool has(std::uint64_t key, const std::string& tensor) const { return programs_.at(key).holders.contains(tensor); }
  bool any_has(const std::string& tensor, const Part& part) const;

 private:
  using Parts = std::map<std::string, std::set<Part>>;  // by tensor
  struct Loaded {
    Parts holders;
    std::set<std::string> updated;
    Parts elsewhere = {};     // of what it updates, the parts that it does not have,
    std::int64_t known = -1;  // as of this number of changes_
  };

  std::map<std::uint64_t, Loaded> programs_;
  Parts holders_;             // of all programs that were ever loaded: what is unloaded leaves its state where it is
  std::int64_t changes_ = 0;  // of holders_
  Parts behind_;              // no set is empty
};

}  // namespace penstock
