#include "base/text.h"
#include "cli/simulate.h"
#include "penstock/error.h"

namespace penstock {

void simulate_program(const SimulateArguments& arguments) {
  throw Error(concat("cannot simulate ", arguments.table.what), {}, "give a schedule's name or FILE.csv");
}

}  // namespace penstock
