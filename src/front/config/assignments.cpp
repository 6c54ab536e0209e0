// SPDX-License-Identifier: Apache-2.0
#include "config/assignments.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "base/amount.h"
#include "base/papers.h"
#include "base/text.h"
#include "base/words.h"
#include "config/other_words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The whole names of the keys of this name.
std::vector<std::string> paths_of(const std::vector<ConfigKey>& keys, std::string_view name) {
  std::vector<std::string> out;
  for (const ConfigKey& key : keys)
    if (key.name == name) out.push_back(key.path());
  return out;
}

// The hint for a key that is in no section, or not in this one: it may be another section's, or misspelt.
std::string hint_for_key(const std::string& found, const std::vector<ConfigKey>& keys) {
  const std::string name = found.substr(found.rfind('.') + 1);
  if (const std::vector<std::string> elsewhere = paths_of(keys, name); !elsewhere.empty())
    return concat("its whole name is ", join(elsewhere, " or "));
  std::vector<std::string> names;
  for (const ConfigKey& key : keys) names.push_back(key.name);
  std::vector<std::string> near = paths_of(keys, key_called_elsewhere(name));
  if (const std::string meant = nearest(name, names); near.empty() && !meant.empty()) near = paths_of(keys, meant);
  return near.empty() ? "penstock config lists all keys"
                      : concat("did you mean ", join(near, " or ", [](const std::string& path) { return quote(path); }), "?");
}

std::vector<std::string> names_of(const std::vector<ConfigKey>& keys, const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigKey& key : keys)
    if (key.section == section) names.push_back(key.name);
  return names;
}

void add_section(std::vector<Assignment>& out, const std::string& section, const toml::table& table, std::string_view file) {
  for (const auto& [key, value] : table) {
    if (section == "layout" && value.is_table())
      add_section(out, concat(section, ".", key.str()), *value.as_table(), file);  // a stage's own
    else
      out.push_back({section, std::string(key.str()), &value, place_text(file, key.source()), place_text(file, value.source())});
  }
}

// A name that is no section's, with a table or a value behind it.
[[noreturn]] void fail_unknown_section(const std::string& place, const std::string& name, bool is_table,
                                       const std::vector<std::string>& sections) {
  if (is_table) fail_unknown(place, "section", name, sections);
  Config config;
  const std::vector<std::string> paths = paths_of(fixed_keys(config), name);
  if (paths.empty()) fail_unknown(place, "key outside of a section", name, sections);
  throw Error(concat(place, "unknown key outside of a section ", quote(name)), {},
              concat("write [", paths[0].substr(0, paths[0].find('.')), "] above it, as it is ", paths[0]));
}

const char* type_name(const toml::node& node) {
  if (node.is_string()) return "a text";
  if (node.is_integer()) return "a whole number";
  if (node.is_floating_point()) return "a number with a fraction";
  if (node.is_boolean()) return "true or false";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a table";
  return "a date or time";
}

[[noreturn]] void fail_type(const ConfigKey& key, const Assignment& assignment, const char* wanted) {
  const std::string given = assignment.value->is_string() ? concat(" ", quote(**assignment.value->as_string())) : "";
  const std::string usual = value_text(key);
  throw Error(concat(assignment.value_place, key.path(), " needs ", wanted, ", this is ", type_name(*assignment.value), given), {},
              usual.starts_with("[") ? "" : concat("as in ", key.path(), " = ", usual));
}

void check_range(const ConfigKey& key, const Assignment& assignment, double value, const std::string& shown) {
  if (value >= key.least && (key.is_below ? value < key.most : value <= key.most)) return;
  const std::string upper = std::isinf(key.most) ? "" : concat(key.is_below ? " and below " : " and at most ", key.most);
  throw Error(concat(assignment.value_place, key.path(), " is ", shown, "; it must be at least ", key.least, upper));
}

struct Assign {
  const ConfigKey& key;
  const Assignment& from;

