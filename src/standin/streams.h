// The stand-in's streams: queues of work, each with a thread, that go on while the host does. Work may begin late at random, so that what
// should wait for it and does not is seen.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

namespace penstock::standin {

using Work = std::function<void()>;

// What an event stands for once it was recorded: a place in a stream's work.
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

// Of a stream that is captured these note what they are given instead.
void enqueue(int stream, Work work);
// Reached when all that the stream was given before is done.
std::shared_ptr<Point> record(int stream);
// What the stream is given from now on begins when the point is reached. A stream that waits for a point of a capture is captured, too.
// Throws c10::Error where a captured stream is to wait for what is outside of its capture, or another for a capture that has ended.
void block(int stream, std::shared_ptr<Point> point);
// These throw c10::Error for a stream that is captured, as CUDA's do.
bool is_idle(int stream);
// Waits until the stream has done all that it was given. Throws c10::Error where some of it failed.
void synchronise(int stream);
void synchronise_all();

// Notes the work of streams instead of doing it, as CUDA's captures do: first of `root`, and of every stream that waits for what is
// captured.
void begin_capture(int root);
// What was captured. Throws c10::Error, and gives nothing, where a stream was not joined to the root again, or where another rule was
// broken.
struct Graph;
Graph* end_capture(int root);
void cancel_capture(int root);
// Gives the work to the stream, any number of times, one after the other.
void launch(Graph* graph, int stream);
void destroy(Graph* graph);

}  // namespace penstock::standin
