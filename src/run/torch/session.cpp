// SPDX-License-Identifier: Apache-2.0
#include "penstock/session.h"

#include <algorithm>
#include <utility>

#include "base/sip_hash.h"
#include "base/text.h"
#include "base/words.h"
#include "driver/thread_cluster.h"
#include "formats/safetensors.h"
#include "penstock/error.h"
#include "profile/measured.h"
#include "program/backends.h"
#include "program/state_parts.h"
#include "program/verify.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/given_data.h"
#include "torch/gloo_cluster.h"
#include "torch/stream_hub.h"
#include "trace/microbatch_port.h"

namespace penstock {

namespace {

std::vector<std::string> names_of(const auto& map) {
  std::vector<std::string> out;
  for (const auto& entry : map) out.push_back(entry.first);
  return out;
}

void check_data(const Program& program, const HostTensors& data) {
  std::map<std::string, TensorType> wanted;
  for (const Port& port : program.data)
    if (port.name != kMicrobatchPort) wanted[port.name] = port.type;
  for (const auto& [name, tensor] : data)
    if (!wanted.contains(name))
      throw Error(concat("program @", program.name, " reads no data ", quote(name)), {concat("it reads ", join(names_of(wanted), ", "))},
                  did_you_mean(name, names_of(wanted)));
  for (const auto& [name, type] : wanted) {
    const auto given = data.find(name);
    if (given == data.end()) throw Error(concat("program @", program.name, " reads ", quote(name), ", ", type.text(), "; it is not given"));
    check_host_tensor(given->second.type, given->second.type.dtype,
                      given->second.bytes.size() / static_cast<std::size_t>(byte_size(type.dtype)));
    if (given->second.type != type)
      throw Error(
          concat("program @", program.name, " reads ", quote(name), " as ", type.text(), "; it is given as ", given->second.type.text()));
  }
}

// The bytes, or of many a sample that is spread over them.
std::uint64_t sample_hash(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlock = 64, kBlocks = 1024;
  if (bytes.size() <= kBlock * kBlocks) return sip_hash({}, bytes);
  std::vector<std::byte> sample;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const auto from = bytes.subspan((bytes.size() - kBlock) * block / (kBlocks - 1), kBlock);
    sample.insert(sample.end(), from.begin(), from.end());
  }
  return sip_hash({}, sample);
}

// A call as the ranks compare it: check_call.
std::string described(const std::string& call, const HostTensors& data) {
  std::string out = call;
  for (const auto& [name, tensor] : data)
    out += concat("\n", name, " is ", tensor.type.text(), " with contents ", hex(sample_hash(tensor.bytes)));
  return out;
}

}  // namespace

void check_host_tensor(const TensorType& type, DType dtype, std::size_t count) {
  if (type.dtype != dtype) throw Error(concat("the tensor is ", type.text(), ", asked for are ", name(dtype), " values"));
  const bool countable = std::none_of(type.shape.begin(), type.shape.end(), [](std::int64_t size) { return size < 0; });
  if (!countable || static_cast<std::size_t>(type.elements()) != count)
    throw Error(concat(type.text(), " is given ", count, count == 1 ? " value" : " values"));
}

struct Session::Impl {
  std::shared_ptr<GivenData> data = std::make_shared<GivenData>();
  int ranks = 1;
  std::unique_ptr<Cluster> cluster;    // none: another rank's
  std::unique_ptr<Follower> follower;  // of that
  bool together = false;               // whether all ranks are in a call
  struct Loaded {
    std::shared_ptr<const Program> program;
    std::uint64_t hash;
  };
  std::map<std::string, Loaded> named;
  std::vector<std::shared_ptr<const Program>> programs;
  // The types of all state of all programs there were: those of the whole, one-dimensional where no device held it whole.
  std::map<std::string, TensorType> states;
  std::int64_t steps = 0;

  Cluster& devices() const;
  Shared follow(const std::string& call, const HostTensors& given);
  void add(std::shared_ptr<const Program> program);
  void add_states(const Program& program);
  const TensorType& state(const std::string& name) const;
  const Loaded& loaded(const std::string& name) const;
};

// Throws Error where it is not this rank's turn.
Cluster& Session::Impl::devices() const {
  if (!cluster && !follower) throw Error("the session is closed");
  if (!cluster) throw Error("this rank's session only does what rank 0 does", {}, "make the call inside of Session::together");
  if (ranks > 1 && !together) throw Error("the other ranks do not take part in this call", {}, "make it inside of Session::together");
  return *cluster;
}

void Session::Impl::add(std::shared_ptr<const Program> program) {
  add_states(*program);
  programs.push_back(std::move(program));
}

