// SPDX-License-Identifier: Apache-2.0
// Ops as ATen's operators compute them, on any device: for memory that the host cannot read (Kernel::bind_device). Each waits for nothing
// and reads no number on the host, so that a step made of them can be recorded.
#pragma once

#include "torch/faults.h"
#include "torch/kernel.h"

namespace penstock {

class RowPlaces;  // torch/row_places.h

Bound adamw_by_aten(const Site&);
Bound half_by_aten(const Site&);  // of an optimiser's update
Bound predict_adamw_by_aten(const Site&);
Bound predict_sgd_by_aten(const Site&);
Bound sgd_by_aten(const Site&);

// The checks that tell of a target that is no class, and of an index that no table has.
IndexCheck cross_entropy_check(const Site&, std::int64_t classes, std::int64_t ignored);
IndexCheck embedding_check(const Site&, std::int64_t whole);

Bound cross_entropy_by_aten(const Site&);
Bound cross_entropy_backward_by_aten(const Site&);
Bound cross_entropy_join_by_aten(const Site&);
Bound cross_entropy_parts_by_aten(const Site&);
Bound cross_entropy_parts_backward_by_aten(const Site&);

Bound embedding_by_aten(const Site&);
Bound embedding_patched_by_aten(const Site&);
Bound embedding_bag_by_aten(const Site&);
Bound embedding_dense_backward_by_aten(
    const Site&);  // adds where it is asked to; a bag is the last dim of indices of more dims than dy's rows
Bound sum_equal_rows_by_aten(const Site&);
Bound sgd_rows_by_aten(const Site&);
Bound put_rows_by_aten(const Site&);

// Scores take memory for all pairs of a query and a key.
Bound attention_by_aten(const Site&);
Bound attention_backward_by_aten(const Site&);
Bound attention_join_by_aten(const Site&);
Bound attention_in_ranges_by_aten(const Site&);
Bound attention_in_ranges_backward_by_aten(const Site&);

// Where each element of a part of a row stands in the whole row, i64 on the device.
at::Tensor places_in_row(const RowPlaces& places, std::int64_t width, c10::Device device);

// The same bits as on the host.
Bound dropout_by_aten(const Site&);
Bound random_key_by_aten(const Site&);

}  // namespace penstock
