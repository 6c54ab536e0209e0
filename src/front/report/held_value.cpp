// SPDX-License-Identifier: Apache-2.0
#include "report/held_value.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "program/piece.h"
#include "stage/loop.h"
#include "transform/viewed.h"

namespace penstock {
namespace {

std::int64_t elements_in(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t out = 1;
  for (std::size_t d = begin; d < end; ++d) out *= shape[d];
  return out;
}

// Which of a tensor's dims are shown as rows and as columns: rows are dims [first, split), columns the dims from `split` on.
struct Surface {
  std::size_t first = 0, split = 0;
};

// The surface of a tensor whose dims `split` are cut on some device; where there are none, all dims are shown.
Surface surface_of(const Shape& shape, const std::set<std::size_t>& split) {
  if (shape.empty()) return {};
  const std::size_t last = shape.size() - 1;
  if (split.empty()) return {0, last};
  const std::size_t from = *split.begin(), to = *split.rbegin();
  if (from < to) return {from, to};
  return from < last ? Surface{from, from + 1} : Surface{last > 0 ? last - 1 : 0, last};
}

std::string dims_text(const Shape& shape, const std::vector<DimName>& names, std::size_t begin, std::size_t end) {
  std::vector<std::string> out;
  for (std::size_t d = begin; d < end; ++d) {
    const bool is_named = d < names.size() && !names[d].name.empty();
    out.push_back(concat(is_named ? names[d].name : concat("dim ", d), " ", shape[d]));
  }
  return join(out, " x ");
}

HeldValue value_on(const Shape& shape, const Surface& shown, const std::vector<DimName>& names) {
  HeldValue out;
  out.rows = elements_in(shape, shown.first, shown.split);
  out.columns = elements_in(shape, shown.split, shape.size());
  out.row_text = dims_text(shape, names, shown.first, shown.split);
  out.column_text = dims_text(shape, names, shown.split, shape.size());
  if (shown.first > 0) out.notes.push_back(concat("not shown, as no device has a part of it: ", dims_text(shape, names, 0, shown.first)));
  return out;
}

// The elements that a piece has of the first rows * columns of a tensor, as boxes: rows with the same columns are one.
std::vector<HeldBox> boxes_of(const Piece& piece, std::int64_t elements, const HeldValue& value) {
  std::vector<HeldBox> out;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> last;  // by columns: the box that was added to
  const auto add = [&](const HeldBox& box) {
    const auto [at, added] = last.try_emplace({box.column_begin, box.column_end}, out.size());
    if (!added && out[at->second].row_end == box.row_begin) {
      out[at->second].row_end = box.row_end;
      return;
    }
    at->second = out.size();
    out.push_back(box);
  };
  const std::int64_t shown = value.rows * value.columns, columns = value.columns;
  for (PieceRun run = run_from(piece, elements, 0); run.size() > 0 && run.begin < shown; run = run_from(piece, elements, run.end)) {
    const std::int64_t end = std::min(run.end, shown);
    for (std::int64_t begin = run.begin; begin < end;) {
      const std::int64_t row = begin / columns, column = begin % columns, full = column == 0 ? (end - begin) / columns : 0;
      const std::int64_t stop = full > 0 ? begin + full * columns : std::min(end, (row + 1) * columns);
      add(full > 0 ? HeldBox{row, row + full, 0, columns} : HeldBox{row, row + 1, column, column + stop - begin});
      begin = stop;
    }
  }
  return out;
}

// Devices by what they have, and by the term of a sum that it is.
class Holders {
 public:
  void add(std::vector<HeldBox> boxes, const std::vector<std::int64_t>& term, std::int32_t device) {
    std::sort(boxes.begin(), boxes.end());
    found_[std::move(boxes)][term].push_back(device);
  }
  std::vector<HeldPart> parts() const {
    std::vector<HeldPart> out;
    for (const auto& [boxes, terms] : found_) {
      HeldPart& part = out.emplace_back(HeldPart{boxes, {}});
      for (const auto& [term, devices] : terms) part.terms.push_back(devices);
    }
    return out;
  }

