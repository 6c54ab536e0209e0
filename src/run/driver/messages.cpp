// SPDX-License-Identifier: Apache-2.0
#include "driver/messages.h"

#include <concepts>
#include <cstring>
#include <type_traits>

#include "base/text.h"
#include "penstock/error.h"
#include "program/graph_facts.h"

namespace penstock {
namespace {

constexpr std::uint32_t kCommandMark = 0x35435350;  // "PSC5"
constexpr std::uint32_t kReplyMark = 0x35525350;    // "PSR5"

// Values that are written as their bytes are in memory.
template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Writes what it is called with: numbers, texts, lists, maps and, field by field, the structs that have fields() below.
class Writer {
 public:
  explicit Writer(std::uint32_t mark) { put(mark); }

  void operator()(const auto&... values) { (put(values), ...); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <class T>
  void put(const T& value) {
    fields(*this, value);
  }
  template <Plain T>
  void put(const T& value) {
    raw(&value, sizeof value);
  }
  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    raw(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& items) {
    put(std::uint64_t{items.size()});
    if constexpr (Plain<T>)
      raw(items.data(), items.size() * sizeof(T));
    else
      for (const T& item : items) put(item);
  }
  template <class T>
  void put(const std::map<std::string, T>& members) {
    put(std::uint64_t{members.size()});
    for (const auto& [name, member] : members) (*this)(name, member);
  }
  void raw(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

  std::vector<std::byte> bytes_;
};

// The last choice of an enumeration: no message holds a larger one.
constexpr Command::Kind last(Command::Kind) {
  return Command::Kind::stop;
}
constexpr StateSource::Kind last(StateSource::Kind) {
  return StateSource::Kind::values;
}
constexpr Initialiser::Kind last(Initialiser::Kind) {
  return Initialiser::Kind::normal;
}
constexpr DType last(DType) {
  return DType::boolean;
}

// Reads a message as it was written. It never reads past the end, and trusts no length before it has seen the bytes.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::uint32_t mark) : bytes_(bytes) {
    if (next<std::uint32_t>() != mark) fail("it has another kind or version");
  }

  void operator()(auto&... values) { (get(values), ...); }
  template <class T>
  T next() {
    T value{};
    get(value);
    return value;
  }
  void finish() const {
    if (!bytes_.empty()) fail("it is too long");
  }

