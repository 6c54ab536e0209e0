// Reads the text form of programs. The result is safe to hand to verify(): every id is in range, every size fits.
#include <charconv>
#include <limits>
#include <unordered_map>

#include "base/cursor.h"
#include "base/text.h"
#include "ir/graph_parser.h"
#include "penstock/program.h"

namespace penstock {
namespace {

constexpr std::int64_t kMaxTensor = std::int64_t{1} << 40;  // bytes
constexpr std::int64_t kMaxArena = std::int64_t{1} << 60;   // bytes

std::string name_after(Cursor& cursor, std::string_view sigil) {
  cursor.expect(sigil);
  return cursor.peek() == '"' ? cursor.string() : std::string(cursor.name());
}

// The names of one kind of thing, in order of definition.
class Names {
 public:
  explicit Names(std::string_view thing) : thing_(thing) {}

  std::string define(Cursor& cursor, std::string_view sigil) {
    cursor.skip();
    const std::size_t position = cursor.position();
    std::string name = name_after(cursor, sigil);
    if (!index_.emplace(name, static_cast<std::int64_t>(index_.size())).second)
      cursor.fail_at(position, concat("a second ", thing_, " named ", sigil, name));
    return name;
  }

  std::int64_t find(Cursor& cursor, std::string_view sigil) const {
    cursor.skip();
    const std::size_t position = cursor.position();
    const std::string name = name_after(cursor, sigil);
    const auto it = index_.find(name);
    if (it != index_.end()) return it->second;
    std::vector<std::string> known;
    for (const auto& entry : index_) known.push_back(entry.first);
    const std::string near = nearest(name, known);
    cursor.fail_at(position, concat("there is no ", thing_, " ", sigil, name),
                   near.empty() ? "" : concat("did you mean ", sigil, near, "?"));
  }

