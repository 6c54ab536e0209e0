// SPDX-License-Identifier: Apache-2.0
#include "transform/attention_in_parts.h"

#include <algorithm>

#include "base/text.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Values = std::vector<ValueId>;

constexpr std::int32_t kLength = 2, kHead = 3;  // dims of [batch, heads, length, head]

// A bias is of all queries and keys: attention with one is not computed in parts.
bool is_attention(const Op& op) {
  return op.name == "scaled_dot_product_attention" && op.operands.size() == 3;
}
bool is_attention_backward(const Op& op) {
  return op.name == "scaled_dot_product_attention_backward" && op.operands.size() == 6;
}
bool is_causal(const Op& op) {
  return attribute<bool>(op, "is_causal");
}

struct KeysAndValues {
  ValueId k{}, v{};
};

// A product that a member computes: which chunk of its queries reads which chunk of the keys at hand (kAll: all of them).
constexpr std::int64_t kAll = -1;
struct Part {
  std::int64_t queries = 0, keys = kAll;
  bool causal = false;
};

// One attention as its member computes it.
struct InParts {
  const ConversionSite& s;
  std::int64_t op_number = 0;
  std::int64_t length = 0;  // of what a member has of the keys

  std::int64_t members() const { return s.axis.size; }
  bool causal() const { return is_causal(s.marks); }
  std::int64_t chunks() const { return causal() ? 2 : 1; }  // that a member has
  std::int64_t member(std::int64_t ahead) const { return (s.member + ahead + members()) % members(); }
  // Returns the length that a member reads of another's keys and values: all that this one has, or its first chunk.
  std::int64_t length_read(std::int64_t reader, std::int64_t giver) const { return causal() && giver < reader ? length / 2 : length; }

  ValueId first(ValueId x, std::int64_t elements) const { return slice_of(s, x, kLength, 0, elements); }
  ValueId chunk(ValueId x, std::int64_t i) const {
    const std::int64_t size = s.graph.type(x).shape[kLength] / chunks();
    return i == kAll ? x : slice_of(s, x, kLength, i * size, (i + 1) * size);
  }
  Values chunks_of(ValueId x) const {
    Values out;
    for (std::int64_t i = 0; i < chunks(); ++i) out.push_back(chunk(x, i));
    return out;
  }
  ValueId joined(Values parts) const { return cat_of(s, std::move(parts), kLength); }
  void add(ValueId& sum, ValueId x) const { sum = sum ? add_beside(s, "add", {sum, x}, {}) : x; }
};

Attributes attributes_of(const InParts& p, const Part& part) {
  return {{"is_causal", part.causal}, {"scale", p.s.marks.attributes.at("scale")}};
}

// Keys and values travel as one tensor, [batch, heads, length, 2 head].
ValueId packed(const InParts& p, const KeysAndValues& x) {
  return cat_of(p.s, {x.k, x.v}, kHead);
}
KeysAndValues unpacked(const InParts& p, ValueId x) {
  const std::int64_t head = p.s.graph.type(x).shape[kHead] / 2;
  return {slice_of(p.s, x, kHead, 0, head), slice_of(p.s, x, kHead, head, 2 * head)};
}

// The products with the keys of the member `step` places on.
std::vector<Part> parts_with(const InParts& p, std::int64_t step) {
  if (!p.causal()) return {{}};
  if (step == 0) return {{0, 0, true}, {1, 0, false}, {1, 1, true}};
  if (p.member(step) > p.s.member) return {{1, kAll, false}};
  return {{0, kAll, false}, {1, kAll, false}};
}

KeysAndValues keys_of(const InParts& p, const KeysAndValues& all, const Part& part) {
  return {p.chunk(all.k, part.keys), p.chunk(all.v, part.keys)};
}

// A message of an op to the member `by` places back. Those of an op come one after the other: this one behind so many others.
struct Message {
  std::int64_t by, number, behind = 0;
};

