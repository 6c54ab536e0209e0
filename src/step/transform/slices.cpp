// SPDX-License-Identifier: Apache-2.0
#include "transform/slices.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "ops/layouts.h"
#include "penstock/error.h"
#include "transform/attention_in_parts.h"
#include "transform/conversions.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using Values = std::vector<ValueId>;

constexpr std::int64_t kNoSlice = -1;  // an input, or what is made of constants
constexpr std::int64_t kNoBlock = -1;

using Blocks = std::set<AttentionBlock>;

bool is_whole(const LayoutRow& row) {
  return std::ranges::all_of(row.operands, &Layout::is_whole) && std::ranges::all_of(row.results, &Layout::is_whole);
}

// By value: whether ops in slices read it, or what is made of it. What is whole and added to terms is added where it is made.
IdVector<ValueId, bool> read_by_slices(const Graph& body, const GraphLayouts& layouts) {
  IdVector<ValueId, bool> out(body.values.size());
  for (std::size_t i = body.ops.size(); i-- > 0;) {
    const Op& op = body.ops[OpId(i)];
    const LayoutRow& row = layouts.rows[OpId(i)];
    const bool in_slices = !is_whole(row) && !(op.name == "add_n" && row.results[0].is_term());
    if (in_slices || std::ranges::any_of(op.results, [&](ValueId v) { return out[v]; }))
      for (const ValueId v : op.operands) out[v] = true;
  }
  return out;
}

// The loop's body while it is unrolled.
struct Slicing {
  const Graph& from;
  const GraphLayouts& layouts;
  MeshAxis axis;        // the slices
  const Blocks& apart;  // blocks of attention
  Graph graph{};
  IdVector<ValueId, bool> read_by_slices{};  // by value of `from`: whether ops in slices read it, or what is made of it
  IdVector<ValueId, Values> held{};          // by value of `from`: one where it is whole, a part or terms for each slice otherwise
  IdVector<ValueId, std::int64_t> slice{};   // by value of `graph`: the slice that makes it
  IdVector<ValueId, bool> backward{};        // likewise: whether the backward makes it
  // By value of `from` and slice: gradients of keys and values so far, and those that blocks apart have made, which no slice has added yet.
  std::map<std::pair<ValueId, std::int64_t>, Values> terms{}, waiting{};
  // By the first result of an attention and slice: the attention, and what is to be joined.
  std::map<std::pair<ValueId, std::int64_t>, std::pair<const Op*, std::vector<Values>>> unjoined{};
  std::map<std::tuple<ValueId, Layout, std::int64_t, std::string, Phase>, ValueId> converted{};

  std::int64_t slices() const { return axis.size; }
  bool is_apart(const Op& op, std::int64_t of, std::int64_t block) const { return apart.contains({op.stage, of, block}); }
};

// The op's marks in a slice, or in a block of it that is apart. Ops of one slice that had one number have one: a backward op stays with its
// forward op.
Op marks_in(const Slicing& s, const Op& op, std::int64_t slice, std::int64_t block = kNoBlock) {
  Op marks = op;
  if (!op.stage.empty()) marks.stage = concat(op.stage, ".", slice, block == kNoBlock ? "" : concat(".", block));
  if (op.sequence >= 0) marks.sequence = op.sequence * s.slices() + slice;
  return marks;
}

// `op`: the model's, for which the slice reads it.
[[noreturn]] void fail_order(const Slicing& s, const Op& op, std::int64_t slice, std::int64_t needed) {
  throw Error(concat("pipeline.slices = ", s.slices(), ": slice ", slice, " needs something of slice ", needed, ", which comes later"),
              {concat("read by ", op.name, op.origin.empty() ? "" : concat(" of ", op.origin),
                      op.stage.empty() ? "" : concat(" in stage ", op.stage))},
              "slices are for models in which no token needs one behind it: causal attention, and else ops by token; a mixture of experts "
              "has whole groups in each slice, or a capacity_factor (experts / 2) with which no token is dropped");
}

