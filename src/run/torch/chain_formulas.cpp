// SPDX-License-Identifier: Apache-2.0
#include "torch/chain_formulas.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "ops/infer.h"

namespace penstock {
namespace {

struct Formula {
  std::string_view op, expression;
  std::string_view number = {};  // the attribute that is the last operand where a tensor is not
};

constexpr Formula kFormulas[] = {
    {"add", "a + b", "other"},
    {"sub", "a - b", "other"},
    {"mul", "a * b", "other"},
    {"div", "a / b", "other"},
    {"maximum", "largest(a, b)"},
    {"minimum", "smallest(a, b)"},
    {"pow.Tensor_Tensor", "powf(a, b)"},
    {"where", "a ? b : c"},
    {"neg", "-a"},
    {"abs", "fabsf(a)"},
    {"sign", "sign(a)"},
    {"exp", "expf(a)"},
    {"log", "logf(a)"},
    {"log1p", "log1pf(a)"},
    {"sqrt", "sqrtf(a)"},
    {"rsqrt", "1.0f / sqrtf(a)"},
    {"sin", "sinf(a)"},
    {"cos", "cosf(a)"},
    {"erf", "erff(a)"},
    {"tanh", "tanhf(a)"},
    {"tanh_backward", "a * (1.0f - b * b)"},
    {"sigmoid", "sigmoid(a)"},
    {"sigmoid_backward", "a * (1.0f - b) * b"},
    {"relu", "a <= 0 ? 0.0f : a"},
    {"threshold_backward", "b <= c ? 0.0f : a", "threshold"},
    {"silu", "a / (1.0f + expf(-a))"},
    {"silu_backward", "silu_backward(a, b)"},
    {"gelu", "gelu(a)"},
    {"gelu_backward", "gelu_backward(a, b)"},
};
constexpr Formula kQuestions[] = {
    {"eq", "a == b", "other"}, {"ne", "a != b", "other"},           {"lt", "a < b", "other"},  {"le", "a <= b", "other"},
    {"gt", "a > b", "other"},  {"ge", "a >= b", "other"},           {"logical_and", "a && b"}, {"logical_or", "a || b"},
    {"logical_not", "!a"},     {"isfinite", "fabsf(a) < INFINITY"},
};

template <std::size_t n>
const Formula* find(const Formula (&table)[n], std::string_view op) {
  const Formula* const found = std::ranges::find(table, op, &Formula::op);
  return found == table + n ? nullptr : found;
}

// Returns the formula of a power as ATen computes it.
std::string power(double exponent) {
  if (exponent == 0) return "1.0f";
  if (exponent == 1) return "a";
  if (exponent == 2) return "a * a";
  if (exponent == 3) return "a * a * a";
  if (exponent == 0.5) return "sqrtf(a)";
  if (exponent == -0.5) return "1.0f / sqrtf(a)";
  if (exponent == -1) return "1.0f / a";
  if (exponent == -2) return "1.0f / (a * a)";
  return "powf(a, b)";
}

// The number, rounded to the dtype first, as a literal; empty for one that an integer dtype does not have.
std::string literal(double x, c10::ScalarType type) {
  if (type == c10::kLong || type == c10::kInt)
    return x == std::floor(x) && std::abs(x) < 0x1p31 ? concat(static_cast<std::int64_t>(x)) : std::string();
  if (type == c10::kBool) return x != 0 ? "true" : "false";
  auto value = static_cast<float>(x);
  if (type == c10::kBFloat16) value = static_cast<float>(c10::BFloat16(value));
  if (type == c10::kHalf) value = static_cast<float>(c10::Half(value));
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "(-INFINITY)";
  char text[32];
  std::snprintf(text, sizeof(text), value < 0 ? "(%.9g" : "%.9g", static_cast<double>(value));
  std::string out = text;
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out + (value < 0 ? "f)" : "f");
}

// Each sum is rounded, but for the last, which is as all results.
std::string sum_of(std::size_t terms, c10::ScalarType type) {
  std::string out = "a";
  for (std::size_t i = 1; i < terms; ++i) out = (i == 1 ? out : rounded(out, type)) + " + " + static_cast<char>('a' + i);
  return out;
}

// The number takes the place of the operand behind the last tensor; empty where an integer dtype has no such number.
std::string with_number(const Formula& formula, const Op& op, c10::ScalarType type) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < op.operands.size(); ++i) names.emplace_back(1, static_cast<char>('a' + i));
  if (formula.number.empty() || !op.attributes.contains(formula.number)) return std::string(formula.expression);
  names.push_back(literal(number_attribute(op, formula.number), type));
  return names.back().empty() ? std::string() : with_operands(formula.expression, names);
}

}  // namespace

