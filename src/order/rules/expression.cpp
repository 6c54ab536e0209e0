// SPDX-License-Identifier: Apache-2.0
#include "rules/expression.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::int64_t kLargest = 1'000'000'000;
constexpr std::string_view kVariables = "pmvnrs";

class Parser {
 public:
  explicit Parser(Cursor& cursor) : cursor_(cursor) {}

  Expression parse() {
    cursor_.skip();
    out_.place = cursor_.place();
    sum();
    return std::move(out_);
  }

 private:
  void emit(char operation, std::int64_t number = 0) { out_.terms.push_back({operation, number}); }

  void sum() {
    product();
    while (true) {
      const char operation = cursor_.peek();
      if (operation != '+' && operation != '-') return;
      cursor_.expect({&operation, 1});
      product();
      emit(operation);
    }
  }

  void product() {
    factor();
    while (true) {
      const char operation = cursor_.peek();
      if (operation != '*' && operation != '/') return;
      cursor_.expect({&operation, 1});
      factor();
      emit(operation);
    }
  }

  void factor() {
    constexpr int kDeepest = 100;  // the most nested parentheses, each of which takes some stack
    if (++depth_ > kDeepest) cursor_.fail(concat("more than ", kDeepest, " parentheses within each other"));
    if (cursor_.next_is_number()) {
      constant();
    } else if (cursor_.accept("(")) {
      sum();
      cursor_.expect(")");
    } else if (cursor_.accept("min")) {
      two('<');
    } else if (cursor_.accept("max")) {
      two('>');
    } else {
      variable();
    }
    --depth_;
  }

  void constant() {
    const std::size_t begin = cursor_.position();
    const std::int64_t number = cursor_.integer();
    if (number > kLargest || number < -kLargest) cursor_.fail_at(begin, concat("numbers go up to ", kLargest));
    emit('#', number);
  }

  void two(char operation) {
    cursor_.expect("(");
    sum();
    cursor_.expect(",");
    sum();
    cursor_.expect(")");
    emit(operation);
  }

  void variable() {
    for (const char name : kVariables) {
      if (cursor_.accept({&name, 1})) return emit(name);
    }
    cursor_.fail("expected a number", "whole numbers, p, m, v, n, r, s, min(a, b), max(a, b), parentheses");
  }

  Cursor& cursor_;
  Expression out_;
  int depth_ = 0;
};

std::int64_t variable_of(char name, const Variables& variables) {
  switch (name) {
    case 'p':
      return variables.p;
    case 'm':
      return variables.m;
    case 'v':
      return variables.v;
    case 'n':
      return variables.n;
    case 'r':
      return variables.r;
    default:
      return variables.s;
  }
}

[[noreturn]] void fail(const Expression& expression, std::string_view what, const Variables& with) {
  throw Error(concat(expression.place, expression.place.empty() ? "" : ": ", print(expression), " ", what),
              {concat("where p = ", with.p, ", m = ", with.m, ", v = ", with.v, ", n = ", with.n, ", r = ", with.r, ", s = ", with.s)});
}

std::int64_t divided(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// The precedence of a term's operator; numbers and variables bind closest.
int precedence(char operation) {
  if (operation == '+' || operation == '-') return 1;
  return operation == '*' || operation == '/' ? 2 : 3;
}

bool is_operation(char operation) {
  return operation != '#' && kVariables.find(operation) == std::string_view::npos;
}

}  // namespace

Expression parse_expression(Cursor& cursor) {
  return Parser(cursor).parse();
}

Expression::Expression(std::string_view text) {
  Cursor cursor("expression", text);
  *this = parse_expression(cursor);
  place.clear();
  if (!cursor.at_end()) cursor.fail("expected the end of the expression");
}

bool Expression::uses(char variable) const {
  return std::any_of(terms.begin(), terms.end(), [&](const Term& term) { return term.operation == variable; });
}

std::int64_t Expression::value(const Variables& variables) const {
  std::vector<std::int64_t> stack;
  for (const Term& term : terms) {
    if (!is_operation(term.operation)) {
      stack.push_back(term.operation == '#' ? term.number : variable_of(term.operation, variables));
      continue;
    }
    const std::int64_t b = stack.back();
    stack.pop_back();
    std::int64_t& a = stack.back();
    bool overflow = false;
    if (term.operation == '/' && b == 0) fail(*this, "divides by zero", variables);
    if (term.operation == '+') overflow = __builtin_add_overflow(a, b, &a);
    if (term.operation == '-') overflow = __builtin_sub_overflow(a, b, &a);
    if (term.operation == '*') overflow = __builtin_mul_overflow(a, b, &a);
    if (term.operation == '/') overflow = b == -1 && __builtin_sub_overflow(0, a, &a);
    if (term.operation == '/' && b != -1) a = divided(a, b);
    if (term.operation == '<') a = std::min(a, b);
    if (term.operation == '>') a = std::max(a, b);
    if (overflow) fail(*this, "does not fit into 64 bits", variables);
  }
  return stack.back();
}

std::string print(const Expression& expression) {
  if (expression.terms.empty()) return {};
  struct Part {
    std::string text;
    int precedence;
  };
  std::vector<Part> stack;
  for (const auto& [operation, number] : expression.terms) {
    if (!is_operation(operation)) {
      stack.push_back({operation == '#' ? std::to_string(number) : std::string(1, operation), 3});
      continue;
    }
    const Part b = std::move(stack.back());
    stack.pop_back();
    Part& a = stack.back();
    const int own = precedence(operation);
    if (own == 3) {
      a = {concat(operation == '<' ? "min(" : "max(", a.text, ", ", b.text, ")"), 3};
      continue;
    }
    if (a.precedence < own) a.text = "(" + a.text + ")";
    a.text += operation;
    a.text += b.precedence <= own ? "(" + b.text + ")" : b.text;
    a.precedence = own;
  }
  return stack.back().text;
}

}  // namespace penstock
