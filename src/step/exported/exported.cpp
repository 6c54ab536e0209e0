// SPDX-License-Identifier: Apache-2.0
// Reading what an exporter wrote.
#include "exported/exported.h"

#include <set>

#include "base/json.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr const char* kForm = "exported 1";
constexpr std::int64_t kUnbounded = std::int64_t{1} << 53;  // as exporters write "any size"

template <class Role>
Role role_of(const JsonNode& node, const std::vector<std::pair<std::string, Role>>& roles) {
  const std::string& role = node.text();
  std::vector<std::string> names;
  for (const auto& [name, value] : roles) {
    if (name == role) return value;
    names.push_back(name);
  }
  node.fail(concat("there is no role ", quote(role)), did_you_mean(role, names));
}

ExportedInput read_input(const JsonNode& node) {
  using Role = ExportedInput::Role;
  node.check_keys({"name", "role", "trained", "aliases"});
  ExportedInput out{
      node.at("name").text(),
      role_of<Role>(node.at("role"),
                    {{"parameter", Role::parameter}, {"buffer", Role::buffer}, {"split", Role::split}, {"whole", Role::whole}}),
      false,
      {}};
  if (node.has("trained")) out.trained = node.at("trained").flag();
  if (node.has("aliases")) node.at("aliases").each_element([&](const JsonNode& alias) { out.aliases.push_back(alias.text()); });
  return out;
}

ExportedOutput read_output(const JsonNode& node) {
  using Role = ExportedOutput::Role;
  node.check_keys({"name", "role"});
  return {node.has("name") ? node.at("name").text() : "",
          role_of<Role>(node.at("role"),
                        {{"loss", Role::loss}, {"buffer", Role::buffer}, {"output", Role::output}, {"gradient", Role::gradient}})};
}

// Its name is that of an input and the number of a dim: "input_ids.1".
ExportedSymbol read_symbol(const std::string& name, const JsonNode& node) {
  const std::string& place = node.at("name").text();
  const std::size_t dot = place.rfind('.');
  if (dot == std::string::npos || place.find_first_not_of("0123456789", dot + 1) != std::string::npos)
    node.at("name").fail(concat(quote(place), " is no input and dim"));
  const std::int64_t dim = evaluate_size(std::string_view(place).substr(dot + 1), {});
  return {name, place.substr(0, dot), dim, node.at("example").whole(0), node.at("min").whole(0), node.at("max").whole(0)};
}

ExportedCondition read_condition(const JsonNode& node) {
  std::vector<std::string> parts;
  node.each_element([&](const JsonNode& part) { parts.push_back(part.text()); });
  if (parts.size() != 3) node.fail("a condition is two expressions and the relation between them");
  return {parts[0], parts[1], parts[2]};
}

bool holds(const ExportedCondition& condition, const Sizes& sizes) {
  const std::int64_t left = evaluate_size(condition.left, sizes), right = evaluate_size(condition.right, sizes);
  const std::string& r = condition.relation;
  if (r == "==") return left == right;
  if (r == "!=") return left != right;
  if (r == "<") return left < right;
  if (r == "<=") return left <= right;
  if (r == ">") return left > right;
  if (r == ">=") return left >= right;
  throw Error(concat("there is no relation ", quote(r), " between sizes"), {}, "export the module again");
}

void check_sizes(const Exported& exported, const Sizes& sizes) {
  for (const ExportedSymbol& symbol : exported.symbols) {
    const std::int64_t size = evaluate_size(symbol.name, sizes);
    if (size < symbol.least || size > symbol.most)
      throw Error(
          concat(exported.model, " was exported for ", symbol.least, symbol.most < kUnbounded ? concat(" to ", symbol.most) : " and more",
                 " along dim ", symbol.dim, " of ", quote(symbol.input), ", not for ", size),
          {}, "take micro-batches of another size, or export it with an example of this one");
  }
  for (const ExportedCondition& condition : exported.conditions)
    if (!holds(condition, sizes))
      throw Error(concat(exported.model, " was exported for sizes with ", condition.left, " ", condition.relation, " ", condition.right),
                  {join(sizes, ", ", [](const auto& size) { return concat(size.first, " is ", size.second); })},
                  "export it with an example of these sizes");
}

