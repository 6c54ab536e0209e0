#include "driver/messages.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/text.h"
#include "penstock/error.h"
#include "program/graph_facts.h"

namespace penstock {
namespace {

constexpr std::uint32_t kCommandMark = 0x33435350;  // "PSC3"
constexpr std::uint32_t kReplyMark = 0x35525350;    // "PSR5"

class Writer {
 public:
  template <class T>
  void put(T value)
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  {
    raw(&value, sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    raw(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& items)
    requires std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>
  {
    put(static_cast<std::uint64_t>(items.size()));
    raw(items.data(), items.size() * sizeof(T));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void raw(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  std::vector<std::byte> bytes_;
};

// Reads a message. It never reads past the end, and trusts no length before it has seen the bytes.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::uint32_t mark) : bytes_(bytes) {
    if (get<std::uint32_t>() != mark) fail("it has another kind or version");
  }
  template <class T>
  T get()
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  bool flag() { return get<std::uint8_t>() != 0; }
  template <class E>
  E choice(E last) {
    const E value = get<E>();
    if (value > last) fail("a choice is out of range");
    return value;
  }
  std::string text() {
    const auto bytes = take(length(1));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <class T>
  std::vector<T> items() {
    const std::uint64_t count = length(sizeof(T));
    std::vector<T> out(count);
    const auto bytes = take(count * sizeof(T));
    if (count > 0) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  // Returns how many items, of at least `smallest` bytes each, follow.
  std::uint64_t length(std::size_t smallest) {
    const auto count = get<std::uint64_t>();
    if (count > bytes_.size() / smallest) fail("it is cut short");
    return count;
  }
  void finish() const {
    if (!bytes_.empty()) fail("it is too long");
  }

 private:
  [[noreturn]] static void fail(const char* why) {
    throw Error("a message between devices is not readable", {why}, "all processes must be the same build of penstock");
  }
  std::span<const std::byte> take(std::size_t size) {
    if (size > bytes_.size()) fail("it is cut short");
    const auto out = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return out;
  }
  std::span<const std::byte> bytes_;
};

void put(Writer& out, const StateSource& source) {
  out.put(source.kind);
  out.put(source.seed);
  out.put(source.path);
  out.put(static_cast<std::uint64_t>(source.parameters.size()));
  for (const ParameterSpec& p : source.parameters) {
    out.put(p.name);
    out.put(p.type.dtype);
    out.put(p.type.shape);
    out.put(p.initial.kind);
    out.put(p.initial.deviation);
    out.put(p.decay);
    out.put(p.adapter);
  }
  out.put(static_cast<std::uint64_t>(source.values.size()));
  for (const auto& [name, bytes] : source.values) {
    out.put(name);
    out.put(bytes);
  }
  out.put(static_cast<std::uint64_t>(source.files.size()));
  for (const auto& [name, stored] : source.files) {
    out.put(name);
    out.put(stored.file);
    out.put(stored.name);
  }
}

StateSource get_source(Reader& in) {
  StateSource source;
  source.kind = in.choice(StateSource::Kind::values);
  source.seed = in.get<std::int64_t>();
  source.path = in.text();
  source.parameters.resize(in.length(28));
  for (ParameterSpec& p : source.parameters) {
    p.name = in.text();
    p.type.dtype = in.choice(DType::boolean);
    p.type.shape = in.items<std::int64_t>();
    p.initial.kind = in.choice(Initialiser::Kind::normal);
    p.initial.deviation = in.get<double>();
    p.decay = in.flag();
    p.adapter = in.flag();
  }
  for (std::size_t left = in.length(16); left > 0; --left) {
    const std::string name = in.text();
    source.values[name] = in.items<std::byte>();
  }
  for (std::size_t left = in.length(24); left > 0; --left) {
    StoredTensorName& stored = source.files[in.text()];
    stored.file = in.text();
    stored.name = in.text();
  }
  return source;
}

void put(Writer& out, const Shared& results) {
  out.put(static_cast<std::uint64_t>(results.tensors.size()));
  for (const auto& [name, tensor] : results.tensors) {
    out.put(name);
    out.put(tensor.type.dtype);
    out.put(tensor.type.shape);
    out.put(tensor.bytes);
  }
  out.put(results.text);
}

Shared get_results(Reader& in) {
  Shared results;
  for (std::size_t left = in.length(25); left > 0; --left) {
    HostTensor& tensor = results.tensors[in.text()];
    tensor.type.dtype = in.choice(DType::boolean);
    tensor.type.shape = in.items<std::int64_t>();
    tensor.bytes = in.items<std::byte>();
  }
  results.text = in.text();
  return results;
}

void put(Writer& out, const DeviceReport& report) {
  out.put(report.begin);
  out.put(report.end);
  out.put(report.busy);
  out.put(report.waiting);
  out.put(report.planned_bytes);
  out.put(report.measured_bytes);
  out.put(static_cast<std::uint64_t>(report.spans.size()));
  for (const Span& span : report.spans) {
    out.put(span.device);
    out.put(span.instruction);
    out.put(span.waited);
    out.put(span.begin);
    out.put(span.end);
    out.put(span.allocated);
  }
}

DeviceReport get_report(Reader& in) {
  DeviceReport report;
  report.begin = in.get<std::int64_t>();
  report.end = in.get<std::int64_t>();
  report.busy = in.get<double>();
  report.waiting = in.get<double>();
  report.planned_bytes = in.get<std::int64_t>();
  report.measured_bytes = in.get<std::int64_t>();
  report.spans.resize(in.length(33));
  for (Span& span : report.spans) {
    span.device = in.get<std::int32_t>();
    span.instruction = in.get<std::uint32_t>();
    span.waited = in.flag();
    span.begin = in.get<std::int64_t>();
    span.end = in.get<std::int64_t>();
    span.allocated = in.get<std::int64_t>();
  }
  return report;
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
  out.put(print(rest));
  out.put(hashes);
  out.put(static_cast<std::uint64_t>(fresh.size()));
  for (const std::string& graph : fresh) out.put(graph);
}

std::shared_ptr<const Program> get_program(Reader& in, SentTasks& sent) {
  constexpr const char* kOrigin = "the controller's program";
  auto program = std::make_shared<Program>(parse_program(in.text(), kOrigin));
  const std::vector<std::uint64_t> hashes = in.items<std::uint64_t>();
  for (std::uint64_t left = in.length(8); left > 0; --left) {
    const TaskGraph graph = parse_graph(in.text(), kOrigin);
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
  Writer out;
  out.put(kCommandMark);
  out.put(command.kind);
  out.put(command.program);
  out.put(command.body != nullptr);
  if (command.body) put(out, *command.body, tasks);
  put(out, command.source);
  out.put(command.input.step);
  out.put(command.input.seed);
  out.put(command.input.validation);
  out.put(command.input.samples);
  out.put(command.input.steps);
  out.put(command.input.begins);
  out.put(command.record_spans);
  out.put(command.text);
  put(out, command.results);
  out.put(command.error);
  return out.take();
}

Command decode_command(std::span<const std::byte> bytes, SentTasks& tasks) {
  Reader in(bytes, kCommandMark);
  Command command;
  command.kind = in.choice(Command::Kind::stop);
  command.program = in.get<std::uint64_t>();
  if (in.flag()) {
    command.body = get_program(in, tasks);
    if (hash(*command.body) != command.program) throw Error("the program that arrived is not the one that was sent");
  }
  command.source = get_source(in);
  command.input.step = in.get<std::int64_t>();
  command.input.seed = in.get<std::int64_t>();
  command.input.validation = in.flag();
  command.input.samples = in.items<std::int64_t>();
  command.input.steps = in.get<std::int64_t>();
  command.input.begins = in.items<std::int64_t>();
  command.record_spans = in.flag();
  command.text = in.text();
  command.results = get_results(in);
  command.error = in.text();
  in.finish();
  return command;
}

std::vector<std::byte> encode(const Reply& reply) {
  Writer out;
  out.put(kReplyMark);
  out.put(reply.error);
  out.put(reply.aborted);
  out.put(reply.lost);
  out.put(static_cast<std::uint64_t>(reply.outputs.size()));
  for (const auto& [name, bytes] : reply.outputs) {
    out.put(name);
    out.put(bytes);
  }
  put(out, reply.report);
  out.put(reply.file);
  out.put(static_cast<std::uint64_t>(reply.state.size()));
  for (const OwnedState& state : reply.state) {
    out.put(state.name);
    out.put(state.bytes);
    out.put(state.dtype);
  }
  out.put(reply.wrote);
  out.put(reply.stopping);
  return out.take();
}

Reply decode_reply(std::span<const std::byte> bytes) {
  Reader in(bytes, kReplyMark);
  Reply reply;
  reply.error = in.text();
  reply.aborted = in.flag();
  reply.lost = in.items<std::int32_t>();
  for (std::uint64_t left = in.length(16); left > 0; --left) {
    std::string name = in.text();
    reply.outputs[std::move(name)] = in.items<std::byte>();
  }
  reply.report = get_report(in);
  reply.file = in.text();
  reply.state.resize(in.length(17));
  for (OwnedState& state : reply.state) {
    state.name = in.text();
    state.bytes = in.items<std::byte>();
    state.dtype = in.choice(DType::boolean);
  }
  reply.wrote = in.flag();
  reply.stopping = in.flag();
  in.finish();
  return reply;
}

}  // namespace penstock
