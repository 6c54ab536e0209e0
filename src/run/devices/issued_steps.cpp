#include "devices/issued_steps.h"

#include "devices/forwarding_executor.h"

namespace penstock {
namespace {

class Issued : public ForwardingExecutor {
 public:
  using ForwardingExecutor::ForwardingExecutor;
  bool replays() const override { return false; }
};

}  // namespace

ExecutorFactory issued_each_time(ExecutorFactory executors) {
  return
      [executors = std::move(executors)](int device) -> std::unique_ptr<Executor> { return std::make_unique<Issued>(executors(device)); };
}

}  // namespace penstock
