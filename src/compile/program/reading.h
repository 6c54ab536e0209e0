// SPDX-License-Identifier: Apache-2.0
// Parsing that the text forms of programs and of drafts (lower/draft.h) have in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/cursor.h"
#include "penstock/schedule.h"

namespace penstock {

// The names of one kind of thing, each with its number in order of definition.
struct Names {
  std::string_view thing, sigil;
  std::unordered_map<std::string, std::int32_t> number{};
};
std::string define(Cursor& in, Names& names);
std::int32_t find(Cursor& in, const Names& names);
std::string name_after(Cursor& in, std::string_view sigil);

std::int64_t integer_in(Cursor& in, std::int64_t low, std::int64_t high);
std::int32_t index(Cursor& in);
// Reads the number of one of the things that are numbered in order: "block 0", "block 1".
void next_number(Cursor& in, std::string_view thing, std::size_t number);

// "2F3", or "2U" where no micro-batch is named.
struct ActionName {
  std::int32_t stage = -1;
  Kind kind = Kind::F;
  std::int32_t microbatch = -1;
};
ActionName action_name(Cursor& in);

// Reads "(item, item)", where there may be no item.
template <class Item>
void parse_list(Cursor& in, const Item& item) {
  in.expect("(");
  if (in.accept(")")) return;
  do item();
  while (in.accept(","));
  in.expect(")");
}

}  // namespace penstock
