// SPDX-License-Identifier: Apache-2.0
// Whether a tensor's values can be trained on.
#pragma once

#include <string>

#include "formats/safetensors.h"

namespace penstock {

// A text such as "3 values that are not finite, the first (element 17) is nan"; "": none, as in every tensor that is not floating.
std::string not_finite(const FileTensor& tensor);

}  // namespace penstock
