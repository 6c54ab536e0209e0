// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <set>

#include "base/cursor.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {

using nlohmann::json;

namespace {

// Refuses equal keys in one object: nlohmann's parser keeps the last of them, and two values for one thing are a mistake.
class DoubledKeys {
 public:
  explicit DoubledKeys(const std::string& file) : file_(file) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    const std::size_t around = depth;
    if (event == json::parse_event_t::object_start) {
      open_.resize(around + 1);
      open_.back().clear();
    }
    if (event == json::parse_event_t::key && !open_[around - 1].insert(parsed.get<std::string>()).second)
      throw Error(concat(file_, ": the key ", quote(parsed.get<std::string>()), " is there twice in one object"));
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> open_;  // keys of the objects that are open at the parser's place, by depth
};

// Accepts all values and notes where the parser stops: nlohmann's exceptions give the position of bad syntax, not of a number that is too
// large.
class Stop : public nlohmann::json_sax<json> {
 public:
  std::size_t position = 0;  // bytes read

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t read, const std::string&, const nlohmann::detail::exception&) override {
    position = read;
    return false;
  }
};

// Returns the likeliest mistake where the parser stopped.
std::string mistake_at(std::string_view text, std::size_t position) {
  if (trim(text).empty()) return "this is not JSON: the file is empty";
  if (position >= text.size() || trim(text.substr(position)).empty())
    return "this is not JSON: it ends before its brackets or quotes are closed";
  const std::string_view before = trim(text.substr(0, position));
  const char here = text[position];
  if (here == '\'') return "this is not JSON: texts stand in double quotes";
  if ((here == ']' || here == '}') && before.ends_with(',')) return "this is not JSON: a comma too many stands before the bracket";
  return "this is not JSON";
}

}  // namespace

json parse_json(std::string_view text, const JsonFile& file, std::string_view skipped) {
  DoubledKeys check(file.name);
  bool inside = false;  // whether the parser is inside the skipped member
  const auto keep = [&](int depth, json::parse_event_t event, const json& parsed) {
    const bool outermost_key = depth == 1 && event == json::parse_event_t::key;
    if (outermost_key) inside = !skipped.empty() && parsed == skipped;
    return inside ? !outermost_key : check(depth, event, parsed);
  };
  try {
    return json::parse(text, keep);
  } catch (const json::exception& error) {
    Stop stop;
    json::sax_parse(text, &stop);
    const std::size_t position = std::min(stop.position > 0 ? stop.position - 1 : 0, text.size());
    const bool syntax = dynamic_cast<const json::parse_error*>(&error) != nullptr;
    Cursor(file.name, text).fail_at(position, syntax ? mistake_at(text, position) : std::string("a number is too large"), file.remake);
  }
}

std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void JsonNode::fail(const std::string& what, const std::string& hint) const {
  throw Error(concat(file_.name, path_.empty() ? "" : ": ", path_, " ", what), {}, hint);
}

double JsonNode::number() const {
  if (!value_.is_number()) fail(concat("is ", shown(value_), "; it must be a number"));
  const auto number = value_.get<double>();
  if (number < 0) fail(concat("is ", shown(value_), "; it must not be negative"));
  return number;
}

double JsonNode::positive() const {
  const double value = number();
  if (value == 0) fail("is 0; it must be more");
  return value;
}

std::int64_t JsonNode::whole(std::int64_t least, std::int64_t most) const {
  const double value = value_.is_number_integer() ? value_.get<double>() : static_cast<double>(least) - 1;
  if (value < static_cast<double>(least) || value > static_cast<double>(most))
    fail(concat("is ", shown(value_), "; it must be ",
                least == most ? concat(least) : concat("a whole number from ", least, most < kMost ? concat(" to ", most) : "")));
  return value_.get<std::int64_t>();
}

const std::string& JsonNode::text() const {
  if (!value_.is_string()) fail(concat("is ", shown(value_), "; it must be a text"));
  return value_.get_ref<const std::string&>();
}

bool JsonNode::flag() const {
  if (!value_.is_boolean()) fail(concat("is ", shown(value_), "; it must be true or false"));
  return value_.get<bool>();
}

void JsonNode::check_list() const {
  if (!value_.is_array()) fail(concat("is ", shown(value_), "; it must be a list"));
}

void JsonNode::check_object() const {
  if (!value_.is_object()) fail(concat("is ", shown(value_), "; it must be an object"));
}

void JsonNode::check_keys(const std::vector<std::string>& known) const {
  check_object();
  for (const auto& [key, value] : value_.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = did_you_mean(key, known);
    fail(concat("has an unknown key ", quote(key)), near.empty() ? "known: " + join(known, ", ") : near);
  }
}

JsonNode JsonNode::at(const char* key) const {
  check_object();
  if (!has(key))
    fail(concat("has no key ", quote(key)),
         concat("the file is damaged, or of another version", file_.remake.empty() ? "" : ": ", file_.remake));
  return {value_[key], file_, below(key)};
}

}  // namespace penstock
