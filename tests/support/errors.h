// SPDX-License-Identifier: Apache-2.0
// The message of a failing call.
#pragma once

#include <string>

#include "penstock/error.h"

namespace penstock::test {

// The message of the Error that `action` throws; "no error" where it throws none.
template <class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace penstock::test
