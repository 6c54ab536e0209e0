// SPDX-License-Identifier: Apache-2.0
#include "program/reading.h"

#include <charconv>
#include <limits>

#include "base/text.h"

namespace penstock {

std::string name_after(Cursor& in, std::string_view sigil) {
  in.expect(sigil);
  return in.peek() == '"' ? in.string() : std::string(in.name());
}

std::string define(Cursor& in, Names& names) {
  in.skip();
  const std::size_t position = in.position();
  std::string name = name_after(in, names.sigil);
  if (!names.number.emplace(name, static_cast<std::int32_t>(names.number.size())).second)
    in.fail_at(position, concat("a second ", names.thing, " named ", names.sigil, name));
  return name;
}

std::int32_t find(Cursor& in, const Names& names) {
  in.skip();
  const std::size_t position = in.position();
  const std::string name = name_after(in, names.sigil);
  const auto found = names.number.find(name);
  if (found != names.number.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : names.number) known.push_back(entry.first);
  const std::string near = nearest(name, known);
  in.fail_at(position, concat("there is no ", names.thing, " ", names.sigil, name),
             near.empty() ? "" : concat("did you mean ", names.sigil, near, "?"));
}

std::int64_t integer_in(Cursor& in, std::int64_t low, std::int64_t high) {
  in.skip();
  const std::size_t position = in.position();
  const std::int64_t value = in.integer();
  if (value < low || value > high) in.fail_at(position, concat("expected a number from ", low, " to ", high, ", found ", value));
  return value;
}

std::int32_t index(Cursor& in) {
  return static_cast<std::int32_t>(integer_in(in, 0, std::numeric_limits<std::int32_t>::max()));
}

void next_number(Cursor& in, std::string_view thing, std::size_t number) {
  in.skip();
  const std::size_t position = in.position();
  if (index(in) != static_cast<std::int64_t>(number)) in.fail_at(position, concat("expected ", thing, " ", number));
}

ActionName action_name(Cursor& in) {
  ActionName action{.stage = index(in)};
  const std::size_t position = in.position();
  const std::string_view word = in.word();
  const std::size_t letters = std::min(word.find_first_of("0123456789"), word.size());
  const std::string_view digits = word.substr(letters);
  int kind = 0;
  while (kind <= static_cast<int>(Kind::RECV_B) && name(static_cast<Kind>(kind)) != word.substr(0, letters)) ++kind;
  if (kind > static_cast<int>(Kind::RECV_B)) in.fail_at(position, concat("unknown kind of action ", quote(word.substr(0, letters))));
  action.kind = static_cast<Kind>(kind);
  if (digits.empty()) return action;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), action.microbatch);
  if (error != std::errc() || end != digits.data() + digits.size())
    in.fail_at(position + letters, concat("expected a micro-batch, found ", digits));
  return action;
}

}  // namespace penstock
