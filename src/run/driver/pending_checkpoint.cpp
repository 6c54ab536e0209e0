// SPDX-License-Identifier: Apache-2.0
#include "driver/pending_checkpoint.h"

#include <utility>

#include "penstock/error.h"

namespace penstock {
namespace {

// The devices are asked no more often whether they are done, so that short steps do not wait for their answers.
constexpr std::chrono::milliseconds kBetweenQuestions{50};

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

PendingCheckpoint::PendingCheckpoint(Cluster& cluster, int generation, std::function<std::string(const SaveState&)> write)
    : cluster_(cluster), generation_(generation) {
  checkpoint_ = std::async(std::launch::async, [this, write = std::move(write)] {
    return write([this](const std::string& folder) {
      folder_.set_value(folder);
      return written_.get_future().get();
    });
  });
}

PendingCheckpoint::~PendingCheckpoint() {
  give_up();
}

std::optional<std::string> PendingCheckpoint::poll() {
  try {
    go_on();
  } catch (const Error&) {
    if (cluster_.has_failed()) throw;
    end(std::current_exception());  // which the thread throws again when it has removed the folder
  }
  if (!is_ready(checkpoint_)) return std::nullopt;
  return checkpoint_.get();
}

void PendingCheckpoint::go_on() {
  if (stage_ == Stage::beginning && is_ready(made_)) {
    files_ = cluster_.persist(generation_, made_.get()).size();
    stage_ = Stage::writing;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (stage_ != Stage::writing || now - asked_ < kBetweenQuestions) return;
  asked_ = now;
  std::vector<std::string> files = cluster_.persisted();
  if (files.size() < files_) return;
  stage_ = Stage::ending;
  written_.set_value(std::move(files));
}

bool PendingCheckpoint::give_up() {
  if (stage_ == Stage::ending) return false;
  end(std::make_exception_ptr(Error("the devices have changed")));
  return true;
}

void PendingCheckpoint::end(std::exception_ptr error) {
  stage_ = Stage::ending;
  written_.set_exception(std::move(error));
}

}  // namespace penstock
