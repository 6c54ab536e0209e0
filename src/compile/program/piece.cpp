// SPDX-License-Identifier: Apache-2.0
#include "program/piece.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The position at which "[...:...]" begins at the end of the name; npos: there is none.
std::size_t find_cut(std::string_view name) {
  if (!name.ends_with(']')) return std::string_view::npos;
  const std::size_t open = name.rfind('[');
  return open != std::string_view::npos && name.find(':', open) != std::string_view::npos ? open : std::string_view::npos;
}

[[noreturn]] void fail_name(std::string_view name, const std::string& hint) {
  throw Error(concat("state ", quote(name), " names no piece of a tensor"), {}, hint);
}

// Reads "[begin:end]" or "[begin:end/stride]", the last cut in a name or not.
Cut parse_cut(std::string_view text, std::string_view name) {
  Cut cut{0, -1, 0};
  const char *at = text.data() + 1, *const end = text.data() + text.size();
  for (std::int64_t* const number : {&cut.begin, &cut.end, &cut.stride}) {
    const auto [next, error] = std::from_chars(at, end, *number);
    if (error != std::errc() || next + 1 >= end) break;
    at = next + 1;
  }
  const bool in_order = 0 <= cut.begin && cut.begin < cut.end && (cut.stride == 0 || cut.end <= cut.stride);
  if (!in_order || piece_name("", cut) != text)
    fail_name(name, text.find('/') == text.npos ? "a piece is tensor[begin:end], with 0 <= begin < end"
                                                : "a piece is tensor[begin:end/stride], with 0 <= begin < end <= stride");
  return cut;
}

// Behind a range it is known how many elements are left.
void check_sizes(const std::vector<Cut>& cuts, std::string_view name) {
  std::int64_t size = -1;
  for (const Cut& cut : cuts) {
    if (size >= 0 && (cut.stride == 0 ? cut.end > size : size % cut.stride != 0))
      fail_name(name, concat(piece_name("", cut), " is cut from ", counted(size, "element")));
    if (cut.stride == 0)
      size = cut.size();
    else if (size >= 0)
      size = size / cut.stride * cut.size();
  }
}

// Runs of several pieces, the first element first, and of several that begin together the first piece's.
class Sweep {
 public:
  struct Entry {
    PieceRun run;
    std::size_t piece = 0;
    bool operator>(const Entry& other) const { return std::pair(run.begin, piece) > std::pair(other.run.begin, other.piece); }
  };

  Sweep(const std::vector<Piece>& pieces, std::int64_t elements) : pieces_(pieces), elements_(elements) {
    for (std::size_t p = 0; p < pieces.size(); ++p) add(p, 0);
  }
  bool empty() const { return next_.empty(); }
  const Entry& next() const { return next_.top(); }
  // Puts in its place what the same piece has at or behind the element `from`.
  void skip(std::int64_t from) {
    const std::size_t piece = next_.top().piece;
    next_.pop();
    add(piece, from);
  }

 private:
  void add(std::size_t piece, std::int64_t from) {
    if (const PieceRun run = run_from(pieces_[piece], elements_, from); run.size() > 0) next_.push({run, piece});
  }

  const std::vector<Piece>& pieces_;
  std::int64_t elements_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> next_;
};

// Appends a copy to those before it, or makes the last of them longer.
void append(std::vector<PieceCopy>& copies, const PieceCopy& next) {
  if (!copies.empty()) {
    PieceCopy& last = copies.back();
    if (last.piece == next.piece && last.from + last.count == next.from && last.to + last.count == next.to) {
      last.count += next.count;
      return;
    }
  }
  copies.push_back(next);
}

// Whether pieces tile a sequence of `elements`, by their cuts from the one at `depth` on: those that begin with the same cut tile what it
// leaves, and these cuts tile each row. Where this is false the pieces may tile the sequence in another way.
bool tile_by_cuts(const std::vector<const Piece*>& pieces, std::size_t depth, std::int64_t elements) {
  if (pieces.size() == 1 && pieces.front()->cuts.size() == depth) return true;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<const Piece*>> alike;  // by begin and end of the cut
  for (const Piece* piece : pieces) {
    if (piece->cuts.size() <= depth || piece->cuts[depth].stride != pieces.front()->cuts[depth].stride) return false;
    alike[{piece->cuts[depth].begin, piece->cuts[depth].end}].push_back(piece);
  }
  const std::int64_t stride = pieces.empty() ? 0 : pieces.front()->cuts[depth].stride, row = stride == 0 ? elements : stride;
  std::int64_t reached = 0;
  for (const auto& [range, of_range] : alike) {
    const auto& [begin, end] = range;
    const std::int64_t left = stride == 0 ? end - begin : elements / stride * (end - begin);
    if (begin != reached || !tile_by_cuts(of_range, depth + 1, left)) return false;
    reached = end;
  }
  return reached == row && (stride == 0 || elements % stride == 0);
}

bool tile_by_cuts(const std::vector<Piece>& pieces, std::int64_t elements) {
  std::vector<const Piece*> all;
  for (const Piece& piece : pieces) all.push_back(&piece);
  return tile_by_cuts(all, 0, elements);
}

}  // namespace

bool Piece::is_strided() const {
  return std::ranges::any_of(cuts, [](const Cut& cut) { return cut.stride > 0; });
}

std::string piece_name(std::string_view name, const Cut& cut) {
  if (cut.stride == 0) return concat(name, "[", cut.begin, ":", cut.end, "]");
  return concat(name, "[", cut.begin, ":", cut.end, "/", cut.stride, "]");
}

std::string piece_name(std::string_view name, std::int64_t begin, std::int64_t end) {
  return piece_name(name, Cut{begin, end});
}