 private:
  std::string_view thing_;
  std::unordered_map<std::string, std::int64_t> index_;
};

std::int64_t integer_in(Cursor& cursor, std::int64_t low, std::int64_t high) {
  cursor.skip();
  const std::size_t position = cursor.position();
  const std::int64_t value = cursor.integer();
  if (value < low || value > high) cursor.fail_at(position, concat("expected a number from ", low, " to ", high, ", found ", value));
  return value;
}

std::int32_t index(Cursor& cursor) {
  return static_cast<std::int32_t>(integer_in(cursor, 0, std::numeric_limits<std::int32_t>::max()));
}

TensorType tensor_type(Cursor& cursor) {
  cursor.skip();
  const std::size_t position = cursor.position();
  TensorType type;
  const std::string_view dtype = cursor.word();
  if (!parse_dtype(dtype, type.dtype)) cursor.fail_at(position, concat("unknown dtype ", dtype));
  cursor.expect("[");
  std::int64_t bytes = byte_size(type.dtype);
  while (!cursor.accept("]")) {
    if (!type.shape.empty()) cursor.expect(",");
    type.shape.push_back(integer_in(cursor, 0, kMaxTensor));
    if (type.shape.back() > 0 && bytes > kMaxTensor / type.shape.back()) cursor.fail_at(position, "this tensor has more than 2^40 bytes");
    bytes *= type.shape.back();
  }
  return type;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : cursor_(file, text) {}

  Program run() {
    cursor_.header("program", 1);
    cursor_.expect("program");
    program_.name = name_after(cursor_, "@");
    cursor_.expect("{");
    program_.microbatches = static_cast<std::int32_t>(setting("microbatches", 1, std::numeric_limits<std::int32_t>::max()));
    cursor_.expect("}");
    while (cursor_.accept("data")) program_.data.push_back(port(data_));
    while (cursor_.accept("output")) program_.outputs.push_back(port(outputs_));
    while (cursor_.accept("group")) group();
    while (cursor_.accept("task")) program_.tasks.push_back(task());
    while (cursor_.accept("device")) device();
    if (!cursor_.at_end())
      cursor_.fail("expected data, output, group, task, device or the end (in this order), or an instruction of a device");
    return std::move(program_);
  }

 private:
  std::int64_t setting(std::string_view name, std::int64_t low, std::int64_t high) {
    cursor_.expect(name);
    cursor_.expect("=");
    return integer_in(cursor_, low, high);
  }

  Port port(Names& names) {
    Port port;
    port.name = names.define(cursor_, "%");
    cursor_.expect(":");
    port.type = tensor_type(cursor_);
    port.split = cursor_.accept("split");
    return port;
  }

  void group() {
    cursor_.skip();
    const std::size_t position = cursor_.position();
    if (index(cursor_) != static_cast<std::int64_t>(program_.groups.size()))
      cursor_.fail_at(position, concat("expected group ", program_.groups.size()));
    cursor_.expect("(");
    std::vector<std::int32_t>& members = program_.groups.emplace_back();
    do members.push_back(index(cursor_));
    while (cursor_.accept(","));
    cursor_.expect(")");
  }

  Task task() {
    Task task;
    task.name = tasks_.define(cursor_, "@");
    cursor_.expect("{");
    task.scratch = setting("scratch", 0, kMaxArena);
    cursor_.expect("}");
    task.graph = parse_graph(cursor_);
    return task;
  }

  void device() {
    cursor_.skip();
    const std::size_t position = cursor_.position();
    if (index(cursor_) != static_cast<std::int64_t>(program_.devices.size()))
      cursor_.fail_at(position, concat("expected device ", program_.devices.size()));
    device_ = &program_.devices.emplace_back();
    slots_ = Names("slot");
    cursor_.expect("{");
    device_->state_bytes = setting("state_bytes", 0, kMaxArena);
    cursor_.expect(",");
    device_->step_bytes = setting("step_bytes", 0, kMaxArena);
    cursor_.expect(",");
    device_->scratch_bytes = setting("scratch_bytes", 0, kMaxArena);
    if (cursor_.accept(",")) device_->host_bytes = setting("host_bytes", 0, kMaxArena);
    cursor_.expect("}");
    while (cursor_.accept("slot")) slot();
    while (instruction()) {
    }
  }

  void slot() {
    Slot slot;
    slot.name = slots_.define(cursor_, "%");
    if (cursor_.accept("state"))
      slot.kind = SlotClass::state;
    else if (cursor_.accept("copy"))
      slot.kind = SlotClass::copy;
    else if (cursor_.accept("host"))
      slot.kind = SlotClass::host;
    else
      cursor_.expect("step");
    if (cursor_.accept("@")) slot.offset = integer_in(cursor_, 0, kMaxArena);
    cursor_.expect("(");
    do {
      slot.parts.push_back(tensor_type(cursor_));
      if (holds_state(slot.kind)) slot.names.push_back(cursor_.string());
    } while (cursor_.accept(","));
    cursor_.expect(")");
    if (cursor_.accept("room")) slot.room = integer_in(cursor_, 1, kMaxArena);
    device_->slots.push_back(std::move(slot));
  }

  SlotId slot_name() { return SlotId(slots_.find(cursor_, "%")); }

  // Reads one instruction; false where the next line is none.
  bool instruction() {
    Instruction i;
    if (cursor_.accept("run")) {
      run_of_task(i);
    } else if (cursor_.accept("send") || (cursor_.accept("recv") && (i.opcode = Opcode::recv, true))) {
      if (i.opcode == Opcode::run) i.opcode = Opcode::send;
      i.slot = slot_name();
      cursor_.expect(i.opcode == Opcode::send ? "to" : "from");
      i.peer = index(cursor_);
      cursor_.expect("#");
      i.tag = index(cursor_);
    } else if (cursor_.accept("copy")) {
      copy(i);
    } else if (cursor_.accept("offload")) {
      host_copy(i, Opcode::offload);
    } else if (cursor_.accept("reload")) {
      host_copy(i, Opcode::reload);
    } else if (cursor_.accept("free")) {
      i.opcode = Opcode::free;
      i.slot = slot_name();
    } else if (cursor_.accept("input")) {
      input(i);
    } else if (cursor_.accept("output")) {
      i.opcode = Opcode::output;
      i.port = static_cast<std::int32_t>(outputs_.find(cursor_, "%"));
      cursor_.expect("=");
      i.slot = slot_name();
    } else if (!collective(i)) {
      return false;
    }
    device_->instructions.push_back(i);
    return true;
  }

  void run_of_task(Instruction& i) {
    if (cursor_.peek() != '@') action(i);
    i.task = TaskId(tasks_.find(cursor_, "@"));
    begin_operands(i);
    cursor_.expect("(");
    if (!cursor_.accept(")")) {
      do device_->operands.push_back(slot_name());
      while (cursor_.accept(","));
      cursor_.expect(")");
    }
    cursor_.expect("->");
    cursor_.expect("(");
    if (!cursor_.accept(")")) {
      do result();
      while (cursor_.accept(","));
      cursor_.expect(")");
    }
    end_operands(i);
  }

  void copy(Instruction& i) {
    i.opcode = Opcode::copy;
    begin_operands(i);
    device_->operands.push_back(slot_name());
    cursor_.expect("->");
    result();
    end_operands(i);
  }

  void host_copy(Instruction& i, Opcode opcode) {
    i.opcode = opcode;
    if (cursor_.peek() != '%') action(i);
    begin_operands(i);
    device_->operands.push_back(slot_name());
    cursor_.expect("->");
    device_->results.push_back({slot_name(), ResultMode::store});
    end_operands(i);
  }

  bool collective(Instruction& i) {
    for (const Opcode opcode : {Opcode::all_reduce, Opcode::all_gather, Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all}) {
      if (!cursor_.accept(name(opcode))) continue;
      i.opcode = opcode;
      if (cursor_.peek() != '%' && cursor_.peek() != '-') action(i);
      begin_operands(i);
      const bool broadcasts = opcode == Opcode::broadcast, gives = !broadcasts || cursor_.peek() == '%';
      if (gives) device_->operands.push_back(slot_name());
      cursor_.expect("->");
      if (!broadcasts || !gives) result();
      end_operands(i);
      if (broadcasts) {
        cursor_.expect("from");
        i.peer = index(cursor_);
      }
      cursor_.expect("in");
      cursor_.skip();
      const std::size_t position = cursor_.position();
      i.group = index(cursor_);
      if (i.group >= static_cast<std::int32_t>(program_.groups.size())) cursor_.fail_at(position, concat("there is no group ", i.group));
      cursor_.expect("#");
      i.tag = index(cursor_);
      return true;
    }
    return false;
  }

  void input(Instruction& i) {
    i.opcode = Opcode::input;
    i.slot = slot_name();
    cursor_.expect("=");
    i.port = static_cast<std::int32_t>(data_.find(cursor_, "%"));
    if (!cursor_.accept("[")) return;
    i.microbatch = static_cast<std::int32_t>(integer_in(cursor_, 0, program_.microbatches - 1));
    cursor_.expect("]");
  }

  // Reads "2F3", or "2U" where no micro-batch is named.
  void action(Instruction& i) {
    i.action = true;
    i.stage = index(cursor_);
    const std::size_t position = cursor_.position();
    const std::string_view word = cursor_.word();
    const std::size_t letters = std::min(word.find_first_of("0123456789"), word.size());
    const std::string_view digits = word.substr(letters);
    int kind = 0;
    while (kind <= static_cast<int>(Kind::RECV_B) && name(static_cast<Kind>(kind)) != word.substr(0, letters)) ++kind;
    if (kind > static_cast<int>(Kind::RECV_B)) cursor_.fail_at(position, concat("unknown kind of action ", quote(word.substr(0, letters))));
    i.kind = static_cast<Kind>(kind);
    if (digits.empty()) return;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), i.microbatch);
    if (error != std::errc() || end != digits.data() + digits.size())
      cursor_.fail_at(position + letters, concat("expected a micro-batch, found ", digits));
  }

  void result() {
    Result result;
    if (cursor_.accept("add"))
      result.mode = ResultMode::add;
    else if (cursor_.accept("update"))
      result.mode = ResultMode::update;
    else
      cursor_.expect("store");
    result.slot = slot_name();
    device_->results.push_back(result);
  }

  void begin_operands(Instruction& i) {
    i.first_operand = static_cast<std::uint32_t>(device_->operands.size());
    i.first_result = static_cast<std::uint32_t>(device_->results.size());
  }
  void end_operands(Instruction& i) {
    i.operands = static_cast<std::uint32_t>(device_->operands.size()) - i.first_operand;
    i.results = static_cast<std::uint32_t>(device_->results.size()) - i.first_result;
  }

  Cursor cursor_;
  Program program_;
  DeviceProgram* device_ = nullptr;
  Names data_{"data port"}, outputs_{"output port"}, tasks_{"task"}, slots_{"slot"};
};

}  // namespace

Program parse_program(std::string_view text, std::string_view file) {
  return Parser(text, file).run();
}

}  // namespace penstock