 private:
  [[noreturn]] static void fail(const char* why) {
    throw Error("a message between devices is not readable", {why}, "all processes must be the same build of penstock");
  }
  template <class T>
  void get(T& value) {
    fields(*this, value);
  }
  template <Plain T>
  void get(T& value) {
    raw(&value, sizeof value);
    if constexpr (std::is_enum_v<T>)
      if (value > last(value)) fail("a choice is out of range");
  }
  void get(bool& flag) { flag = next<std::uint8_t>() != 0; }
  void get(std::string& text) {
    text.resize(length(1));
    raw(text.data(), text.size());
  }
  template <class T>
  void get(std::vector<T>& items) {
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>) {
      items.resize(length(sizeof(T)));
      raw(items.data(), items.size() * sizeof(T));
    } else {
      for (std::uint64_t left = length(1); left > 0; --left) get(items.emplace_back());
    }
  }
  template <class T>
  void get(std::map<std::string, T>& members) {
    for (std::uint64_t left = length(1); left > 0; --left) get(members[next<std::string>()]);
  }
  // Returns how many items, of at least `smallest` bytes each, follow.
  std::uint64_t length(std::size_t smallest) {
    const auto count = next<std::uint64_t>();
    if (count > bytes_.size() / smallest) fail("it is cut short");
    return count;
  }
  void raw(void* data, std::size_t size) {
    if (size > bytes_.size()) fail("it is cut short");
    if (size > 0) std::memcpy(data, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
};

// The fields of each struct in the order in which a message has them, for its writer and its reader.
template <class T, class Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

void fields(auto& message, Is<TensorType> auto& type) {
  message(type.dtype, type.shape);
}
void fields(auto& message, Is<ParameterSpec> auto& p) {
  message(p.name, p.type, p.initial.kind, p.initial.deviation, p.decay, p.adapter);
}
void fields(auto& message, Is<StoredTensorName> auto& stored) {
  message(stored.file, stored.name);
}
void fields(auto& message, Is<StateSource> auto& source) {
  message(source.kind, source.seed, source.path, source.parameters, source.values, source.files);
}
void fields(auto& message, Is<StepInput> auto& input) {
  message(input.step, input.seed, input.validation, input.samples, input.steps, input.begins, input.deadline);
}
void fields(auto& message, Is<HostTensor> auto& tensor) {
  message(tensor.type, tensor.bytes);
}
void fields(auto& message, Is<Shared> auto& results) {
  message(results.tensors, results.text);
}
void fields(auto& message, Is<Span> auto& span) {
  message(span.device, span.instruction, span.waited, span.begin, span.end, span.allocated);
}
void fields(auto& message, Is<DeviceReport> auto& r) {
  message(r.begin, r.end, r.busy, r.waiting, r.planned_bytes, r.measured_bytes, r.spans);
}
void fields(auto& message, Is<OwnedState> auto& state) {
  message(state.name, state.bytes, state.dtype);
}
void fields(auto& message, Is<Reply> auto& r) {
  message(r.error, r.aborted, r.lost, r.outputs, r.report, r.file, r.state, r.wrote, r.stopping);
}
// All that stands behind the program.
void fields(auto& message, Is<Command> auto& c) {
  message(c.source, c.input, c.record_spans, c.text, c.device, c.devices, c.results, c.error, c.names);
}

constexpr std::int64_t kKeptFor = 64;  // programs

// The program's text without its tasks' graphs, these by their hashes, and those that are new.
void put(Writer& out, const Program& program, SentTasks& sent) {
  Program rest = program;
  std::vector<std::uint64_t> hashes;
  std::vector<std::string> fresh;
  Graph empty;
  empty.name = "elsewhere";
  const TaskGraph none = std::move(empty);
  for (Task& task : rest.tasks) {
    hashes.push_back(text_hash(task.graph));
    if (!sent.find(hashes.back())) {
      sent.add(hashes.back(), task.graph);
      fresh.push_back(print(*task.graph));
    }
    task.graph = none;
  }
  sent.end_program();
  out(print(rest), hashes, fresh);
}

std::shared_ptr<const Program> get_program(Reader& in, SentTasks& sent) {
  constexpr const char* kOrigin = "the controller's program";
  auto program = std::make_shared<Program>(parse_program(in.next<std::string>(), kOrigin));
  const auto hashes = in.next<std::vector<std::uint64_t>>();
  for (const std::string& text : in.next<std::vector<std::string>>()) {
    const TaskGraph graph = parse_graph(text, kOrigin);
    sent.add(text_hash(graph), graph);
  }
  for (std::size_t t = 0; t < program->tasks.size(); ++t) {
    const TaskGraph* graph = t < hashes.size() ? sent.find(hashes[t]) : nullptr;
    if (!graph) throw Error(concat("task ", program->tasks[t].name, " of the program that arrived was never sent"));
    program->tasks[t].graph = *graph;
  }
  sent.end_program();
  return program;
}

}  // namespace

const TaskGraph* SentTasks::find(std::uint64_t text_hash) {
  const auto found = graphs_.find(text_hash);
  if (found == graphs_.end()) return nullptr;
  found->second.used = programs_;
  return &found->second.graph;
}

void SentTasks::add(std::uint64_t text_hash, const TaskGraph& graph) {
  graphs_.insert_or_assign(text_hash, Sent{graph, programs_});
}

void SentTasks::end_program() {
  ++programs_;
  std::erase_if(graphs_, [&](const auto& sent) { return sent.second.used + kKeptFor < programs_; });
}

std::vector<std::byte> encode(const Command& command, SentTasks& tasks) {
  Writer out(kCommandMark);
  out(command.kind, command.program, command.body != nullptr);
  if (command.body) put(out, *command.body, tasks);
  fields(out, command);
  return out.take();
}

Command decode_command(std::span<const std::byte> bytes, SentTasks& tasks) {
  Reader in(bytes, kCommandMark);
  Command command;
  in(command.kind, command.program);
  if (in.next<bool>()) {
    command.body = get_program(in, tasks);
    if (hash(*command.body) != command.program) throw Error("the program that arrived is not the one that was sent");
  }
  fields(in, command);
  in.finish();
  return command;
}

std::vector<std::byte> encode(const Reply& reply) {
  Writer out(kReplyMark);
  fields(out, reply);
  return out.take();
}

Reply decode_reply(std::span<const std::byte> bytes) {
  Reader in(bytes, kReplyMark);
  Reply reply;
  fields(in, reply);
  in.finish();
  return reply;
}

}  // namespace penstock