// Notes who makes what of all ops added for `op` since there were `ops`. A forward op reads what slices before it made, a backward op of
// the backward what those behind it did.
void note_since(Slicing& s, std::size_t ops, const Op& op, std::int64_t slice) {
  const bool backward = op.phase == Phase::backward;
  s.slice.resize(s.graph.values.size(), kNoSlice);
  s.backward.resize(s.graph.values.size());
  for (std::size_t i = ops; i < s.graph.ops.size(); ++i) {
    const Op& made = s.graph.ops[i];
    for (const ValueId v : made.operands) {
      const std::int64_t needed = s.slice[v];
      if (needed == kNoSlice || s.backward[v] != backward || op.stage.empty()) continue;
      if (backward ? needed < slice : needed > slice) fail_order(s, op, slice, needed);
    }
    for (const ValueId v : made.results) {
      s.slice[v] = made.operands.empty() ? kNoSlice : slice;
      s.backward[v] = backward;
    }
  }
}

// Calls add(site) for ops of one slice, or of a block of it, with the marks of `op`.
template <class Add>
auto in_slice(Slicing& s, const Op& op, std::int64_t slice, Add&& add, std::int64_t block = kNoBlock) {
  const Op marks = marks_in(s, op, slice, block);
  const std::size_t ops = s.graph.ops.size();
  auto made = add(ConversionSite{s.graph, marks, s.axis, slice});
  note_since(s, ops, op, slice);
  return made;
}

// The op, as one of the stage that makes what attention reads, or of the one that reads what it makes: what adds up results of blocks apart
// is there, as an action of a table waits for all that it reads.
Op beside_attention(const Op& op, const std::string& stage) {
  if (stage.empty() || stage == op.stage)
    throw Error(
        concat("blocks of attention are apart from stage ", quote(op.stage), ", which is more than attention"),
        {concat("it has ", op.name, op.origin.empty() ? "" : concat(" of ", op.origin), " and what this reads, or what reads its results")},
        "cut the model so that attention has stages of its own: of a gpt of L layers 2L + k stages, where k divides L");
  Op out = op;
  out.stage = stage;
  return out;
}

Values joined(const ConversionSite& site, const Values& a, const Values& b) {
  return add_all_beside(site, "attention_join", {a[0], a[1], b[0], b[1]}, {});
}

// Joins the slice's results of an attention whose blocks are apart, in the stage that reads them and when it first does: so slices come in
// their order, in which stages are numbered.
void join_blocks(Slicing& s, ValueId v, const Op& reader, std::int64_t slice) {
  const auto found = s.unjoined.find({v, slice});
  if (found == s.unjoined.end()) return;
  const auto [op, parts] = std::move(found->second);
  s.unjoined.erase(found);
  Values all = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i)
    all = in_slice(s, beside_attention(*op, reader.stage), slice, [&](const ConversionSite& site) { return joined(site, all, parts[i]); });
  for (std::size_t r = 0; r < all.size(); ++r) s.held[op->results[r]][static_cast<std::size_t>(slice)] = all[r];
}

// The value that a slice reads in a layout.
ValueId read_in(Slicing& s, ValueId v, const Layout& to, const Op& reader, std::int64_t slice) {
  const Layout& from = s.layouts.values[v];
  for (std::int64_t i = 0; i < s.slices() && !s.unjoined.empty(); ++i)
    if (from != to || i == slice) join_blocks(s, v, reader, i);
  const Values& held = s.held[v];
  if (from == to) return held[from.is_whole() ? 0 : static_cast<std::size_t>(slice)];
  const auto key = std::tuple(v, to, slice, reader.stage, reader.phase);
  if (const auto found = s.converted.find(key); found != s.converted.end()) return found->second;
  const ValueId whole = from.is_whole() || to.is_whole() ? held[0] : read_in(s, v, kWhole, reader, slice);
  return s.converted[key] = in_slice(s, reader, slice, [&](const ConversionSite& site) {
           if (!to.is_whole()) return part_of(site, whole, to, slice);
           if (from.is_term()) return add_beside(site, "add_n", held, {});
           return whole_of(site, held, from, s.from.type(v).shape);
         });
}

