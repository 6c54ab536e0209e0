// SPDX-License-Identifier: Apache-2.0
// All devices of a run, wherever they are: threads of this process, or other processes. The controller (rank 0) holds a Cluster
// and tells every device the same things by messages; each device's worker (worker.h) obeys. In one process the messages are handed to
// its thread, between processes they go through the rendezvous store.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/program.h"
#include "penstock/session.h"
#include "penstock/shared_tensor.h"
#include "penstock/trace.h"

namespace penstock {

// The input of one step: the samples' numbers in the data set, in the order of the batch's rows.
struct StepInput {
  std::int64_t step = 0;    // from 1
  std::int64_t seed = 0;    // of the run; data port "seed"
  bool validation = false;  // samples are of the validation split
  std::vector<std::int64_t> samples = {};
  // Where rows hold several samples: the place in `samples` at which each row begins. Empty: a row for each sample.
  std::vector<std::int64_t> begins = {};
  std::int64_t steps = 1;  // of training at once (Schedule::steps): equal parts of `samples`, `step` being the first
  double deadline = 0;     // the most seconds that one wait may take; 0: as the cluster says
};

// Fills data ports (a model's, "rows" and "seed"); every device has its own and reads only what it needs. Must be const-safe
// from several threads.
class DataSource {
 public:
  virtual ~DataSource() = default;
  // Rows [first_row, first_row + rows) of `port` for this step, dense. `out` has just their size. Throws Error for an unknown port.
  virtual void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                    std::span<std::byte> out) const = 0;
  // A hash of the data: devices whose data differ do not train together, nor does a resumed run go on with other data. 0: what the
  // configuration says is all there is to it.
  virtual std::uint64_t fingerprint() const { return 0; }
};

// A record of what a device did during a step, in the order of time: a span for each instruction but frees, and for each wait.
struct Span {
  std::int32_t device = 0;
  std::uint32_t instruction = 0;  // of the device's program; of a wait: the one waited for
  bool waited = false;
  std::int64_t begin = 0, end = 0;  // ns since the step's begin on that device
  std::int64_t allocated = 0;       // of a run: bytes that its kernels allocated beside what the program planned, at their peak
};
struct DeviceReport {
  std::int64_t begin = 0, end = 0;  // of the step, ns of the machine's steady clock: comparable between devices of one machine
  double busy = 0, waiting = 0;     // seconds: in runs; in waits. NaN: not known, of a device that waits by itself and keeps no times
  std::int64_t planned_bytes = 0;   // state + step + scratch arenas; without the host's
  std::int64_t measured_bytes = 0;  // arenas + what kernels allocated beside them, peak
  std::vector<Span> spans;          // empty unless asked for
};
struct StepResult {
  double seconds = 0;
  std::map<std::string, std::vector<std::byte>> outputs;  // by Program::outputs' names
  std::vector<DeviceReport> devices;
  bool stopping = false;  // a device's process was asked to stop: the run should
};

// Where state comes from.
struct StateSource {
  enum class Kind : std::uint8_t { initialise, checkpoint, safetensors, values } kind = Kind::initialise;
  std::int64_t seed = 0;                       // initialise: the draws
  std::vector<ParameterSpec> parameters = {};  // initialise: what to draw; the rest of the state ("first:", "second:", "step") is zero
  // checkpoint: its folder; safetensors: parameters in a checkpoint's folder, or in what another program wrote
  // (state/weight_files.h). The rest is zero, and adapters that are not there are drawn.
  std::string path = {};
  // values: of whole tensors and of parts that devices have, by name; the rest stays as it is
  std::map<std::string, std::vector<std::byte>> values = {};
  std::map<std::string, StoredTensorName> files = {};  // values: of whole tensors, by name; each device reads what it has of them
};

class Cluster {
 public:
  virtual ~Cluster() = default;  // stops the workers
  // Whether devices may go and come while the cluster lives.
  virtual bool is_elastic() const { return false; }
  // Whether a device was lost, or a step failed, since the devices were grouped last.
  virtual bool has_failed() const { return false; }
  // How many devices wait to be taken in.
  virtual int waiting() { return 0; }
  // After a failure, or where devices wait: leaves out those that are gone, takes in those that wait, and numbers them anew, so that the
  // place of one that is gone is taken by the last. Gives, by new number, the old one; -1: it has come now. All programs are forgotten, and
  // where one was lost the state is of no step until it is set. Throws Error where no device is left.
  virtual std::vector<std::int32_t> regroup() { return {}; }
  // Sets the state of all loaded programs to what it was when a step of a program of lower/snapshot.h began that ended well, the last of
  // this generation, on the devices that it had then. Throws Error where the devices that are left have not all of it.
  virtual void restore(int /*generation*/) {}
  virtual int devices() const = 0;
  // Gives each device its program and binds it; verified before it leaves. Cached by hash: a second call costs a lookup.
  // Returns the hash. The state of the devices is kept where names agree. What programs before it hold on other devices or in other pieces
  // is moved before its first step (lower/move_state.h), and then forgotten where no loaded program has it. Throws Error for a part of
  // another type than it is held as.
  virtual std::uint64_t load(std::shared_ptr<const Program> program) = 0;
  std::uint64_t load(const Program& program) { return load(std::make_shared<const Program>(program)); }
  // Forgets a loaded program, so that programs that run once take no memory. What it holds of the state goes on to the program that runs
  // next, as from every program to the next.
  virtual void unload(std::uint64_t program) = 0;
  // Sets the state that the loaded programs name. Of values each device gets what it has. Throws Error (missing tensors, other shapes),
  // naming file and tensor.
  virtual void set_state(const StateSource& source) = 0;
  // Runs one step. Throws Error when a wait passes its deadline (device, instruction and peer named), a task fails or a device is lost.
  // Where no device had begun to write state, that is as it was before, and the next step may follow; where one had, what the step updates
  // must be set before it can be read or another step can be made. A device that was lost makes no step, and neither do the others.
  virtual StepResult step(std::uint64_t program, const StepInput& input, bool record_spans = false) = 0;
  // Each device writes the state it owns to <folder>/device-<n>.safetensors. Returns the files' names, of the devices that own any.
  virtual std::vector<std::string> save_state(const std::string& folder) = 0;
  // Begins to write the snapshot that restore() would take, each part from the memory of the device that owned it, to
  // <folder>/device-<n>.safetensors, and returns at once, with the files' names. Until they are written no step may write this generation,
  // and no device be left out. Throws Error where a device has not what it had, or still writes another.
  virtual std::vector<std::string> persist(int /*generation*/, const std::string& /*folder*/) { return {}; }
  // Returns those of the files that are written by now. Throws Error where one could not be (path and reason).
  virtual std::vector<std::string> persisted() { return {}; }
  // A copy of one state tensor, from its owner or put together from the owners of its pieces. Throws Error if nobody has it.
  virtual std::vector<std::byte> state(const std::string& name) = 0;
  // Every state tensor that lies whole in the memory of a device of this process, its owner, by name: as steps leave it, until a load or a
  // step of another program moves it.
  virtual std::map<std::string, SharedTensor> share_state() = 0;
  // Throws Error where a failed step has written a part of the state, as step(), state() and save_state() do, and share_state() does not.
  virtual void check_state() const = 0;
  // Where the devices' processes make the same calls as this one (gloo_cluster.h, Follower): begin_call waits for them all, and throws
  // Error where one makes another `call`; end_call, behind each begin_call, gives them the results, or the error that the call ended with.
  virtual void begin_call(const std::string& call) = 0;
  virtual void end_call(const Shared& results, const std::string& error) = 0;
};

}  // namespace penstock