std::string rounded(const std::string& expression, c10::ScalarType type) {
  const bool is_low = is_real(type) && type != c10::kFloat;
  return is_low ? concat("rounded<", element_name(type), ">(", expression, ")") : expression;
}

std::string with_operands(std::string_view formula, std::span<const std::string> operands) {
  const auto is_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
  std::string out;
  for (std::size_t at = 0, end = 0; at < formula.size(); at = end) {
    for (end = at + 1; is_of_name(formula[at]) && end < formula.size() && is_of_name(formula[end]);) ++end;
    const std::string_view word = formula.substr(at, end - at);
    const auto operand = static_cast<std::size_t>(word[0] - 'a');
    out += word.size() == 1 && operand < operands.size() ? std::string_view(operands[operand]) : word;
  }
  return out;
}

bool is_real(c10::ScalarType type) {
  return type == c10::kFloat || type == c10::kBFloat16 || type == c10::kHalf;
}

std::string element_name(c10::ScalarType type) {
  switch (type) {
    case c10::kBFloat16:
      return "bf16";
    case c10::kHalf:
      return "f16";
    case c10::kBool:
      return "bool";
    case c10::kLong:
      return "int64_t";
    case c10::kInt:
      return "int";
    default:
      return "float";
  }
}

std::optional<std::string> formula_of(const Op& op, std::span<const c10::ScalarType> operands, c10::ScalarType type) {
  constexpr std::size_t kMostTerms = 8;
  const auto is_known = [](c10::ScalarType t) { return is_real(t) || t == c10::kBool || t == c10::kLong || t == c10::kInt; };
  if (!std::ranges::all_of(operands, is_known) || !(is_real(type) || type == c10::kBool)) return {};
  if (op.name == "full") return literal(number_attribute(op, "fill_value"), type);
  if (op.name == "to") return type == c10::kBool ? "a != 0" : "static_cast<float>(a)";
  if (type == c10::kBool) {
    const Formula* const question = find(kQuestions, op.name);
    if (!question || (operands[0] == c10::kBool && op.attributes.contains("other"))) return {};
    if (op.name == "isfinite" && !is_real(operands[0])) return {};
    const std::string text = with_number(*question, op, operands[0]);
    return text.empty() ? std::optional<std::string>() : text;
  }
  if (std::ranges::any_of(operands.subspan(op.name == "where" ? 1 : 0), [](c10::ScalarType t) { return !is_real(t); })) return {};
  if (op.name == "add_n") return operands.size() <= kMostTerms ? std::optional(sum_of(operands.size(), type)) : std::nullopt;
  if (op.name == "pow") return with_number({"pow", power(number_attribute(op, "exponent")), "exponent"}, op, c10::kFloat);
  const bool is_tanh = op.name.starts_with("gelu") && attribute_or(op, "approximate", std::string("none")) == "tanh";
  if (is_tanh) return op.name == "gelu" ? "gelu_tanh(a)" : "gelu_tanh_backward(a, b)";
  const Formula* const formula = find(kFormulas, op.name);
  if (!formula) return {};
  return with_number(*formula, op, operands[0]);
}

}  // namespace penstock
