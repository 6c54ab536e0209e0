#include "penstock/session.h"

#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "driver/thread_cluster.h"
#include "penstock/error.h"
#include "profile/measured.h"
#include "program/state_parts.h"
#include "program/verify.h"
#include "torch/executor.h"

namespace penstock {

// Hands out the tensors of the step that is running.
class StepData : public DataSource {
 public:
  const HostTensors* tensors = nullptr;

  void fill(const Port& port, const StepInput&, std::int64_t first_row, std::int64_t, std::span<std::byte> out) const override {
    const HostTensor& tensor = tensors->at(port.name);
    const std::size_t row = port.type.shape.empty() ? 0 : tensor.bytes.size() / static_cast<std::size_t>(port.type.shape[0]);
    std::ranges::copy(std::span(tensor.bytes).subspan(static_cast<std::size_t>(first_row) * row, out.size()), out.begin());
  }
};

namespace {

std::vector<std::string> names_of(const auto& map) {
  std::vector<std::string> out;
  for (const auto& entry : map) out.push_back(entry.first);
  return out;
}

void check_data(const Program& program, const HostTensors& data) {
  std::map<std::string, TensorType> wanted;
  for (const Port& port : program.data) wanted[port.name] = port.type;
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

}  // namespace

void check_host_tensor(const TensorType& type, DType dtype, std::size_t count) {
  if (type.dtype != dtype) throw Error(concat("the tensor is ", type.text(), ", asked for are ", name(dtype), " values"));
  const bool countable = std::none_of(type.shape.begin(), type.shape.end(), [](std::int64_t size) { return size < 0; });
  if (!countable || static_cast<std::size_t>(type.elements()) != count)
    throw Error(concat(type.text(), " is given ", count, count == 1 ? " value" : " values"));
}

struct Session::Impl {
  std::shared_ptr<StepData> data = std::make_shared<StepData>();
  std::unique_ptr<Cluster> cluster;
  struct Loaded {
    Program program;
    std::uint64_t hash;
  };
  std::map<std::string, Loaded> programs;
  // All state of the programs. The type is that of the whole, one-dimensional where no device holds it whole.
  struct State {
    TensorType type;
    std::vector<StatePiece> pieces;
  };
  std::map<std::string, State> states;
  std::int64_t steps = 0;

  void add_states(const Program& program);
  const State& state(const std::string& name) const;
  const Loaded& loaded(const std::string& name) const;
};

void Session::Impl::add_states(const Program& program) {
  for (const auto& [tensor, parts] : checks::state_parts(program, SlotClass::state)) {
    if (const auto known = states.find(tensor); known != states.end() && known->second.type.shape.size() != 1) continue;
    State state;
    const checks::StatePart& first = parts.front();
    state.type = first.piece.whole() ? *first.type : TensorType{first.type->dtype, {checks::whole_elements(parts)}};
    for (const checks::StatePart& part : parts)
      for_each_run(part.piece, state.type.elements(),
                   [&](const PieceRun& run) { state.pieces.push_back({tensor, static_cast<int>(part.device), run.begin, run.end}); });
    states[tensor] = std::move(state);
  }
}

const Session::Impl::State& Session::Impl::state(const std::string& name) const {
  const auto found = states.find(name);
  if (found == states.end()) throw Error(concat("no loaded program has the state ", quote(name)), {}, did_you_mean(name, names_of(states)));
  return found->second;
}

const Session::Impl::Loaded& Session::Impl::loaded(const std::string& name) const {
  const auto found = programs.find(name);
  if (found == programs.end()) throw Error(concat("no program is loaded as ", quote(name)), {}, did_you_mean(name, names_of(programs)));
  return found->second;
}

Session::Session(int devices, const SessionOptions& options) : impl_(std::make_unique<Impl>()) {
  if (devices < 1 || options.threads < 1 || !(options.deadline > 0))
    throw Error(concat("a session of ", devices, " devices, ", options.threads, " threads each and a deadline of ", options.deadline, " s"),
                {}, "all are above 0");
  impl_->cluster = make_thread_cluster(devices, torch_executor_factory(options.threads), impl_->data, {.deadline = options.deadline});
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::load(const std::string& name, const Program& program) {
  if (static_cast<int>(program.devices.size()) > impl_->cluster->devices())
    throw Error(concat("program @", program.name, " is for ", counted(static_cast<std::int64_t>(program.devices.size()), "device"),
                       ", the session has ", impl_->cluster->devices()));
  if (const auto other = impl_->programs.find(name); other != impl_->programs.end() && other->second.hash != hash(program))
    throw Error(concat("another program is loaded as ", quote(name)));
  const std::uint64_t id = impl_->cluster->load(program);
  impl_->programs[name] = {program, id};
  impl_->add_states(program);
}

void Session::initialise(const std::vector<ParameterSpec>& parameters, std::int64_t seed) {
  StateSource source;
  source.seed = seed;
  source.parameters = parameters;
  impl_->cluster->set_state(source);
}

void Session::set_state(const HostTensors& state) {
  StateSource source;
  source.kind = StateSource::Kind::values;
  for (const auto& [name, tensor] : state) {
    const TensorType& type = impl_->state(name).type;
    const bool same =
        type == tensor.type || (type.shape.size() == 1 && type.dtype == tensor.type.dtype && type.elements() == tensor.type.elements());
    if (!same || tensor.bytes.size() != static_cast<std::size_t>(type.bytes()))
      throw Error(concat("the state ", quote(name), " is ", type.text(), "; it is given as ", tensor.type.text(), " in ",
                         tensor.bytes.size(), " bytes"));
    source.values[name] = tensor.bytes;
  }
  impl_->cluster->set_state(source);
}

HostTensor Session::state(const std::string& name) {
  const TensorType type = impl_->state(name).type;
  return {type, impl_->cluster->state(name)};
}

std::map<std::string, SharedTensor> Session::share_state() {
  return impl_->cluster->share_state();
}

std::vector<StatePiece> Session::pieces() const {
  std::vector<StatePiece> out;
  for (const auto& [name, state] : impl_->states) out.insert(out.end(), state.pieces.begin(), state.pieces.end());
  return out;
}

StepReport Session::step(const std::string& name, const HostTensors& data, bool record) {
  const auto& [program, id] = impl_->loaded(name);
  check_data(program, data);
  impl_->data->tensors = &data;
  StepInput input;
  input.step = ++impl_->steps;
  StepResult result = impl_->cluster->step(id, input, record);
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

}  // namespace penstock