// The slice of an op that is computed once, when all that it needs of its own direction is there: forward that is the last slice of these,
// backward the first. Backward nothing is made before that, unless slices read it.
std::int64_t slice_for(const Slicing& s, const Op& op) {
  const bool backward = op.phase == Phase::backward;
  const std::int64_t last = s.slices() - 1;
  const bool waits = backward && std::ranges::none_of(op.results, [&](ValueId v) { return s.read_by_slices[v]; });
  std::int64_t turn = waits ? last : 0;  // in the order in which slices go this way
  for (const ValueId v : op.operands)
    for (const ValueId part : s.held[v])
      if (s.slice[part] != kNoSlice && s.backward[part] == backward) turn = std::max(turn, backward ? last - s.slice[part] : s.slice[part]);
  return backward ? last - turn : turn;
}

// The operands of an op that is computed once. A sum that only the loop's results read has all terms of its operands: the cut sums them
// where they are made.
Values whole_operands(Slicing& s, const Op& op, std::int64_t slice) {
  const bool is_sum_of_loop = op.stage.empty() && op.name == "add_n";
  Values out;
  for (const ValueId v : op.operands) {
    if (is_sum_of_loop && s.layouts.values[v].is_term())
      out.insert(out.end(), s.held[v].begin(), s.held[v].end());
    else
      out.push_back(read_in(s, v, kWhole, op, slice));
  }
  return out;
}

void add_whole(Slicing& s, const Op& op) {
  const std::int64_t slice = op.operands.empty() ? kNoSlice : slice_for(s, op);
  Op made = slice == kNoSlice ? op : marks_in(s, op, slice);
  made.operands = whole_operands(s, op, slice);
  for (ValueId& v : made.results) {
    s.held[v] = {s.graph.add_value(s.from.type(v))};
    v = s.held[v][0];
  }
  s.graph.ops.push_back(std::move(made));
  note_since(s, s.graph.ops.size() - 1, op, slice);
}

// A sum that only the loop's results read: of its terms all are given to the cut, which sums them where they are made.
void add_sum_of_loop(Slicing& s, const Op& op, const LayoutRow& row) {
  Values& terms = s.held[op.results[0]];
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const Values& held = s.held[op.operands[i]];
    if (row.operands[i].is_split()) fail_order(s, op, 0, s.slices() - 1);
    terms.insert(terms.end(), held.begin(), held.end());
  }
}

// The op of one slice. Of a sum of terms and of what is whole, the slice that makes what is whole adds it.
void add_in_slice(Slicing& s, const Op& op, const LayoutRow& row, std::int64_t slice) {
  Op made = local_op_by_places(s.from, marks_in(s, op, slice), row, s.slices(), slice);
  const bool adds_terms = op.name == "add_n" && row.results[0].is_term();
  Values reads;
  for (const ValueId number : made.operands) {
    const Layout& layout = row.operands[number.index()];
    const ValueId v = op.operands[number.index()];
    if (adds_terms && layout.is_whole() && std::max<std::int64_t>(s.slice[s.held[v][0]], 0) != slice) continue;
    reads.push_back(read_in(s, v, layout, op, slice));
  }
  if (adds_terms && reads.size() == 1) {
    s.held[op.results[0]][static_cast<std::size_t>(slice)] = reads[0];
    return;
  }
  made.operands = std::move(reads);
  for (std::size_t i = 0; i < op.results.size(); ++i)
    made.results[i] = s.held[op.results[i]][static_cast<std::size_t>(slice)] =
        s.graph.add_value(local_type(s.from.type(op.results[i]), row.results[i], s.slices(), slice));
  s.graph.ops.push_back(std::move(made));
  note_since(s, s.graph.ops.size() - 1, op, slice);
}