// Returns what the member `by` places on gives, of that length.
ValueId shifted(const InParts& p, ValueId given, std::int64_t length, const Message& message) {
  return add_beside(p.s, "shift_members", {given},
                    {{"axis", p.s.axis.name},
                     {"size", p.members()},
                     {"by", message.by},
                     {"dim", std::int64_t{kLength}},
                     {"length", length},
                     {"message", 2 * p.members() * p.op_number + message.number},
                     {"behind", message.behind}});
}

// Keys and values of the member `step` places on; `own` goes to the one as many places back.
KeysAndValues received(const InParts& p, ValueId own, std::int64_t step) {
  const std::int64_t giver = p.member(step), reader = p.member(-step);
  const ValueId given = p.first(own, p.length_read(reader, p.s.member));
  return unpacked(p, shifted(p, given, p.length_read(p.s.member, giver), {step, step, step - 1}));
}

// Gradients of what this member has of keys and values, from the one that read them as many places back; those of the keys it read itself
// go to their owner.
KeysAndValues returned(const InParts& p, const KeysAndValues& gradients, std::int64_t step) {
  const std::int64_t reader = p.member(-step);
  const ValueId given = packed(p, gradients);
  return unpacked(p, shifted(p, given, p.length_read(reader, p.s.member), {p.members() - step, p.members() + step}));
}

// (q, k, v) -> (out, logsumexp)
Values forward(const InParts& p, const Values& operands) {
  const Values q = p.chunks_of(operands[0]);
  const KeysAndValues own{operands[1], operands[2]};
  const ValueId given = packed(p, own);
  Values out(q.size()), logsumexp(q.size());
  for (std::int64_t step = 0; step < p.members(); ++step) {
    const KeysAndValues all = step == 0 ? own : received(p, given, step);
    for (const Part& part : parts_with(p, step)) {
      const KeysAndValues keys = keys_of(p, all, part);
      Values made = add_all_beside(p.s, "scaled_dot_product_attention", {q[part.queries], keys.k, keys.v}, attributes_of(p, part));
      ValueId &o = out[part.queries], &l = logsumexp[part.queries];
      if (o) made = add_all_beside(p.s, "attention_join", {o, l, made[0], made[1]}, {});
      o = made[0];
      l = made[1];
    }
  }
  return {p.joined(std::move(out)), p.joined(std::move(logsumexp))};
}

void add_gradients(const InParts& p, KeysAndValues& sum, const KeysAndValues& x) {
  p.add(sum.k, x.k);
  p.add(sum.v, x.v);
}

// (dout, q, k, v, out, logsumexp) -> (dq, dk, dv)
Values backward(const InParts& p, const Values& operands) {
  const Values dout = p.chunks_of(operands[0]), q = p.chunks_of(operands[1]), out = p.chunks_of(operands[4]),
               logsumexp = p.chunks_of(operands[5]);
  const KeysAndValues own{operands[2], operands[3]};
  const ValueId given = packed(p, own);
  Values dq(q.size());
  std::vector<KeysAndValues> sums(q.size());  // of the chunks that it has
  for (std::int64_t step = 0; step < p.members(); ++step) {
    const KeysAndValues all = step == 0 ? own : received(p, given, step);
    KeysAndValues there;  // of the keys of the other member
    for (const Part& part : parts_with(p, step)) {
      const KeysAndValues keys = keys_of(p, all, part);
      const auto i = static_cast<std::size_t>(part.queries);
      const Values made = add_all_beside(p.s, "scaled_dot_product_attention_backward",
                                         {dout[i], q[i], keys.k, keys.v, out[i], logsumexp[i]}, attributes_of(p, part));
      p.add(dq[i], made[0]);
      add_gradients(p, step > 0 ? there : sums[std::max<std::int64_t>(part.keys, 0)], {made[1], made[2]});
    }
    if (step == 0) continue;
    const KeysAndValues back = returned(p, there, step);
    const bool all_chunks = p.s.graph.type(back.k).shape[kLength] == p.length;
    for (std::size_t i = 0; i < (all_chunks ? sums.size() : 1); ++i)
      add_gradients(p, sums[i], keys_of(p, back, {0, all_chunks ? static_cast<std::int64_t>(i) : kAll, false}));
  }
  Values dk, dv;
  for (const KeysAndValues& sum : sums) {
    dk.push_back(sum.k);
    dv.push_back(sum.v);
  }
  return {p.joined(std::move(dq)), p.joined(std::move(dk)), p.joined(std::move(dv))};
}

