// SPDX-License-Identifier: Apache-2.0
// Penstock inside another program: devices that take compiled programs, state and data by name, and give results, state and timelines.
// No command line, configuration, model class or file is needed:
//
//   const Graph step = parse_graph(text);  // or trace(...), or training_step(model, ...)
//   const Program program = compile(step, make_schedule("1f1b", {.actors = 2, .microbatches = 4}));
//   Session session(2);
//   session.load("train", program);
//   session.set_state({{"w", host_tensor<float>({64, 64}, weights)}});
//   const StepReport report = session.step("train", {{"x", host_tensor<float>({8, 64}, x)}});
//   report.outputs.at("loss");
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/program.h"
#include "penstock/ranks.h"
#include "penstock/shared_tensor.h"
#include "penstock/timeline.h"
#include "penstock/trace.h"

namespace penstock {

// A tensor in the host's memory: dense, row-major, as many bytes as its type has.
struct HostTensor {
  TensorType type;               // says dtype and shape
  std::vector<std::byte> bytes;  // the elements, row-major
};
using HostTensors = std::map<std::string, HostTensor>;

// Makes a tensor of as many values as the shape has elements (Error otherwise). T: float, double, std::int32_t, std::int64_t.
template <class T>
HostTensor host_tensor(Shape shape, const std::vector<T>& values);
// The elements in row-major order. Throws Error where the tensor is of another dtype.
template <class T>
std::vector<T> values(const HostTensor& tensor);

// The devices of a session, and how it waits for them.
struct SessionOptions {
  double deadline = 60;  // seconds that one wait may take
  int threads = 1;       // that each device computes with
  // The device that stages compute on: "cpu"; "cuda", the process's own card, or "cuda:1", that one; or "standin", a device on host threads
  // that behaves as a GPU does and is built with the tests. Devices of one process share it.
  std::string device = "cpu";
  // Each device is one of these processes, all of which make such a session; none: devices are threads of this process.
  std::optional<Ranks> ranks = {};
  std::string run = {};  // over ranks: lines that all must have the same, as what is trained and how
  // Asked now and then while a step of threads runs, by the thread that waits for it: true gives the step up, unless it has begun to write
  // state.
  std::function<bool()> interrupted = {};
  std::string backend = "gloo";  // over ranks: what tensors go over; or "nccl", for devices other than "cpu"
  bool fuse = false;  // whether chains of elementwise ops, sums and casts are one generated kernel each, on devices other than "cpu"
};

// A call that all ranks make gives each of them this.
struct Shared {
  HostTensors tensors;  // by names that the work chose
  std::string text;     // anything else that it gives
};

// A tensor in a safetensors file.
struct StoredTensorName {
  std::string file, name;  // path of the file; the tensor's name in it
};

// Where a state lies: one entry for each range of it that a device owns, or for all of it.
struct StatePiece {
  std::string tensor;               // the state's name
  int device = 0;                   // the device that owns it
  std::int64_t begin = 0, end = 0;  // elements of the flattened tensor
};

// The results of one step, and the time and memory that it took.
struct StepReport {
  HostTensors outputs;                // those of the step graph after its state, by name
  double seconds = 0;                 // of the step, by the clock
  std::vector<double> busy, waiting;  // seconds of each device
  std::vector<std::int64_t> memory;   // bytes of each device at its peak: its arenas and what kernels took beside them
  Timeline timeline;                  // of a recorded step; else empty
};

// Devices with libtorch's kernels and ours, as threads of this process or as the processes of `ranks`. State lives by name across programs
// and steps, and starts as zeros. A program that has it on other devices or in other pieces than those before gets it ahead of its first
// step: what moves it there is a program too. Calls come from one thread at a time.
//
// After an Error that a step throws state can be read, and is as it was before the step, if no device had begun to write it; the next step
// may follow. Where one had, reading state, and steps, throw Error until all that the step updates was set. Where a rank was lost there are
// no more steps; the state of the others can be read.
//
// Over ranks all processes run the same code, and what is called below is called inside of together(), which does it on rank 0 alone:
//
//   Session session(2, {.ranks = ranks_from_environment()});
//   session.together("load", {}, [&] { session.load("train", compile(...)); session.set_state(...); return Shared{}; });
//   const Shared step = session.together("step", data, [&] { return Shared{session.step("train", data).outputs}; });
class Session {
 public:
  // Over ranks it waits for all of them. Throws Error: numbers below 1, as many ranks as devices are not there, what make_gloo_cluster and
  // make_gloo_follower throw, a device or a backend that there is not.
  explicit Session(int devices, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Verifies the program, takes it to the devices and binds it, under a name for step(). Throws Error: a program for more devices than
  // there are, one that does not verify, an op without a kernel, a name that is taken by another program.
  void load(const std::string& name, const Program& program);
  // Forgets the program of this name. Its state stays, also what no other program has; a program that is loaded later finds it.
  void unload(const std::string& name);

  // Draws these parameters as training does; all other state is zero. Throws Error where a loaded program has one of another type.
  void initialise(const std::vector<ParameterSpec>& parameters, std::int64_t seed = 0);
  // Sets these states, whole, on all devices that hold them or pieces of them; all others stay. Throws Error for one that no loaded program
  // has, and for one of another type.
  void set_state(const HostTensors& state);
  // One state, whole, wherever its pieces lie. Throws Error where no loaded program has it.
  HostTensor state(const std::string& name);
  // All state that lies whole on one device of this process, by name, where it lies: steps change it there. A load, or a step of another
  // program, may move a state; what is held then keeps its last value. Copies on other devices do not see what is written there.
  std::map<std::string, SharedTensor> share_state();
  // Throws Error where a failed step has written a part of the state, which share_state() shows all the same.
  void check_state() const;
  // Sets these states from tensors in safetensors files, by name: each device reads what it has of them. Floats are converted.
  void read_state(const std::map<std::string, StoredTensorName>& state);
  // All state of the loaded programs: its tensors by name, and where they lie in the first program that has them. Known to every rank.
  std::vector<StatePiece> pieces() const;

  // Runs one step on `data`: a tensor for each of the program's data ports. `steps`: of training that the program does, those of its table.
  // Throws Error: no such program, a port missing, unknown or of another type; a device that failed or passed the deadline.
  StepReport step(const std::string& name, const HostTensors& data, bool record = false, std::int64_t steps = 1);
  // Runs `work`, on one rank for all; every rank gets its results. `data` is what the steps in it read, the same on all ranks, of which
  // each rank's device reads its own. Throws Error: what `work` throws, on every rank; a rank that makes another call, is given other data
  // (compared by types and a sample of the bytes), is lost or does not come within the deadline.
  Shared together(const std::string& call, const HostTensors& data, const std::function<Shared()>& work);
  // Whether other ranks take part.
  bool over_ranks() const;
  // The programs that were loaded, in their order; known to every rank.
  const std::vector<std::shared_ptr<const Program>>& programs() const;
  // Ends the devices, as the destructor does; over ranks, tells the others. No other call may follow.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The dtype of a C++ type's elements: float, double, std::int32_t or std::int64_t.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}

// Throws Error unless `tensor` has dtype and the elements that `count` says.
void check_host_tensor(const TensorType& type, DType dtype, std::size_t count);

template <class T>
HostTensor host_tensor(Shape shape, const std::vector<T>& values) {
  HostTensor out{{dtype_of<T>(), std::move(shape)}, std::vector<std::byte>(values.size() * sizeof(T))};
  check_host_tensor(out.type, dtype_of<T>(), values.size());
  std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

template <class T>
std::vector<T> values(const HostTensor& tensor) {
  check_host_tensor(tensor.type, dtype_of<T>(), tensor.bytes.size() / sizeof(T));
  std::vector<T> out(tensor.bytes.size() / sizeof(T));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

}  // namespace penstock