// The place of the queries among the operands of an attention that slices can compute, or of its backward; keys and values follow. None:
// the op is neither.
std::optional<std::size_t> queries_in_slices(const Op& op) {
  if (op.name == "attention_in_ranges") return 0;
  if (op.name == "attention_in_ranges_backward") return 1;
  return queries_of(op);
}

// Behind what every attention has, or its backward.
std::size_t place_of_ranges(std::size_t queries) {
  return queries == 0 ? 3 : 6;
}

constexpr std::int32_t kLength = 2;  // of [batch, heads, length, head]

// An attention in the row that it has, which says what queries and keys a slice has of it.
struct Attending {
  const Slicing& s;
  const Op& op;
  const LayoutRow& row;
  std::size_t q = *queries_in_slices(op);

  bool of_all_keys() const { return row.operands[q + 1].is_whole(); }
  LayoutRange range(std::size_t operand, std::int64_t slice) const {
    const std::int64_t length = s.from.type(op.operands[operand]).shape[kLength];
    return row.operands[operand].is_whole() ? LayoutRange{0, length} : range_of(row.operands[operand], length, s.slices(), slice);
  }
  // The blocks of keys that a slice's queries read: its own and those before.
  std::int64_t blocks(std::int64_t slice) const { return of_all_keys() ? 1 : slice + 1; }
  bool has_ranges() const { return op.name.starts_with("attention_in_ranges"); }
  std::size_t ranges() const { return place_of_ranges(q); }

  // The attributes of the op for the slice's queries and block j of the keys. With ranges of keys the op knows distances, so it is told how
  // far the first query is from the first key.
  Attributes attributes(std::int64_t slice, std::int64_t j) const {
    Attributes out = op.attributes;
    out["is_causal"] = attribute_or(op, "is_causal", false) && j == slice;
    const std::int64_t offset = range(q, slice).begin - range(q + 1, j).begin;
    if (has_ranges() && offset > 0) out["offset"] = offset;
    return out;
  }
};

// Ranges of the keys of a block alone, numbered from its first key.
ValueId ranges_in_block(const ConversionSite& site, ValueId ranges, const LayoutRange& block) {
  const auto number = [&](std::int64_t n) {
    return add_beside(site, "full", {}, {{"dtype", DType::i64}, {"fill_value", static_cast<double>(n)}, {"size", Shape{}}});
  };
  const ValueId own = add_beside(site, "sub", {ranges}, {{"other", static_cast<double>(block.begin)}});
  return add_beside(site, "minimum", {add_beside(site, "maximum", {own, number(0)}, {}), number(block.size())}, {});
}

// Returns the operands for the slice's queries and block j of the keys, in the stage of the slice or, where it is apart, of the block.
Values block_operands(Slicing& s, const Attending& a, std::int64_t slice, std::int64_t j, std::int64_t in) {
  Values out;
  for (std::size_t i = 0; i < a.op.operands.size(); ++i) {
    const bool of_keys = i == a.q + 1 || i == a.q + 2;
    out.push_back(read_in(s, a.op.operands[i], a.row.operands[i], a.op, of_keys ? j : slice));
  }
  if (!a.has_ranges() || a.of_all_keys()) return out;
  ValueId& ranges = out[a.ranges()];
  ranges = in_slice(s, a.op, slice, [&](const ConversionSite& site) { return ranges_in_block(site, ranges, a.range(a.q + 1, j)); }, in);
  return out;
}

Op before_attention(const Slicing& s, const Op& op) {
  const ValueId q = op.operands[*queries_in_slices(op)];
  for (const Op& from : s.from.ops)
    if (std::ranges::find(from.results, q) != from.results.end()) return beside_attention(op, from.stage);
  return beside_attention(op, "");
}

