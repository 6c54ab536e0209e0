// SPDX-License-Identifier: Apache-2.0
// Reads the text form of drafts. What it returns is safe to hand to verify(): every handle, task and block is there.
#include "base/text.h"
#include "ir/graph_parser.h"
#include "lower/draft.h"
#include "lower/text_names.h"
#include "penstock/error.h"
#include "program/reading.h"

namespace penstock {
namespace {

// The reader's place, and what has been named up to there.
struct Reader {
  Cursor& in;
  Draft draft{};
  Names tasks{"task", "@"}, instances{"instance", "%"};
};

template <std::size_t count>
std::size_t one_of(Cursor& in, const std::array<std::string_view, count>& words) {
  for (std::size_t w = 0; w < count; ++w)
    if (in.accept(words[w])) return w;
  in.fail(concat("expected ", join(std::vector<std::string>(words.begin(), words.end()), ", ")));
}

DType parse_dtype(Cursor& in) {
  in.skip();
  const std::size_t position = in.position();
  const std::string_view word = in.word();
  DType dtype{};
  if (!parse_dtype(word, dtype)) in.fail_at(position, concat("unknown dtype ", word));
  return dtype;
}

std::vector<TensorType> parse_types(Cursor& in) {
  std::vector<TensorType> out;
  parse_list(in, [&] { out.push_back(parse_type(in)); });
  return out;
}

template <class T>
std::vector<T> parse_numbers(Cursor& in) {
  std::vector<T> out;
  parse_list(in, [&] { out.emplace_back(index(in)); });
  return out;
}

ActorId actor_after(Cursor& in, std::string_view word) {
  in.expect(word);
  return ActorId(index(in));
}

std::int32_t number_after(Cursor& in, std::string_view word) {
  in.expect(word);
  return index(in);
}

// The number of micro-batches of a unit whose first one has been read.
std::int32_t count_if_any(Cursor& in) {
  return in.accept(draft_text::kTogether) ? static_cast<std::int32_t>(integer_in(in, 2, std::int64_t{1} << 30)) : 1;
}

Unit unit_if_any(Cursor& in) {
  if (!in.accept("unit")) return {};
  const std::int32_t first = index(in);
  return {first, count_if_any(in)};
}

BlockId block_number(Reader& r) {
  r.in.skip();
  const std::size_t position = r.in.position();
  const BlockId block(index(r.in));
  if (block.index() >= r.draft.blocks.size()) r.in.fail_at(position, concat("there is no block ", block.value));
  return block;
}

InstanceId instance_name(Reader& r) {
  return InstanceId(find(r.in, r.instances));
}

void parse_task(Reader& r) {
  std::string name = define(r.in, r.tasks);
  Graph graph = parse_graph(r.in);
  r.draft.task_by_hash.emplace(structural_hash(graph), TaskId(r.draft.tasks.size()));
  r.draft.task_names.insert(name);
  r.draft.tasks.push_back({std::move(name), std::move(graph), 0});
}

void parse_block(Reader& r) {
  next_number(r.in, "block", r.draft.blocks.size());
  ShareBlock& block = r.draft.blocks.emplace_back();
  block.members = parse_types(r.in);
  if (!r.in.accept("parameters")) return;
  block.parameters = parse_numbers<InputId>(r.in);
  if (r.in.accept("as")) block.cast = parse_dtype(r.in);
  r.in.expect("for");
  for (StageId stage : parse_numbers<StageId>(r.in)) block.readers.insert(stage);
}

void parse_sharded(Reader& r) {
  const bool state = r.in.accept("state");
  if (!state) r.in.expect("result");
  const std::int32_t of = index(r.in);
  const BlockId block = block_number(r);
  const Member member{block, static_cast<std::int32_t>(integer_in(r.in, 0, std::ssize(r.draft.blocks[block].members) - 1))};
  if (state)
    r.draft.sharded_states[InputId(of)] = member;
  else
    r.draft.sharded_results[ResultId(of)] = member;
}

void parse_instance(Reader& r) {
  Instance i;
  i.name = define(r.in, r.instances);
  i.source = static_cast<Instance::Source>(one_of(r.in, draft_text::kSources));
  if (i.source != Instance::Source::computed) i.input = InputId(index(r.in));
  if (r.in.accept("on")) i.home = ActorId(index(r.in));
  i.unit = unit_if_any(r.in);
  i.host = r.in.accept("host");
  i.stays = r.in.accept("stays");
  i.owned = !r.in.accept("copy");
  if (r.in.accept("block")) {
    i.block = block_number(r);
    r.in.expect("members");
    const auto last = std::ssize(r.draft.blocks[i.block].members) - 1;
    parse_list(r.in, [&] { i.members.push_back(static_cast<std::int32_t>(integer_in(r.in, 0, last))); });
    if (one_of(r.in, draft_text::kHoldings) == 1) i.held = kHostShare;
    if (!i.held.is_whole() && r.in.accept(draft_text::kHoldings[1])) i.held.local = Layout::Kind::flat;
  }
  if (r.in.accept("room")) i.room = integer_in(r.in, 1, std::int64_t{1} << 60);
  if (r.in.accept("terms")) i.terms = static_cast<std::int32_t>(integer_in(r.in, 2, std::int64_t{1} << 31));
  if (r.in.accept("named")) i.name = r.in.string();
  i.types = parse_types(r.in);
  const InstanceId id = add(r.draft, i);
  if (i.input) r.draft.inputs.try_emplace({i.input, i.unit}, id);
}

void parse_action(Cursor& in, Run& run) {
  const ActionName action = action_name(in);
  run.stage = StageId(action.stage);
  run.kind = action.kind;
  run.unit = {action.microbatch, count_if_any(in)};
}

// False where the next word is none that a run can have: the others come of transfers and frees.
bool parse_opcode(Cursor& in, Opcode& opcode) {
  for (int o = 0; o < kOpcodes; ++o) {
    opcode = static_cast<Opcode>(o);
    const bool is_of_run = has_operands(opcode) || opcode == Opcode::output || opcode == Opcode::send || opcode == Opcode::recv;
    if (is_of_run && in.accept(name(opcode))) return true;
  }
  return false;
}

InWindow parse_window(Cursor& in) {
  InWindow window;
  if (in.accept("action")) window.action = index(in);
  if (in.accept("step")) window.step = index(in);
  if (in.accept("reads")) window.read.version = index(in);
  if (in.accept("ahead")) window.read.ahead = index(in);
  window.pulls = in.accept("pulls");
  return window;
}

// False where the next line is no run.
bool parse_run(Reader& r, std::vector<Run>& runs) {
  Run run;
  run.placeholder = r.in.accept(draft_text::kPlaceholder);
  if (!run.placeholder && !parse_opcode(r.in, run.opcode)) return false;
  if (r.in.next_is_number()) parse_action(r.in, run);
  if (!run.placeholder) {
    if (run.opcode == Opcode::run) run.task = TaskId(find(r.in, r.tasks));
    parse_list(r.in, [&] { run.reads.push_back(instance_name(r)); });
    r.in.expect("->");
    parse_list(r.in, [&] {
      const auto mode = static_cast<ResultMode>(one_of(r.in, draft_text::kModes));
      run.writes.push_back({instance_name(r), mode});
    });
  }
  if (r.in.accept("port")) run.port = index(r.in);
  if (r.in.accept("along")) run.axis = index(r.in);
  if (r.in.accept("in")) run.group = index(r.in);
  if (r.in.accept("root")) run.root = index(r.in);
  if (r.in.accept("by")) run.by = index(r.in);
  if (r.in.accept("message")) run.message = index(r.in);
  run.window = parse_window(r.in);
  runs.push_back(std::move(run));
  return true;
}

void parse_row(Reader& r) {
  next_number(r.in, "actor", r.draft.actors.size());
  std::vector<Run>& runs = r.draft.actors.emplace_back();
  while (parse_run(r, runs)) {
  }
}

LoopUse parse_use(Reader& r) {
  LoopUse use;
  use.operand = index(r.in);
  use.actor = actor_after(r.in, "on");
  use.unit = unit_if_any(r.in);
  use.instance = instance_name(r);
  return use;
}

PartialSum parse_partial(Reader& r) {
  PartialSum sum;
  sum.result = ResultId(index(r.in));
  sum.actor = actor_after(r.in, "on");
  if (r.in.accept("stage")) sum.stage = StageId(index(r.in));
  sum.instance = instance_name(r);
  sum.part = number_after(r.in, "part");
  return sum;
}

Transfer parse_transfer(Reader& r) {
  Transfer t;
  t.instance = instance_name(r);
  t.from = actor_after(r.in, "from");
  t.to = actor_after(r.in, "to");
  t.tag = number_after(r.in, "#");
  t.after = number_after(r.in, "after");
  t.before = number_after(r.in, "before");
  return t;
}

Free parse_free(Reader& r) {
  const InstanceId instance = instance_name(r);
  const ActorId device = actor_after(r.in, "on");
  return {instance, device, number_after(r.in, "after")};
}

Draft parse_one(Cursor& in) {
  Reader r{in};
  Draft& draft = r.draft;
  in.header("draft", 1);
  if (in.accept("of")) {
    draft.of.member = number_after(in, "member");
    draft.of.worker = number_after(in, "worker");
    draft.of.step = number_after(in, "step");
  }
  if (in.accept("after")) draft.after = in.word();
  while (in.accept("task")) parse_task(r);
  while (in.accept("block")) parse_block(r);
  while (in.accept("sharded")) parse_sharded(r);
  while (in.accept("group")) {
    next_number(in, "group", draft.groups.size());
    draft.groups.push_back(parse_numbers<std::int32_t>(in));
  }
  if (in.accept("whole")) draft.whole_ports = parse_numbers<std::int32_t>(in);
  while (in.accept("instance")) parse_instance(r);
  while (in.accept("actor")) parse_row(r);
  while (in.accept("use")) draft.uses.push_back(parse_use(r));
  while (in.accept("partial")) draft.partials.push_back(parse_partial(r));
  while (in.accept("refresh")) draft.refreshed.push_back(instance_name(r));
  while (in.accept("transfer")) draft.transfers.push_back(parse_transfer(r));
  while (in.accept("free")) draft.frees.push_back(parse_free(r));
  return std::move(draft);
}

}  // namespace

std::vector<Draft> parse_drafts(std::string_view text, std::string_view file) {
  Cursor in(file, text);
  std::vector<Draft> out;
  for (bool is_next = true; is_next;) {
    out.push_back(parse_one(in));
    const std::size_t behind = in.position();
    is_next = in.accept("penstock");
    in.seek(behind);
  }
  if (!in.at_end())
    in.fail(
        "expected task, block, sharded, group, whole, instance, actor, use, partial, refresh, transfer, free, another draft or the end (in "
        "this order), or a run of an actor");
  return out;
}

Draft parse_draft(std::string_view text, std::string_view file) {
  std::vector<Draft> drafts = parse_drafts(text, file);
  if (drafts.size() > 1) throw Error(concat(file, " has ", drafts.size(), " drafts"), {}, "read them by parse_drafts");
  return std::move(drafts[0]);
}

}  // namespace penstock
