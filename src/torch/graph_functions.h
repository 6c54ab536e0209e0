// Graphs of a device's work, as the library of the device gives them.
#pragma once

#include <c10/core/Stream.h>

namespace penstock {

// Records the work of streams, and gives it to them again. libtorch has an interface for that, but none that all its versions and devices
// share. Each function throws c10::Error.
struct GraphFunctions {
  void (*begin)(c10::Stream root);   // records what `root` is given, and every stream that waits for what is recorded
  void* (*end)(c10::Stream root);    // the recorded graph. All streams were joined to the root again.
  void (*cancel)(c10::Stream root);  // ends recording, whatever was recorded
  void (*launch)(void* graph, c10::Stream stream);
  void (*destroy)(void* graph);
};

}  // namespace penstock