// (q, k, v, ...) -> (out, logsumexp) of the slice's blocks, those that are apart left out; these follow, each in its stage. Returns what
// there is to join.
std::vector<Values> attention_of(Slicing& s, const Attending& a, std::int64_t slice) {
  const auto block = [&](std::int64_t j, const Values& before, std::int64_t in) {
    const Values operands = block_operands(s, a, slice, j, in);
    const auto add = [&](const ConversionSite& site) {
      const Values made = add_all_beside(site, a.op.name, operands, a.attributes(slice, j));
      return before.empty() ? made : joined(site, before, made);
    };
    return in_slice(s, a.op, slice, add, in);
  };
  Values own;
  for (std::int64_t j = 0; j < a.blocks(slice); ++j)
    if (!s.is_apart(a.op, slice, j)) own = block(j, own, kNoBlock);
  std::vector<Values> out = {own};
  for (std::int64_t j = 0; j < slice; ++j)
    if (s.is_apart(a.op, slice, j)) out.push_back(block(j, {}, j));
  return out;
}

void add_attention(Slicing& s, const Attending& a, std::int64_t slice) {
  const Op& op = a.op;
  std::vector<Values> parts = attention_of(s, a, slice);
  for (std::size_t r = 0; r < op.results.size(); ++r) s.held[op.results[r]][static_cast<std::size_t>(slice)] = parts[0][r];
  if (parts.size() > 1) s.unjoined[{op.results[0], slice}] = {&op, std::move(parts)};
}

// The sum of all slices' terms, in the slice that needs it.
ValueId sum_of(const ConversionSite& site, const Values& terms) {
  return terms.size() == 1 ? terms[0] : add_beside(site, "add_n", terms, {{"in_place", true}});
}

// The slice's term of a gradient of keys or values, and of which slice these are (`of`). Where the block is apart it waits for a slice that
// has one of its own, as these are added up where they are made.
void add_term(Slicing& s, const Op& op, std::int64_t slice, const std::pair<ValueId, std::int64_t>& of, ValueId term) {
  Values& waiting = s.waiting[of];
  if (s.is_apart(op, slice, of.second)) {
    waiting.push_back(term);
    return;
  }
  for (const ValueId other : waiting)
    term = in_slice(s, op, slice, [&](const ConversionSite& site) { return add_beside(site, "add", {term, other}, {}); });
  waiting.clear();
  s.terms[of].push_back(term);
}

// Whether a result of attention's backward belongs to keys or values, and not to queries.
bool is_of_keys(std::size_t result) {
  return result == 1 || result == 2;
}

// (dout, q, k, v, out, logsumexp, ...) -> (dq, dk, dv, dbias?), slices from the last to the first: at its own turn a slice has all terms of
// its dk and dv, and the first one those of keys that are whole.
void add_attention_backward(Slicing& s, const Attending& a, std::int64_t slice) {
  const Op& op = a.op;
  Values sums(op.results.size());  // over the slice's blocks: dq and dbias
  Values apart;                    // terms of dq
  for (std::int64_t j = 0; j < a.blocks(slice); ++j) {
    const std::int64_t in = s.is_apart(op, slice, j) ? j : kNoBlock;
    const Values operands = block_operands(s, a, slice, j, in);
    const auto add = [&](const ConversionSite& site) {
      Values all = add_all_beside(site, op.name, operands, a.attributes(slice, j));
      for (std::size_t r = 0; r < all.size() && in == kNoBlock; ++r)
        if (!is_of_keys(r)) sums[r] = sums[r] ? add_beside(site, "add", {sums[r], all[r]}, {}) : all[r];
      return all;
    };
    const Values made = in_slice(s, op, slice, add, in);
    if (in != kNoBlock) apart.push_back(made[0]);
    for (const std::size_t r : {1, 2}) add_term(s, op, slice, {op.results[r], j}, made[r]);
  }
  for (const ValueId term : apart)
    sums[0] = in_slice(s, before_attention(s, op), slice,
                       [&](const ConversionSite& site) { return add_beside(site, "add", {sums[0], term}, {}); });
  if (!a.of_all_keys() || slice == 0)
    for (const std::size_t r : {1, 2}) {
      const Values& terms = s.terms[{op.results[r], slice}];
      sums[r] = in_slice(s, op, slice, [&](const ConversionSite& site) { return sum_of(site, terms); });
    }
  for (std::size_t r = 0; r < sums.size(); ++r)
    if (sums[r]) s.held[op.results[r]][static_cast<std::size_t>(slice)] = sums[r];
}