  void operator()(std::int64_t* target) const { *target = whole(); }
  void operator()(int* target) const { *target = static_cast<int>(whole()); }
  void operator()(double* target) const {
    const std::optional<double> amount = with_unit();
    *target = amount ? *amount : real(*from.value, "a number");
  }
  void operator()(bool* target) const {
    const auto value = from.value->value_exact<bool>();
    if (!value) fail_type(key, from, "true or false");
    *target = *value;
  }
  void operator()(std::string* target) const {
    check_one_axis();
    const auto value = from.value->value_exact<std::string>();
    if (!value) fail_type(key, from, "a text");
    check_word(*value, key.is_layout() && value->empty());
    *target = *value;
  }
  void operator()(const ConfigKey::Choice& choice) const {
    const auto value = from.value->value_exact<std::string>();
    if (!value) fail_type(key, from, "a text");
    check_word(*value, false);
    choice.choose(static_cast<std::size_t>(std::ranges::find(key.words, *value) - key.words.begin()));
  }
  void operator()(std::vector<std::string>* target) const {
    target->clear();
    if (const auto one = from.value->value_exact<std::string>()) {
      check_word(*one, false);
      target->push_back(*one);
      return;
    }
    if (!from.value->is_array()) fail_type(key, from, "a list of texts");
    for (const toml::node& item : *from.value->as_array()) {
      if (!item.is_string()) fail_type(key, from, "a list of texts");
      const std::string& text = **item.as_string();
      check_word(text, false);
      if (!key.words.empty() && std::find(target->begin(), target->end(), text) != target->end())
        throw Error(concat(from.value_place, key.path(), " names ", quote(text), " twice"));
      target->push_back(text);
    }
  }
  void operator()(std::vector<double>* target) const {
    target->clear();
    if (from.value->is_number()) {
      target->push_back(real(*from.value, "a number"));
      return;
    }
    if (!from.value->is_array()) fail_type(key, from, "a list of numbers");
    for (const toml::node& item : *from.value->as_array()) target->push_back(real(item, "a list of numbers"));
  }
  void operator()(std::vector<std::vector<double>>* target) const {
    constexpr const char* kWanted = "a list of lists of numbers";
    target->clear();
    if (!from.value->is_array()) fail_type(key, from, kWanted);
    for (const toml::node& list : *from.value->as_array()) {
      if (!list.is_array()) fail_type(key, from, kWanted);
      std::vector<double>& numbers = target->emplace_back();
      for (const toml::node& item : *list.as_array()) numbers.push_back(real(item, kWanted));
    }
  }

  // A number without a fraction may be no integer by how it is written, as 1e3, or too large for one.
  [[noreturn]] void fail_whole() const {
    const std::optional<double> given =
        from.value->is_string() ? parse_number<double>(**from.value->as_string()) : from.value->value<double>();
    if (from.value->is_boolean() || !given || *given != std::floor(*given)) fail_type(key, from, "a whole number");
    check_range(key, from, *given, number(*given));
    if (std::abs(*given) > 9e15) throw Error(concat(from.value_place, key.path(), " is ", number(*given), ", more than it can hold"));
    throw Error(concat(from.value_place, key.path(), " needs a whole number, without a point or an exponent"), {},
                concat("write ", static_cast<std::int64_t>(*given)));
  }
  void check_word(const std::string& value, bool is_free) const {
    if (is_free || key.words.empty() || std::find(key.words.begin(), key.words.end(), value) != key.words.end()) return;
    if (key.is_like_words && key.is_like_words(value)) return;
    const bool is_axis = key.is_layout() || key.section == "axes" || key.name == "axes";
    fail_unknown(from.value_place, is_axis ? "axis" : key.name.c_str(), value, key.words);
  }
  // Throws Error where a dim is mapped to several axes, as a list or with commas.
  void check_one_axis() const {
    if (!key.is_layout()) return;
    std::vector<std::string> axes;
    if (const auto text = from.value->value_exact<std::string>()) axes = split(*text, ',');
    if (from.value->is_array())
      for (const toml::node& item : *from.value->as_array())
        if (item.is_string()) axes.push_back(**item.as_string());
    if (axes.size() < 2) return;
    throw Error(concat(from.value_place, key.path(), " names ", axes.size(),
                       " axes: ", join(axes, ", ", [](const std::string& axis) { return std::string(trim(axis)); })),
                {"a dim is split over one axis"});
  }

