// SPDX-License-Identifier: Apache-2.0
#include "driver/thread_cluster.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "devices/thread_transport.h"
#include "driver/controller.h"
#include "driver/device_thread.h"
#include "penstock/error.h"

namespace penstock {
namespace {

template <class Duration>
Duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::unique_ptr<Hub> make_thread_hub(int devices, double spin) {
  return std::make_unique<ThreadHub>(devices, spin < 0 ? std::chrono::microseconds(-1) : of_seconds<std::chrono::microseconds>(spin));
}

class ThreadCarrier : public Carrier {
 public:
  ThreadCarrier(int devices, const ExecutorFactory& executor, const std::shared_ptr<const DataSource>& data, const ClusterOptions& options)
      : interrupted_(options.interrupted),
        is_elastic_(options.elastic),
        make_hub_([options](int devices) { return options.hub ? options.hub() : make_thread_hub(devices, options.spin); }),
        hub_(make_hub_(devices)) {
    const auto make = [this, executor, data, options](int device) {
      std::unique_ptr<Executor> mine = executor(device);
      const auto connect = [this, options, &computes = *mine](int number) {
        std::unique_ptr<Transport> transport = hub_->endpoint(number, computes);
        if (options.wrap) transport = options.wrap(number, std::move(transport));
        return transport;
      };
      std::unique_ptr<Transport> transport = connect(device);
      return std::make_unique<Worker>(device, std::move(mine), std::move(transport), data, commit_,
                                      of_seconds<std::chrono::nanoseconds>(options.deadline),
                                      [connect](const Command& reconnect) { return connect(reconnect.device); });
    };
    for (int device = 0; device < devices; ++device)
      threads_.push_back(std::make_unique<DeviceThread>([make, device] { return make(device); }, [this] { failed(); }));
    std::vector<Reply> all;
    for (const auto& thread : threads_) all.push_back(thread->wait());
    for (const Reply& made : all)
      if (!made.error.empty()) throw Error(made.error);
  }

  int devices() const override { return static_cast<int>(threads_.size()); }

  std::optional<MemoryRoom> device_room() const override { return hub_->room(); }

  std::vector<Reply> exchange(const std::vector<const Command*>& commands) override {
    stepping_ = commands.front() && commands.front()->kind == Command::Kind::step;
    std::vector<Reply> replies = pass_on(commands);
    for (std::size_t d = 0; d < replies.size(); ++d)
      if (is_gone(replies[d], d)) gone_.insert(d);
    if (!stepping_ || std::ranges::all_of(replies, [](const Reply& reply) { return reply.error.empty(); })) return replies;
    hub_->reset();
    return hub_->was_not_recorded() ? pass_on(commands) : replies;
  }

  bool recover() override {
    hub_->reset();
    return true;
  }

  bool is_elastic() const override { return is_elastic_; }

  std::vector<std::int32_t> regroup() override {
    const std::vector<std::int32_t> from = numbered_anew(threads_.size(), gone_, 0);
    if (from.empty()) throw Error("no device is left");
    stepping_ = false;
    pass_on(std::vector<const Command*>(threads_.size(), &kDisconnect));
    std::vector<std::unique_ptr<DeviceThread>> left;
    for (const std::int32_t device : from) left.push_back(std::move(threads_[device]));
    threads_ = std::move(left);
    gone_.clear();
    hub_ = make_hub_(devices());
    std::vector<Command> commands;
    for (int d = 0; d < devices(); ++d) commands.push_back({.kind = Command::Kind::reconnect, .device = d, .devices = devices()});
    std::vector<const Command*> each;
    for (const Command& command : commands) each.push_back(&command);
    pass_on(each);
    return from;
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};  // how often it is looked for an interrupt
  static inline const Command kDisconnect{.kind = Command::Kind::disconnect};

  std::vector<Reply> pass_on(const std::vector<const Command*>& commands) {
    if (stepping_) commit_->reset();
    for (std::size_t d = 0; d < threads_.size(); ++d)
      if (commands[d]) threads_[d]->post(*commands[d]);
    std::vector<Reply> out(threads_.size());
    bool given_up = false;
    for (std::size_t d = 0; d < threads_.size(); ++d)
      if (commands[d]) out[d] = stepping_ && interrupted_ ? wait(*threads_[d], given_up) : threads_[d]->wait();
    for (Reply& reply : out)
      if (given_up && reply.aborted) reply.error = "the step was interrupted";
    return out;
  }

  // The others may wait for what the failed device would have sent. They write no state any more.
  void failed() {
    if (!stepping_) return;
    commit_->give_up();
    hub_->abort();
  }

  Reply wait(DeviceThread& thread, bool& given_up) {
    for (;;) {
      if (std::optional<Reply> reply = thread.wait_for(kLook)) return std::move(*reply);
      if (given_up || !interrupted_() || !commit_->give_up()) continue;
      given_up = true;
      hub_->abort();
    }
  }

  const std::function<bool()> interrupted_;
  const std::shared_ptr<Commit> commit_ = std::make_shared<Commit>();
  const bool is_elastic_;
  const std::function<std::unique_ptr<Hub>(int devices)> make_hub_;
  std::unique_ptr<Hub> hub_;
  std::set<std::size_t> gone_;
  std::atomic<bool> stepping_ = false;
  std::vector<std::unique_ptr<DeviceThread>> threads_;  // last: they use the rest
};

}  // namespace

std::unique_ptr<Cluster> make_thread_cluster(int devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                             const ClusterOptions& options) {
  return make_cluster(std::make_unique<ThreadCarrier>(devices, executor, data, options));
}

}  // namespace penstock