void Session::Impl::add_states(const Program& program) {
  for (const auto& [tensor, parts] : checks::state_parts(program, SlotClass::state)) {
    if (const auto known = states.find(tensor); known != states.end() && known->second.shape.size() != 1) continue;
    const checks::StatePart& first = parts.front();
    states[tensor] = first.piece.whole() ? *first.type : TensorType{first.type->dtype, {checks::whole_elements(parts)}};
  }
}

const TensorType& Session::Impl::state(const std::string& name) const {
  const auto found = states.find(name);
  if (found == states.end()) throw Error(concat("no loaded program has the state ", quote(name)), {}, did_you_mean(name, names_of(states)));
  return found->second;
}

const Session::Impl::Loaded& Session::Impl::loaded(const std::string& name) const {
  const auto found = named.find(name);
  if (found == named.end()) throw Error(concat("no program is loaded as ", quote(name)), {}, did_you_mean(name, names_of(named)));
  return found->second;
}

Session::Session(int devices, const SessionOptions& options) : impl_(std::make_unique<Impl>()) {
  if (devices < 1 || options.threads < 1 || !(options.deadline > 0))
    throw Error(concat("a session of ", devices, " devices, ", options.threads, " threads each and a deadline of ", options.deadline, " s"),
                {}, "all are above 0");
  std::vector<std::string> over_ranks;
  for (const BackendInfo& row : backends())
    if (row.processes) over_ranks.push_back(row.name);
  if (std::ranges::find(over_ranks, options.backend) == over_ranks.end())
    throw Error(concat("there is no backend ", quote(options.backend), " over ranks"), {}, join(over_ranks, " or "));
  const bool nccl = find_backend(options.backend).between_devices;
  const c10::Device device = open_device(options.device);
  const ExecutorFactory executors = torch_executor_factory(options.threads, device, options.ranks.has_value() && !nccl, options.fuse);
  if (!options.ranks) {
    ClusterOptions cluster{.deadline = options.deadline, .interrupted = options.interrupted};
    if (!device.is_cpu()) cluster.hub = [device] { return make_stream_hub(device); };
    impl_->cluster = make_thread_cluster(devices, executors, impl_->data, cluster);
    return;
  }
  const Ranks& ranks = *options.ranks;
  if (ranks.size != devices)
    throw Error(concat(counted(ranks.size, "process"), ranks.size == 1 ? " was" : " were", " started for ", counted(devices, "device")), {},
                "start one for each device");
  impl_->ranks = ranks.size;
  const GlooOptions gloo{.deadline = options.deadline, .run = options.run, .device = options.device, .nccl = nccl};
  if (ranks.rank == 0)
    impl_->cluster = make_gloo_cluster(ranks, executors, impl_->data, gloo);
  else
    impl_->follower = make_gloo_follower(ranks, executors, impl_->data, gloo);
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::load(const std::string& name, const Program& program) {
  Cluster& devices = impl_->devices();
  if (static_cast<int>(program.devices.size()) > devices.devices())
    throw Error(concat("program @", program.name, " is for ", counted(static_cast<std::int64_t>(program.devices.size()), "device"),
                       ", the session has ", devices.devices()));
  if (const auto other = impl_->named.find(name); other != impl_->named.end()) {
    if (other->second.hash != hash(program)) throw Error(concat("another program is loaded as ", quote(name)));
    return;
  }
  const auto loaded = std::make_shared<const Program>(program);
  const std::uint64_t id = devices.load(loaded);
  const auto known = std::ranges::find_if(impl_->named, [&](const auto& other) { return other.second.hash == id; });
  const bool is_new = known == impl_->named.end();
  impl_->named[name] = {is_new ? loaded : known->second.program, id};
  if (is_new) impl_->add(loaded);
}

void Session::unload(const std::string& name) {
  Cluster& devices = impl_->devices();
  const Impl::Loaded unloaded = impl_->loaded(name);
  impl_->named.erase(name);
  if (std::ranges::any_of(impl_->named, [&](const auto& other) { return other.second.hash == unloaded.hash; })) return;
  devices.unload(unloaded.hash);
  std::erase(impl_->programs, unloaded.program);
}

void Session::initialise(const std::vector<ParameterSpec>& parameters, std::int64_t seed) {
  impl_->devices().set_state({.seed = seed, .parameters = parameters});
}

void Session::set_state(const HostTensors& state) {
  Cluster& devices = impl_->devices();
  StateSource source{.kind = StateSource::Kind::values};
  for (const auto& [name, tensor] : state) {
    const TensorType& type = impl_->state(name);
    const bool same =
        type == tensor.type || (type.shape.size() == 1 && type.dtype == tensor.type.dtype && type.elements() == tensor.type.elements());
    if (!same || tensor.bytes.size() != static_cast<std::size_t>(type.bytes()))
      throw Error(concat("the state ", quote(name), " is ", type.text(), "; it is given as ", tensor.type.text(), " in ",
                         tensor.bytes.size(), " bytes"));
    source.values[name] = tensor.bytes;
  }
  devices.set_state(source);
}

void Session::read_state(const std::map<std::string, StoredTensorName>& state) {
  Cluster& devices = impl_->devices();
  std::map<std::string, SafetensorsFile> files;
  for (const auto& [name, stored] : state) {
    const TensorType& type = impl_->state(name);
    if (!files.contains(stored.file)) files.emplace(stored.file, SafetensorsFile::open(stored.file)).first->second.check();
    const auto found = files.at(stored.file).tensors().find(stored.name);
    // Each device says itself that a tensor is not there. Of a piece it cannot tell whether the whole has the program's size.
    if (found != files.at(stored.file).tensors().end() && found->second.type.elements() != type.elements())
      throw Error(concat(stored.file, ": ", quote(stored.name), " is ", found->second.type.text(), ", the state ", quote(name), " is ",
                         type.text()));
  }
  devices.set_state({.kind = StateSource::Kind::values, .files = state});
}

HostTensor Session::state(const std::string& name) {
  Cluster& devices = impl_->devices();
  const TensorType type = impl_->state(name);
  return {type, devices.state(name)};
}

std::map<std::string, SharedTensor> Session::share_state() {
  return impl_->cluster->share_state();
}

void Session::check_state() const {
  if (impl_->cluster) impl_->cluster->check_state();
}

std::vector<StatePiece> Session::pieces() const {
  std::map<std::string, std::vector<StatePiece>> of;
  for (const auto& program : impl_->programs)
    for (const auto& [tensor, parts] : checks::state_parts(*program, SlotClass::state)) {
      const auto [pieces, is_first] = of.try_emplace(tensor);
      if (!is_first) continue;
      for (const checks::StatePart& part : parts)
        for_each_run(part.piece, checks::whole_elements(parts),
                     [&](const PieceRun& run) { pieces->second.push_back({tensor, static_cast<int>(part.device), run.begin, run.end}); });
    }
  std::vector<StatePiece> out;
  for (const auto& [tensor, pieces] : of) out.insert(out.end(), pieces.begin(), pieces.end());
  return out;
}

StepReport Session::step(const std::string& name, const HostTensors& data, bool record, std::int64_t steps) {
  Cluster& devices = impl_->devices();
  const auto& [body, id] = impl_->loaded(name);
  const Program& program = *body;
  check_data(program, data);
  impl_->data->tensors = &data;
  StepResult result = devices.step(id, {.step = impl_->steps + 1, .steps = steps}, record);
  impl_->steps += steps;
  StepReport report;
  report.seconds = result.seconds;
  for (const Port& port : program.outputs) report.outputs[port.name] = {port.type, std::move(result.outputs.at(port.name))};
  for (const DeviceReport& device : result.devices) {
    report.busy.push_back(device.busy);
    report.waiting.push_back(device.waiting);
    report.memory.push_back(device.measured_bytes);
  }
  if (record) report.timeline = timeline_of(program, result, name);
  return report;
}

Shared Session::Impl::follow(const std::string& call, const HostTensors& given) {
  data->tensors = &given;
  Shared results = follower->obey(described(call, given));
  for (const auto& program : follower->programs())
    if (std::ranges::find(programs, program) == programs.end()) add_states(*program);
  programs = follower->programs();
  return results;
}

Shared Session::together(const std::string& call, const HostTensors& data, const std::function<Shared()>& work) {
  if (impl_->follower) return impl_->follow(call, data);
  if (impl_->cluster && impl_->ranks == 1) return work();
  impl_->together = true;
  Cluster& devices = impl_->devices();
  Shared results;
  try {
    devices.begin_call(described(call, data));
    results = work();
  } catch (const std::exception& error) {
    impl_->together = false;
    devices.end_call({}, error.what());
    throw;
  }
  impl_->together = false;
  devices.end_call(results, {});
  return results;
}

bool Session::over_ranks() const {
  return impl_->ranks > 1;
}

void Session::close() {
  impl_->cluster.reset();
  impl_->follower.reset();
}

const std::vector<std::shared_ptr<const Program>>& Session::programs() const {
  return impl_->programs;
}

}  // namespace penstock