  // Reads a text with a unit, "30s" or "16GB", for a key of seconds or bytes.
  std::optional<double> with_unit() const {
    const auto text = from.value->value_exact<std::string>();
    if (!text || (key.unit != "bytes" && key.unit != "seconds")) return {};
    const std::optional<Amount> amount = parse_amount(*text, key.unit == "bytes" ? Quantity::bytes : Quantity::seconds);
    if (!amount || !amount->has_unit) return {};
    check_range(key, from, amount->value, *text);
    return amount->value;
  }
  std::int64_t whole() const {
    if (const std::optional<double> amount = with_unit()) return static_cast<std::int64_t>(*amount);
    const auto value = from.value->value_exact<std::int64_t>();
    if (!value) fail_whole();
    check_range(key, from, static_cast<double>(*value), concat(*value));
    return *value;
  }
  double real(const toml::node& node, const char* wanted) const {
    if (!node.is_number()) fail_type(key, from, wanted);
    const double value = *node.value<double>();
    if (!std::isfinite(value)) throw Error(concat(from.value_place, key.path(), " is ", number(value), "; it must be finite"));
    check_range(key, from, value, concat(value));
    return value;
  }
};

bool is_textual(const ConfigKey& key, std::string_view value) {
  if (std::holds_alternative<std::string*>(key.target) || std::holds_alternative<ConfigKey::Choice>(key.target)) return true;
  return std::holds_alternative<std::vector<std::string>*>(key.target) && !value.starts_with('[');
}

}  // namespace

void fail_unknown(const std::string& place, const char* what, const std::string& found, const std::vector<std::string>& known) {
  const std::string meant = value_called_elsewhere(found);
  const std::string near =
      std::ranges::find(known, meant) != known.end() ? concat("did you mean ", quote(meant), "?") : hint_for(found, known);
  throw Error(concat(place, "unknown ", what, " ", quote(found)), {}, near.empty() ? "known: " + join(known, ", ") : near);
}

std::vector<Assignment> assignments_of(const toml::table& document, std::string_view file) {
  static const std::vector<std::string> sections = {"model", "data", "batch",  "train", "pipeline",
                                                    "mesh",  "axes", "layout", "run",   "faults"};
  std::vector<Assignment> out;
  for (const auto& [section, node] : document) {
    const std::string place = place_text(file, section.source());
    if (std::find(sections.begin(), sections.end(), section.str()) == sections.end())
      fail_unknown_section(place, std::string(section.str()), node.is_table(), sections);
    if (!node.is_table()) throw Error(concat(place, section.str(), " is a section, not a key"), {}, concat("write [", section.str(), "]"));
    add_section(out, std::string(section.str()), *node.as_table(), file);
  }
  return out;
}

std::string full_key(const Override& override, const std::vector<ConfigKey>& keys) {
  std::vector<std::string> found;
  for (const ConfigKey& key : keys) {
    if (override.key == key.path()) return override.key;
    if (override.key == key.name && !key.by_path) found.push_back(key.path());
  }
  if (found.empty()) throw Error(concat(override.source, ": unknown key ", quote(override.key)), {}, hint_for_key(override.key, keys));
  if (found.size() > 1) throw Error(concat(override.source, ": ", quote(override.key), " is in several sections"), {}, join(found, " or "));
  return found.front();
}

toml::table override_document(const Override& override, const ConfigKey& key) {
  if (is_textual(key, override.value)) return toml::table{{"x", override.value}};
  const bool is_list = std::holds_alternative<std::vector<double>*>(key.target) && !override.value.starts_with('[');
  try {
    return parse_toml(is_list ? concat("x = [", override.value, "]") : "x = " + override.value, "--set");
  } catch (const Error&) {
    return toml::table{{"x", override.value}};  // taken as text: the type check then says what is needed instead
  }
}

void assign(const ConfigKey& key, const Assignment& assignment) {
  std::visit(Assign{key, assignment}, key.target);
}

void assign_all(const std::vector<Assignment>& assignments, const std::vector<ConfigKey>& keys, const std::string& model) {
  for (const Assignment& assignment : assignments) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const ConfigKey& k) { return k.section == assignment.section && k.name == assignment.name; });
    if (key == keys.end()) {
      const std::string what =
          assignment.section == "model" ? concat("key of model ", quote(model)) : concat("key of [", assignment.section, "]");
      const std::vector<std::string> own = names_of(keys, assignment.section);
      const bool is_elsewhere = !paths_of(keys, assignment.name).empty();
      if (!key_called_elsewhere(assignment.name).empty() || (is_elsewhere && did_you_mean(assignment.name, own).empty()))
        throw Error(concat(assignment.key_place, "unknown ", what, " ", quote(assignment.name)), {}, hint_for_key(assignment.name, keys));
      fail_unknown(assignment.key_place, what.c_str(), assignment.name, own);
    }
    assign(*key, assignment);
  }
}

}  // namespace penstock