void add_in_slices(Slicing& s, const Op& op, const LayoutRow& row) {
  const auto q = queries_in_slices(op);
  const bool attends = q && row.operands[*q].is_split() && row.operands[*q].dim == kLength, backward = op.phase == Phase::backward;
  for (std::size_t r = 0; r < op.results.size(); ++r)
    s.held[op.results[r]].resize(row.results[r].is_whole() ? 1 : static_cast<std::size_t>(s.slices()));
  for (std::int64_t i = 0; i < s.slices(); ++i) {
    const std::int64_t slice = backward ? s.slices() - 1 - i : i;
    if (!attends)
      add_in_slice(s, op, row, slice);
    else if (op.results.size() == 2)
      add_attention(s, {s, op, row}, slice);
    else
      add_attention_backward(s, {s, op, row}, slice);
  }
}

void add_op(Slicing& s, const Op& op, const LayoutRow& row) {
  if (op.stage.empty() && op.name == "add_n" && !is_whole(row))
    add_sum_of_loop(s, op, row);
  else if (is_whole(row))
    add_whole(s, op);
  else
    add_in_slices(s, op, row);
}

// A result of the loop is whole, put together by the slice that is the last to make a part; the cut dissolves the sum of the slices' terms
// (stage/stages.h).
ValueId result_of(Slicing& s, ValueId v, const IdVector<ValueId, OpId>& producer) {
  const Op op = producer[v] ? s.from.ops[producer[v]] : Op();
  const std::int64_t last = s.slices() - 1;
  if (!s.layouts.values[v].is_term()) return read_in(s, v, kWhole, op, op.phase == Phase::backward ? 0 : last);
  return add_beside({s.graph, marks_in(s, op, last), s.axis}, "add_n", s.held[v], {});
}

Graph sliced_body(const Graph& body, const GraphLayouts& layouts, const MeshAxis& axis, const Blocks& apart) {
  Slicing s{body, layouts, axis, apart, empty_like(body)};
  s.read_by_slices = read_by_slices(body, layouts);
  s.held.resize(body.values.size());
  for (const ValueId input : body.inputs) s.held[input] = {s.graph.add_input(body.type(input), body.values[input].name)};
  s.slice.resize(s.graph.values.size(), kNoSlice);
  s.backward.resize(s.graph.values.size());
  for (const OpId i : body.ops.ids()) add_op(s, body.ops[i], layouts.rows[i]);
  const IdVector<ValueId, OpId> producer = producers(body);
  for (const ValueId v : body.outputs) s.graph.outputs.push_back(result_of(s, v, producer));
  return std::move(s.graph);
}

// Blocks are apart from stages that attend in slices.
void check_apart(const Graph& body, const GraphLayouts& layouts, const Blocks& apart) {
  std::set<std::string> attending;
  for (const OpId i : body.ops.ids())
    if (body.ops[i].phase == Phase::forward && is_in_parts(body.ops[i], layouts.rows[i])) attending.insert(body.ops[i].stage);
  for (const AttentionBlock& block : apart)
    if (!attending.contains(block.stage))
      throw Error(concat("block ", block.block, " of slice ", block.slice, " is apart from stage ", quote(block.stage),
                         ", which has no causal attention"),
                  {concat("stages with attention: ", join(std::vector<std::string>(attending.begin(), attending.end()), ", "))},
                  "name blocks of these stages only");
}