std::string piece_name(const Piece& piece) {
  std::string name = piece.tensor;
  for (const Cut& cut : piece.cuts) name = piece_name(name, cut);
  return name;
}

Piece parse_piece(std::string_view name) {
  std::string_view tensor = name;
  std::vector<Cut> cuts;
  for (std::size_t open = find_cut(tensor); open != tensor.npos; open = find_cut(tensor)) {
    cuts.push_back(parse_cut(tensor.substr(open), name));
    tensor = tensor.substr(0, open);
  }
  std::ranges::reverse(cuts);
  if (tensor.empty() && !cuts.empty()) fail_name(name, "a piece is tensor[begin:end], with 0 <= begin < end");
  check_sizes(cuts, name);
  return {std::string(tensor), std::move(cuts)};
}

Cut cut_of(const Layout& split, const Shape& shape, std::int64_t members, std::int64_t member) {
  const LayoutView view = view_of(split, shape);
  const LayoutRange range = range_of(split, view.size, members, member);
  return {range.begin * view.inner, range.end * view.inner, view.size * view.inner};
}

std::int64_t elements_of(const Piece& piece, std::int64_t elements) {
  for (const Cut& cut : piece.cuts) {
    const auto inside = [&](std::int64_t count) { return std::clamp(count, cut.begin, cut.end) - cut.begin; };
    elements = cut.stride == 0 ? inside(elements) : elements / cut.stride * cut.size() + inside(elements % cut.stride);
  }
  return elements;
}

std::int64_t least_elements(const Piece& piece, std::int64_t held) {
  for (std::size_t c = piece.cuts.size(); c-- > 0;) {
    const Cut& cut = piece.cuts[c];
    if (cut.stride == 0) {
      held = cut.end;
      continue;
    }
    held = std::max<std::int64_t>(held, 1);
    const std::int64_t rows = held / cut.size() + (held % cut.size() > 0);
    // No tensor has so many elements: fits() is false then.
    if (__builtin_mul_overflow(rows, cut.stride, &held)) held = std::numeric_limits<std::int64_t>::max();
  }
  return held;
}

bool fits(const Piece& piece, std::int64_t elements, std::int64_t held) {
  std::int64_t size = elements;
  for (const Cut& cut : piece.cuts) {
    if (cut.stride == 0 ? cut.end > size : size % cut.stride != 0) return false;
    size = cut.stride == 0 ? cut.size() : size / cut.stride * cut.size();
  }
  return size == held;
}

PieceRun run_from(const Piece& piece, std::int64_t elements, std::int64_t from) {
  const std::int64_t at = elements_of(piece, std::min(from, elements));
  std::int64_t begin = at, size = elements_of(piece, elements) - at;
  if (size <= 0) return {elements, elements, at};
  for (std::size_t c = piece.cuts.size(); c-- > 0;) {
    const Cut& cut = piece.cuts[c];
    if (cut.stride == 0) {
      begin += cut.begin;
      continue;
    }
    const std::int64_t row = begin / cut.size(), inside = begin % cut.size();
    if (cut.size() < cut.stride) size = std::min(size, cut.size() - inside);
    begin = row * cut.stride + cut.begin + inside;
  }
  return {begin, begin + size, at};
}

std::vector<PieceCopy> cover(const std::vector<Piece>& pieces, const Piece& wanted, std::int64_t elements) {
  std::vector<PieceCopy> copies;
  Sweep sweep(pieces, elements);
  for (PieceRun run = run_from(wanted, elements, 0); run.size() > 0; run = run_from(wanted, elements, run.end))
    for (std::int64_t i = run.begin; i < run.end;) {
      while (!sweep.empty() && sweep.next().run.end <= i) sweep.skip(i);
      if (sweep.empty() || sweep.next().run.begin > i) return copies;
      const auto& [held, piece] = sweep.next();
      const std::int64_t count = std::min(held.end, run.end) - i;
      append(copies, {piece, held.at + i - held.begin, run.at + i - run.begin, count});
      i += count;
    }
  return copies;
}

std::string gap_in(const std::vector<Piece>& pieces, std::int64_t elements) {
  if (tile_by_cuts(pieces, elements)) return {};
  const std::vector<PieceCopy> copies = cover(pieces, {}, elements);
  const std::int64_t reached = copies.empty() ? 0 : copies.back().to + copies.back().count;
  if (reached == elements) return {};
  std::int64_t next = elements;
  for (const Piece& piece : pieces) next = std::min(next, run_from(piece, elements, reached).begin);
  return piece_name("", reached, next);
}

std::optional<Misfit> find_misfit(const std::vector<Piece>& pieces, std::int64_t elements) {
  if (tile_by_cuts(pieces, elements)) return std::nullopt;
  std::int64_t reached = 0;
  std::size_t before = 0;
  for (Sweep sweep(pieces, elements); !sweep.empty(); sweep.skip(reached)) {
    const auto& [run, piece] = sweep.next();
    if (run.begin > reached) return Misfit{reached, run.begin, piece, piece};
    if (run.begin < reached) return Misfit{run.begin, std::min(run.end, reached), before, piece};
    reached = run.end;
    before = piece;
  }
  if (reached < elements) return Misfit{reached, elements, before, before};
  return std::nullopt;
}

bool overlap(const Piece& a, const Piece& b, std::int64_t elements) {
  for (std::int64_t from = 0;;) {
    const PieceRun of_a = run_from(a, elements, from), of_b = run_from(b, elements, from);
    if (of_a.size() == 0 || of_b.size() == 0) return false;
    from = std::max(of_a.begin, of_b.begin);
    if (from < of_a.end && from < of_b.end) return true;
  }
}

}  // namespace penstock