void check_roles(const JsonNode& root, const Exported& exported) {
  std::set<std::string> names, trained;
  for (const ExportedInput& input : exported.inputs) {
    if (!names.insert(input.name).second) root.at("inputs").fail(concat("two inputs are named ", quote(input.name)));
    if (input.trained) trained.insert(input.name);
  }
  int losses = 0;
  for (const ExportedOutput& output : exported.outputs) {
    losses += output.role == ExportedOutput::Role::loss;
    if (output.role == ExportedOutput::Role::gradient && trained.erase(output.name) == 0)
      root.at("outputs").fail(concat("a gradient of ", quote(output.name), ", which is no parameter that is trained"));
  }
  if (losses != 1) root.at("outputs").fail(concat("there are ", losses, " losses; there must be one"));
  if (!trained.empty()) root.at("outputs").fail(concat("there is no gradient of ", quote(*trained.begin()), ", which is trained"));
}

}  // namespace

Exported read_exported(std::string_view header, std::string text, const std::string& file) {
  const JsonFile json{file, "export the module again"};
  const nlohmann::json value = parse_json(header, json);
  const JsonNode root(value, json);
  root.check_object();
  if (root.at("penstock").text() != kForm)
    root.at("penstock").fail(concat("it is ", quote(root.at("penstock").text()), ", not ", quote(kForm)));
  Exported out;
  out.text = std::move(text);
  out.model = root.at("model").text();
  out.framework = root.at("torch").text();
  const JsonNode samples = root.at("samples");
  out.samples = samples.value().is_number() ? std::to_string(samples.whole(1)) : samples.text();
  if (const std::string& loss = root.at("loss").text(); loss != "mean" && loss != "sum")
    root.at("loss").fail(concat("it is ", quote(loss), "; it is mean or sum"));
  out.loss_is_sum = root.at("loss").text() == "sum";
  if (root.has("growth")) out.growth = root.at("growth").flag();
  root.at("symbols").each_member([&](const std::string& name, const JsonNode& node) { out.symbols.push_back(read_symbol(name, node)); });
  root.at("conditions").each_element([&](const JsonNode& node) { out.conditions.push_back(read_condition(node)); });
  root.at("inputs").each_element([&](const JsonNode& node) { out.inputs.push_back(read_input(node)); });
  root.at("outputs").each_element([&](const JsonNode& node) { out.outputs.push_back(read_output(node)); });
  check_roles(root, out);
  return out;
}

Sizes example_sizes(const Exported& exported) {
  Sizes out;
  for (const ExportedSymbol& symbol : exported.symbols) out[symbol.name] = symbol.example;
  return out;
}

Graph joint_graph(const Exported& exported, const Sizes& sizes, Samples samples) {
  check_sizes(exported, sizes);
  Graph graph = parse_graph(with_sizes(exported.text, sizes, samples), concat(exported.model, ".graph"));
  verify_structure(graph);
  if (graph.inputs.size() != exported.inputs.size() || graph.outputs.size() != exported.outputs.size())
    throw Error(concat("the graph of ", exported.model, " has ", counted(std::ssize(graph.inputs), "input"), " and ",
                       counted(std::ssize(graph.outputs), "output"), ", its header names ", exported.inputs.size(), " and ",
                       exported.outputs.size()),
                {}, "export the module again");
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    if (const std::string& name = graph.values[graph.inputs[i]].name; name != exported.inputs[i].name)
      throw Error(
          concat("input ", i, " of the graph of ", exported.model, " is ", quote(name), ", in its header ", quote(exported.inputs[i].name)),
          {}, "export the module again");
  return graph;
}

}  // namespace penstock
