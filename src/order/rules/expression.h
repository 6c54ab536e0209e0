// SPDX-License-Identifier: Apache-2.0
// Parses the expressions in the text of rules.
#pragma once

#include "base/cursor.h"
#include "penstock/rules.h"

namespace penstock {

// Reads an expression up to where no operator follows. Fails at the cursor.
Expression parse_expression(Cursor& cursor);

}  // namespace penstock