void check_split(const GraphLayouts& body, std::int64_t slices) {
  if (std::ranges::any_of(body.values, &Layout::is_split)) return;
  throw Error(concat("pipeline.slices = ", slices, ": no tensor has a dim \"sequence\" of as many tokens"), {},
              "slices are for models that name this dim and sequences of more tokens than slices");
}

}  // namespace

std::optional<LayoutRow> row_in_slices(const LayoutSite& site, std::span<const Layout> from) {
  const auto q = queries_in_slices(site.op);
  if (!q || !from[*q].is_split() || from[*q].dim != kLength || from[*q].outer != 1) return std::nullopt;
  const Layout& queries = from[*q];
  const bool causal = attribute_or(site.op, "is_causal", false);
  if (causal && site.operands[*q].shape[kLength] != site.operands[*q + 1].shape[kLength]) return std::nullopt;
  LayoutRow row{std::vector<Layout>(site.operands.size(), queries), std::vector<Layout>(site.results.size(), queries)};
  const std::size_t ranges = place_of_ranges(*q);
  if (ranges < row.operands.size()) row.operands[ranges].dim = 1;  // of [batch, queries, 2]
  if (ranges + 1 < row.operands.size()) row.operands[ranges + 1] = kWhole;
  if (row.results.size() == 4) row.results[3] = kTerm;
  if (causal) return row;
  row.operands[*q + 1] = row.operands[*q + 2] = kWhole;
  if (*q > 0) row.results[1] = row.results[2] = kWhole;
  return row;
}

namespace {

// The names of all slices and blocks, in the order of their numbers in a table.
std::string slices_of(const std::vector<std::string>& stages, std::int64_t slices, const Blocks& apart) {
  std::vector<std::string> out;
  for (const std::string& stage : stages)
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      out.push_back(concat(stage, ".", slice));
      for (const AttentionBlock& block : apart)
        if (block.stage == stage && block.slice == slice) out.push_back(concat(stage, ".", slice, ".", block.block));
    }
  return join(out, ",");
}

// Its stages as those that hold slice 0 of a step of several.
Graph in_one_slice(const Graph& step) {
  Graph out = step;
  for (Op& op : out.ops) {
    if (!op.body) continue;
    Graph body = *op.body;
    for (Op& inner : body.ops)
      if (!inner.stage.empty()) inner.stage += ".0";
    op.body = std::make_shared<const Graph>(std::move(body));
  }
  return out;
}

}  // namespace

Graph unroll_slices(const Graph& step, std::int64_t slices, const std::vector<std::int64_t>& lengths,
                    const std::vector<AttentionBlock>& apart, const std::vector<std::string>& stages) {
  if (slices == 1) return in_one_slice(step);
  AxisWishes wishes{.axis = "slice", .members = slices, .states = {}, .dims = {"sequence", "routed"}};
  wishes.in_slices = true;
  std::vector<std::int64_t> ends;
  std::partial_sum(lengths.begin(), lengths.end(), std::back_inserter(ends));
  if (!ends.empty()) wishes.ends = &ends;
  for (int i = 0; i < step.state; ++i) wishes.states[step.values[step.inputs[i]].name] = kWhole;
  const GraphLayouts layouts = decide_layouts(step, wishes);
  check_split(*layouts.body, slices);
  const Blocks blocks(apart.begin(), apart.end());
  Graph out = step;
  for (Op& op : out.ops) {
    if (!op.body) continue;
    check_apart(*op.body, *layouts.body, blocks);
    op.body = std::make_shared<const Graph>(eliminate_dead_code(sliced_body(*op.body, *layouts.body, {wishes.axis, slices}, blocks)));
    if (!stages.empty()) op.attributes["stages"] = slices_of(stages, slices, blocks);
  }
  return out;
}

}  // namespace penstock