 private:
  std::map<std::vector<HeldBox>, std::map<std::vector<std::int64_t>, std::vector<std::int32_t>>> found_;
};

std::string device_list(const std::vector<std::int32_t>& devices) {
  return join(devices, ", ", [](std::int32_t d) { return std::to_string(d); });
}

// "0 to 3", or "0" alone.
std::string range_text(std::int64_t begin, std::int64_t end) {
  return end - begin == 1 ? concat(begin) : concat(begin, " to ", end - 1);
}

// --- values of the loop's body

// The part of a value that a device has: along each axis as it is worked on.
struct FollowedValue {
  Piece piece{};
  std::vector<std::int64_t> term{};  // the places along axes along which the value is a term
};

FollowedValue followed(const std::vector<AxisDecision>& axes, ValueId value, TensorType type, const MeshShape& mesh,
                       const MeshShape::Device& device) {
  FollowedValue out;
  std::size_t member = 0;
  for (const AxisDecision& axis : axes) {
    const auto place = device.place[mesh.axis(axis.wishes.axis)];
    const Layout& layout = axis.layouts[member].body->values[value];
    if (layout.is_split()) {
      out.piece.cuts.push_back(cut_of(layout, type.shape, axis.wishes.members, place));
      type = local_type(std::move(type), layout, axis.wishes.members, place);
    }
    if (layout.is_term()) out.term.push_back(place);
    value = axis.values.body->values[value];
    member = member * axis.wishes.members + place;
  }
  return out;
}

// The dims along which any axis splits the value, and a line for each axis and each conversion of the value along it.
std::set<std::size_t> split_dims(const std::vector<AxisDecision>& axes, ValueId value, std::vector<std::string>& notes) {
  std::set<std::size_t> out;
  for (const AxisDecision& axis : axes) {
    const Graph& body = *axis.step.ops[loop_of(axis.step)].body;
    const Layout& layout = axis.layouts[0].body->values[value];
    if (layout.is_split()) out.insert(static_cast<std::size_t>(layout.dim));
    notes.push_back(concat("along ", axis.wishes.axis, " it is made ", text_of(layout)));
    const Asked base = converted_for(body, producers(body), *axis.layouts[0].body, axis.wishes.members, {value, layout});
    for (const LayoutConversion& c : conversions_in(body, *axis.layouts[0].body, axis.wishes.members))
      if (c.value == value || c.value == base.value)
        notes.push_back(concat("  then ", text_of(c.to), " for ", reader_text(body, c), ": ", conversion_name(c.from, c.to), ", ",
                               bytes_text(c.bytes), " from each"));
    value = axis.values.body->values[value];
  }
  return out;
}

}  // namespace

std::string devices_text(const HeldPart& part) {
  if (part.terms.size() == 1) return device_list(part.terms[0]);
  return join(part.terms, " + ",
              [](const auto& devices) { return devices.size() == 1 ? device_list(devices) : concat("(", device_list(devices), ")"); });
}

std::string boxes_text(const HeldValue& value, const HeldPart& part) {
  std::vector<std::string> ranges;
  for (const HeldBox& box : part.boxes) {
    const bool rows = box.row_begin > 0 || box.row_end < value.all_rows(), columns = box.column_begin > 0 || box.column_end < value.columns;
    std::vector<std::string> said;
    if (rows) said.push_back(concat(box.row_end - box.row_begin == 1 ? "row " : "rows ", range_text(box.row_begin, box.row_end)));
    if (columns)
      said.push_back(concat(box.column_end - box.column_begin == 1 ? "column " : "columns ", range_text(box.column_begin, box.column_end)));
    ranges.push_back(said.empty() ? "all of it" : join(said, ", "));
  }
  return join(ranges, "; ");
}

HeldValue held_state(const Program& program, const std::string& name, const TensorType& type, const std::vector<DimName>& dims) {
  HeldValue out = value_on(type.shape, surface_of(type.shape, {}), dims);
  out.name = name;
  out.what = concat(type.text(), ", in state");
  Holders holders;
  std::vector<std::int32_t> owners;
  for (std::int32_t d = 0; d < std::ssize(program.devices); ++d)
    for (const Slot& slot : program.devices[d].slots) {
      if (!holds_state(slot.kind)) continue;
      for (const std::string& part : slot.names) {
        const Piece piece = parse_piece(part);
        if (piece.tensor != name) continue;
        holders.add(boxes_of(piece, type.elements(), out), {}, d);
        if (slot.kind == SlotClass::state) owners.push_back(d);
      }
    }
  out.parts = holders.parts();
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  out.notes.push_back(concat(owners.size() == 1 ? "device " : "devices ", device_list(owners), owners.size() == 1 ? " writes" : " write",
                             " it to checkpoints"));
  return out;
}

HeldValue held_activation(const Graph& step, const std::vector<AxisDecision>& axes, ValueId value, const MeshShape& mesh,
                          const std::vector<std::int32_t>& devices) {
  for (const AxisDecision& axis : axes)
    if (axis.own)
      throw Error(concat("what activations are along axis ", quote(axis.wishes.axis), " the model's own collectives say"),
                  {"each member has tensors of its own there"}, "ask for a parameter");
  const Graph& body = *step.ops[loop_of(step)].body;
  const TensorType& type = body.type(value);
  const OpId made = producers(body)[value];
  std::vector<std::string> notes;
  const std::set<std::size_t> dims = split_dims(axes, value, notes);
  HeldValue out = value_on(type.shape, surface_of(type.shape, dims), {});
  out.name = made ? concat("%", value.value) : shown_name(body.values[value].name);
  out.what = concat(type.text(), ", ");
  if (made) {
    const Op& op = body.ops[made];
    out.what += concat(op.name, op.origin.empty() ? "" : " of " + op.origin, op.phase == Phase::backward ? " (backward)" : "", " in stage ",
                       quote(op.stage));
  } else {
    out.what += "which the loop reads";
  }
  out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  Holders holders;
  std::int32_t bands = 1;
  for (const std::int32_t d : devices) {
    const MeshShape::Device& device = mesh.devices[d];
    const FollowedValue found = followed(axes, value, type, mesh, device);
    std::vector<HeldBox> boxes = boxes_of(found.piece, type.elements(), out);
    for (HeldBox& box : boxes) {
      box.row_begin += device.replica * out.rows;
      box.row_end += device.replica * out.rows;
    }
    bands = std::max(bands, device.replica + 1);
    holders.add(std::move(boxes), found.term, d);
  }
  for (std::int32_t b = 0; b < bands && bands > 1; ++b) out.bands.push_back(concat("samples of ", b));
  out.parts = holders.parts();
  return out;
}

}  // namespace penstock
