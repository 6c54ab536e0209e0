// Numbers of the rules' text.
#pragma once

#include "base/cursor.h"
#include "penstock/rules.h"

namespace penstock {

// Ends where no operator follows. Fails at the cursor.
Expression parse_expression(Cursor& cursor);

}  // namespace penstock
