#include "program/piece.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The position at which "[...:...]" begins at the end of the name; npos: there is none.
std::size_t find_range(std::string_view name) {
  if (!name.ends_with(']')) return std::string_view::npos;
  const std::size_t open = name.rfind('[');
  return open != std::string_view::npos && name.find(':', open) != std::string_view::npos ? open : std::string_view::npos;
}

}  // namespace

std::string piece_name(std::string_view tensor, std::int64_t begin, std::int64_t end) {
  return concat(tensor, "[", begin, ":", end, "]");
}

Piece parse_piece(std::string_view name) {
  const std::size_t open = find_range(name);
  if (open == std::string_view::npos) return {std::string(name)};
  Piece piece{std::string(name.substr(0, open))};
  const char* const end = name.data() + name.size();
  const auto begin_read = std::from_chars(name.data() + open + 1, end, piece.begin);
  if (begin_read.ec == std::errc()) std::from_chars(begin_read.ptr + 1, end, piece.end);
  const bool range = 0 <= piece.begin && piece.begin < piece.end && piece_name(piece.tensor, piece.begin, piece.end) == name;
  if (!range || piece.tensor.empty() || find_range(piece.tensor) != std::string_view::npos)
    throw Error(concat("state ", quote(name), " names no piece of a tensor"), {}, "a piece is tensor[begin:end], with 0 <= begin < end");
  return piece;
}

std::vector<Cut> cover(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t p) { return pieces[p].begin; });
  std::vector<Cut> cuts;
  for (std::size_t p : order) {
    if (begin >= end || pieces[p].begin > begin) break;
    if (pieces[p].end <= begin) continue;
    cuts.push_back({p, begin, std::min(end, pieces[p].end)});
    begin = cuts.back().end;
  }
  return cuts;
}

std::int64_t end_of(const std::vector<Piece>& pieces) {
  std::int64_t end = 0;
  for (const Piece& piece : pieces) end = std::max(end, piece.end);
  return end;
}

std::string gap_in(const std::vector<Piece>& pieces) {
  const std::int64_t end = end_of(pieces);
  const std::vector<Cut> cuts = cover(pieces, 0, end);
  const std::int64_t reached = cuts.empty() ? 0 : cuts.back().end;
  if (reached == end) return {};
  std::int64_t next = end;
  for (const Piece& piece : pieces)
    if (piece.begin > reached) next = std::min(next, piece.begin);
  return piece_name("", reached, next);
}

}  // namespace penstock
