// SPDX-License-Identifier: Apache-2.0
// The controller's side of a cluster, whatever carries the messages.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/machine.h"
#include "devices/cluster.h"
#include "driver/messages.h"

namespace penstock {

// Brings commands to the devices and all replies back.
class Carrier {
 public:
  virtual ~Carrier() = default;  // stops the devices
  virtual int devices() const = 0;
  virtual int devices_here() const { return devices(); }  // the first of them, on the controller's machine
  // Room for what the devices here plan, where that is no memory of the host; none: it is. Unknown bytes: each device looks at its own.
  virtual std::optional<MemoryRoom> device_room() const { return {}; }
  // By device, of the same kind for all, and often the same one. Null: a device gets none, and its reply is empty. A device that is gone
  // has a reply with an error. Never throws for what a device or a peer can cause.
  virtual std::vector<Reply> exchange(const std::vector<const Command*>& commands) = 0;
  // After a failed step to which all devices have replied: makes them ready for another one. False where that cannot be.
  virtual bool recover() { return false; }
  // Whether devices may go and come: then recover() is not asked, but regroup().
  virtual bool is_elastic() const { return false; }
  // Leaves out devices that are gone, takes in those that wait, and connects all anew. By new number, the old one; -1: it has come now, and
  // holds nothing. The place of one that is gone is taken by the last. The devices have forgotten all programs. Throws Error where none is
  // left.
  virtual std::vector<std::int32_t> regroup() { return {}; }
  // How many devices wait to be taken in.
  virtual int waiting() { return 0; }
  // Tells those that obey from other processes, and waits for no reply.
  virtual void tell(const Command&) {}
};

// Whether the device is no more there: it, or who should hear of it, blames itself.
bool is_gone(const Reply& reply, std::size_t device);

// Numbers `devices` without those that are gone and with those that have come, as Carrier::regroup() gives them: the places of those that
// are gone are taken from the back, first by those that have come.
std::vector<std::int32_t> numbered_anew(std::size_t devices, const std::set<std::size_t>& gone, std::size_t come);

std::unique_ptr<Cluster> make_cluster(std::unique_ptr<Carrier> carrier);

}  // namespace penstock
