// SPDX-License-Identifier: Apache-2.0
#include "profile/profile_cluster.h"

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "devices/forwarding_executor.h"

namespace penstock {
namespace {

using Transfers = Isolation::Transfers;

class IsolatedExecutor : public ForwardingExecutor {
 public:
  IsolatedExecutor(int device, std::unique_ptr<Executor> inner, std::shared_ptr<const Isolation> isolation)
      : ForwardingExecutor(std::move(inner)), device_(device), isolation_(std::move(isolation)) {}

  Event issue(const Instruction& instruction) override {
    const bool idle = isolation_->only >= 0 && isolation_->only != device_;
    return idle ? kNoEvent : ForwardingExecutor::issue(instruction);
  }

 private:
  int device_;
  std::shared_ptr<const Isolation> isolation_;
};

class IsolatedTransport : public Transport {
 public:
  IsolatedTransport(std::unique_ptr<Transport> inner, std::shared_ptr<const Isolation> isolation)
      : inner_(std::move(inner)), isolation_(std::move(isolation)) {}

  void begin_step(const Program& program, int device) override {
    if (isolation_->transfers == Transfers::replay) return;
    if (isolation_->transfers == Transfers::capture) kept_.clear();
    under_way_.clear();
    inner_->begin_step(program, device);
  }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    return isolation_->transfers == Transfers::replay ? kNoEvent : inner_->send(peer, tag, bytes);
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    return incoming({peer, tag}, bytes, [&] { return inner_->receive(peer, tag, bytes); });
  }
  Event collective(const CollectiveCall& call) override {
    return incoming({-1 - call.group, call.tag}, call.to, [&] { return inner_->collective(call); });
  }
  bool done(Event event) override { return inner_->done(event) && keep(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline) && keep(event); }

 private:
  using Name = std::pair<int, int>;  // (peer, or -1 - group; tag)

  template <class Start>
  Event incoming(const Name& name, std::span<std::byte> bytes, const Start& start);

  // Keeps the bytes of a receive that is done, before the first task may write over them.
  bool keep(Event event) {
    if (const auto found = under_way_.find(event); found != under_way_.end()) {
      const auto& [name, bytes] = found->second;
      kept_[name].assign(bytes.begin(), bytes.end());
      under_way_.erase(found);
    }
    return true;
  }

  std::unique_ptr<Transport> inner_;
  std::shared_ptr<const Isolation> isolation_;
  std::map<Event, std::pair<Name, std::span<const std::byte>>> under_way_;  // the receives under way that are to be kept
  std::map<Name, std::vector<std::byte>> kept_;
};

template <class Start>
Event IsolatedTransport::incoming(const Name& name, std::span<std::byte> bytes, const Start& start) {
  if (isolation_->transfers == Transfers::replay) {
    const std::vector<std::byte>& kept = kept_[name];
    invariant(kept.size() == bytes.size(), "a transfer is replayed that was not captured");
    if (!kept.empty()) std::memcpy(bytes.data(), kept.data(), kept.size());
    return kNoEvent;
  }
  const Event event = start();
  if (isolation_->transfers != Transfers::capture) return event;
  if (event == kNoEvent)
    kept_[name].assign(bytes.begin(), bytes.end());
  else
    under_way_[event] = {name, bytes};
  return event;
}

}  // namespace

ProfileCluster make_profile_cluster(int devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                    const ClusterOptions& options) {
  const auto isolation = std::make_shared<Isolation>();
  const ExecutorFactory isolated = [isolation, executor](int device) {
    return std::make_unique<IsolatedExecutor>(device, executor(device), isolation);
  };
  ClusterOptions wrapped = options;
  wrapped.wrap = [isolation, wrap = options.wrap](int device, std::unique_ptr<Transport> inner) {
    if (wrap) inner = wrap(device, std::move(inner));
    return std::make_unique<IsolatedTransport>(std::move(inner), isolation);
  };
  return {isolation, make_thread_cluster(devices, isolated, std::move(data), wrapped)};
}

}  // namespace penstock