// Returns how many chunks of a sequence all members have together.
std::int64_t chunks_of_all(const Op& op, std::int64_t members) {
  return is_causal(op) ? 2 * members : members;
}

}  // namespace

std::optional<std::size_t> queries_of(const Op& op) {
  if (is_attention(op)) return 0;
  return is_attention_backward(op) ? std::optional<std::size_t>(1) : std::nullopt;
}

std::optional<LayoutRow> row_in_parts(const LayoutSite& site, const Layout& queries) {
  const std::size_t q = *queries_of(site.op);
  if (!queries.is_split() || queries.dim != kLength || queries.units != site.members) return std::nullopt;
  if (is_causal(site.op) && !(queries.mirrored && queries.outer == 2 && site.operands[q] == site.operands[q + 1])) return std::nullopt;
  for (const TensorType& type : {site.operands[q], site.operands[q + 1]})
    if (type.shape[kLength] == 0 || type.shape[kLength] % (queries.outer * site.members) != 0) return std::nullopt;
  return LayoutRow{std::vector<Layout>(site.operands.size(), queries), std::vector<Layout>(site.results.size(), queries)};
}

bool is_in_parts(const Op& op, const LayoutRow& row) {
  if (!queries_of(op)) return false;
  const Layout& keys = row.operands[*queries_of(op) + 1];
  return keys.is_split() && keys.dim == kLength;
}

std::vector<ValueId> attention_in_parts(const ConversionSite& site, const std::vector<ValueId>& operands, std::int64_t op_number) {
  const ValueId keys = operands[*queries_of(site.marks) + 1];
  const InParts parts{site, op_number, site.graph.type(keys).shape[kLength]};
  return is_attention(site.marks) ? forward(parts, operands) : backward(parts, operands);
}

double bytes_in_parts(const Graph& graph, const Op& op, std::int64_t members) {
  const auto n = static_cast<double>(members);
  const double keys = 2 * static_cast<double>(graph.type(op.operands[*queries_of(op) + 1]).bytes());
  return keys * (n - 1) / n * (is_causal(op) ? 0.75 : 1) * (is_attention(op) ? 1 : 2);
}

bool has_few_heads(const Graph& step, std::int64_t members) {
  return std::ranges::any_of(step.ops, [&](const Op& op) {
    if (op.body) return has_few_heads(*op.body, members);
    return is_attention(op) && step.type(op.operands[0]).shape[1] < members;
  });
}

void check_parts(const Graph& step, std::string_view axis, std::int64_t members) {
  for (const Op& op : step.ops) {
    if (op.body) check_parts(*op.body, axis, members);
    if (!is_attention(op)) continue;
    const std::int64_t chunks = chunks_of_all(op, members);
    for (ValueId v : {op.operands[0], op.operands[1]}) {
      const std::int64_t length = step.type(v).shape[kLength];
      if (length % chunks == 0) continue;
      throw Error(concat("attention in parts along axis ", quote(axis), " of ", members, " members: a sequence of ", length,
                         " does not divide into ", chunks, " equal chunks"),
                  {concat("read by ", op.name, op.origin.empty() ? "" : concat(" of ", op.origin)),
                   is_causal(op) ? "its mask is causal: each member has a chunk from the front and one from the back" : ""},
                  concat("use a length of ", (length / chunks + 1) * chunks, ", or pipeline.attention = \"heads\""));
    }
  }
}

}  // namespace penstock
