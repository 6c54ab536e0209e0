// SPDX-License-Identifier: Apache-2.0
// The library that commands compute with. libtorch takes 0.2 s to load, which is most of what a small command would take, so `penstock` has
// it in a library of its own, libpenstock_backend.so, and loads that for commands that compute (loaded_backend.cpp). A user's own program
// is linked to it (linked_backend.cpp).
#pragma once

#include <future>

#include "torch/backend.h"

namespace penstock {

// Throws Error where the library cannot be loaded. May be called from several threads.
const Backend& backend();

// Loads it beside what a command does first, tracing and lowering; a command begins with it when it has read its configuration, as one that
// is refused needs none. A failure is said where the backend is used. What is given waits for it when it ends, so that the process does not
// end meanwhile.
[[nodiscard]] std::future<void> load_backend();

}  // namespace penstock
