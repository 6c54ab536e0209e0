// Ops as ATen's operators compute them, on any device: for memory that the host cannot read (Kernel::bind_device). Each waits for nothing
// and reads no number on the host, so that a step made of them can be recorded.
#pragma once

#include "torch/kernel.h"

namespace penstock {

Bound adamw_by_aten(const Site&);
Bound adamw_ahead_by_aten(const Site&);
Bound adamw_validated_by_aten(const Site&);
Bound predict_adamw_by_aten(const Site&);
Bound predict_sgd_by_aten(const Site&);
Bound sgd_by_aten(const Site&);

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

// Scores take memory for all pairs of a query and a key.
Bound attention_by_aten(const Site&);
Bound attention_backward_by_aten(const Site&);
Bound attention_join_by_aten(const Site&);
Bound attention_in_ranges_by_aten(const Site&);
Bound attention_in_ranges_backward_by_aten(const Site&);

// The same bits as on the host.
Bound dropout_by_aten(const Site&);
Bound random_key_by_aten(const Site&);

}  // namespace penstock
