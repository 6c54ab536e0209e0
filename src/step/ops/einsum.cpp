// SPDX-License-Identifier: Apache-2.0
// Sums of products by letters, as products of matrices.
#include <algorithm>
#include <map>
#include <numeric>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Integers = std::vector<std::int64_t>;

// A tensor with a letter for each dim.
struct Lettered {
  Tensor tensor;
  std::string letters;
};

[[noreturn]] void refuse(const std::string& equation, const std::string& what, const std::string& hint = {}) {
  throw Error(concat("einsum ", quote(equation), ": ", what), {}, hint);
}

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// The letters of `of` for which `keep` holds, in their order.
template <class Keep>
std::string filtered(const std::string& of, Keep keep) {
  std::string out;
  std::ranges::copy_if(of, std::back_inserter(out), keep);
  return out;
}

// The letters of each operand's dims and of the result's.
struct Equation {
  std::vector<std::string> terms;
  std::string result;
};

Equation read(const std::string& equation) {
  const std::string text = filtered(equation, [](char c) { return c != ' '; });
  const std::size_t arrow = text.find("->");
  Equation out{split(text.substr(0, arrow), ','), {}};
  const std::string all = join(out.terms, "");
  if (arrow != std::string::npos) {
    out.result = text.substr(arrow + 2);
  } else {
    out.result = filtered(all, [&](char c) { return std::ranges::count(all, c) == 1; });
    std::ranges::sort(out.result);
  }
  for (const char c : all + out.result)
    if (!std::isalpha(static_cast<unsigned char>(c)))
      refuse(equation, concat("no letter: '", std::string(1, c), "'"), "every dim has a letter; \"...\" is not taken");
  for (const std::string& letters : out.terms)
    for (const char c : letters)
      if (std::ranges::count(letters, c) > 1)
        refuse(equation, concat("letter ", c, " stands twice in one operand: diagonals are not taken"));
  for (const char c : out.result) {
    if (!has(all, c)) refuse(equation, concat("letter ", c, " of the result stands in no operand"));
    if (std::ranges::count(out.result, c) > 1) refuse(equation, concat("letter ", c, " stands twice in the result"));
  }
  return out;
}

std::vector<Lettered> lettered(const std::string& equation, const Equation& read, const std::vector<Tensor>& operands) {
  if (read.terms.size() != operands.size())
    refuse(equation, concat("it has ", counted(std::ssize(read.terms), "term"), " for ", counted(std::ssize(operands), "operand")));
  std::map<char, std::int64_t> sizes;
  std::vector<Lettered> out;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::string& letters = read.terms[i];
    if (std::ssize(letters) != operands[i].rank())
      refuse(equation, concat(quote(letters), " does not name the dims of ", operands[i].type().text()));
    for (std::size_t d = 0; d < letters.size(); ++d) {
      const std::int64_t size = operands[i].size(static_cast<int>(d)), known = sizes.emplace(letters[d], size).first->second;
      if (known != size) refuse(equation, concat("letter ", letters[d], " has sizes ", known, " and ", size));
    }
    out.push_back({operands[i], letters});
  }
  return out;
}

// x with its dims in the order of `letters`, all of which it has.
Tensor in_order(const Lettered& x, const std::string& letters) {
  Integers dims;
  for (const char c : letters) dims.push_back(static_cast<std::int64_t>(x.letters.find(c)));
  return x.letters == letters ? x.tensor : permute(x.tensor, dims);
}

// x without the dims whose letters are not kept: they are summed.
Lettered summed(const Lettered& x, const std::string& kept) {
  Integers dims;
  for (std::size_t d = 0; d < x.letters.size(); ++d)
    if (!has(kept, x.letters[d])) dims.push_back(static_cast<std::int64_t>(d));
  if (dims.empty()) return x;
  return {sum(x.tensor, dims), filtered(x.letters, [&](char c) { return has(kept, c); })};
}

Shape sizes_of(const Lettered& x, const std::string& letters) {
  Shape out;
  for (const char c : letters) out.push_back(x.tensor.size(static_cast<int>(x.letters.find(c))));
  return out;
}

std::int64_t count(const Shape& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// The product of a and b, summed over their common letters that are not in `wanted`:
//   [batch, rows, inner] * [batch, inner, columns], each of them any number of dims
Lettered product(Lettered a, Lettered b, const std::string& wanted) {
  a = summed(a, wanted + b.letters);
  b = summed(b, wanted + a.letters);
  const std::string batch = filtered(a.letters, [&](char c) { return has(b.letters, c) && has(wanted, c); });
  const std::string inner = filtered(a.letters, [&](char c) { return has(b.letters, c) && !has(wanted, c); });
  const std::string rows = filtered(a.letters, [&](char c) { return !has(b.letters, c); });
  const std::string columns = filtered(b.letters, [&](char c) { return !has(a.letters, c); });
  const Shape batches = sizes_of(a, batch), outer = sizes_of(a, rows), across = sizes_of(b, columns);
  const std::int64_t shared = count(sizes_of(a, inner));
  Shape left = {count(outer), shared}, right = {shared, count(across)};
  if (!batch.empty()) {
    left.insert(left.begin(), count(batches));
    right.insert(right.begin(), count(batches));
  }
  const Tensor x = reshape(in_order(a, batch + rows + inner), left), y = reshape(in_order(b, batch + inner + columns), right);
  Shape shape = batches;
  shape.insert(shape.end(), outer.begin(), outer.end());
  shape.insert(shape.end(), across.begin(), across.end());
  return {reshape(batch.empty() ? mm(x, y) : bmm(x, y), shape), batch + rows + columns};
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  const Equation names = read(equation);
  std::vector<Lettered> left = lettered(equation, names, operands);
  Lettered done = left[0];
  for (std::size_t i = 1; i < left.size(); ++i) {
    std::string wanted = names.result;
    for (std::size_t later = i + 1; later < left.size(); ++later) wanted += left[later].letters;
    done = product(done, left[i], wanted);
  }
  return in_order(summed(done, names.result), names.result);
}

}  // namespace penstock
