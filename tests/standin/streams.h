// SPDX-License-Identifier: Apache-2.0
// The stand-in's streams: queues of work, each with a thread, that go on while the host does. Work may begin late at random, so that what
// should wait for it and does not is seen.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::standin {

using Work = std::function<void()>;
// Bytes that a piece of work reads, or writes.
struct Access {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};
// To all bytes from the first element of a tensor to its last.
Access access_of(const at::Tensor& x, bool writes);
// All of one piece, and its name.
struct Touched {
  std::string by = {};
  std::vector<Access> bytes = {};
};

// A place in a stream's work, for which an event stands once it was recorded.
class Point {
 public:
  void reach();
  bool is_reached() const;
  void wait() const;
  std::chrono::steady_clock::time_point when() const;

  std::size_t capture = 0;  // the number of the capture that it is a place of; 0: none

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point when_;
};

// The stream that the calling thread enqueues on.
int current_stream();
int exchange_stream(int stream);
int new_stream();  // 0 is the default stream; no two are the same, so that nothing waits for what it has nothing to do with
// A stream as libraries of other makers are given it, as a pointer that nobody follows; and the stream that such a pointer stands for.
inline void* handle_of(int stream) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream) + 1);
}
inline int stream_of(void* handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle) - 1);
}

// These note, for a stream that is captured, what they are given instead of doing it, and what it touches.
void enqueue(int stream, Work work, Touched touched = {});
// A failure of such work, where another stream answers for it: the host learns of it when it waits for that one.
void fail(int stream, std::exception_ptr failure);
// Reached when all that the stream was given before is done.
std::shared_ptr<Point> record(int stream);
// Makes all that the stream is given from now on begin when the point is reached. A stream that waits for a point of a capture is captured,
// too. Throws c10::Error where a captured stream is to wait for what is outside of its capture, or another for a capture that has ended.
void block(int stream, std::shared_ptr<Point> point);
bool is_captured(int stream);
// These throw c10::Error for a stream that is captured, as CUDA's do.
bool is_idle(int stream);
// Waits until the stream has done all that it was given. Throws c10::Error where some of it failed.
void synchronise(int stream);
void synchronise_all();

// Notes the work of streams instead of doing it, as CUDA's captures do: first of `root`, and of every stream that waits for what is
// captured.
void begin_capture(int root);
// The work that was captured. Throws c10::Error, and gives nothing, where a stream was not joined to the root again, where two pieces of
// work touch the same bytes in no order, or where another rule was broken.
struct Graph;
std::unique_ptr<Graph> end_capture(int root);
void cancel_capture(int root);

}  // namespace penstock::standin
