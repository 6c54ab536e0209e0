#include "runtime/controller.h"

#include <chrono>
#include <set>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"
#include "program/verify.h"

namespace penstock {
namespace {

// The error nearest to the cause: not that another device failed, and rather a lost device's own words than those of who lost it.
const Reply* cause(const std::vector<Reply>& replies) {
  const Reply* found = nullptr;
  for (const Reply& reply : replies)
    if (!reply.error.empty() && (!found || (found->aborted && !reply.aborted))) found = &reply;
  for (std::size_t hops = 0; found && found->lost >= 0 && hops < replies.size(); ++hops) {
    const Reply& peer = replies.at(static_cast<std::size_t>(found->lost));
    if (peer.error.empty() || peer.aborted) break;
    found = &peer;
  }
  return found;
}

class Controller : public Cluster {
 public:
  explicit Controller(std::unique_ptr<Carrier> carrier) : carrier_(std::move(carrier)) {}

  int devices() const override { return carrier_->devices(); }
  std::uint64_t load(const Program& program) override;
  void set_state(const StateSource& source) override;
  StepResult step(std::uint64_t program, const StepInput& input, bool record_spans) override;
  std::vector<std::string> save_state(const std::string& folder) override;
  std::vector<std::byte> state(const std::string& name) override;

 private:
  std::vector<Reply> exchange(const Command& command);

  std::unique_ptr<Carrier> carrier_;
  std::map<std::uint64_t, std::size_t> loaded_;  // hash -> devices of the program
  bool stopped_ = false;                         // after a failed step or a lost device
};

std::vector<Reply> Controller::exchange(const Command& command) {
  if (stopped_) throw Error("the devices stopped after an earlier failure");
  std::vector<Reply> replies = carrier_->exchange(command);
  if (const Reply* failed = cause(replies)) {
    stopped_ = command.kind == Command::Kind::step;
    for (const Reply& reply : replies) stopped_ = stopped_ || reply.lost >= 0;
    throw Error(failed->error);
  }
  return replies;
}

std::uint64_t Controller::load(const Program& program) {
  const std::uint64_t key = hash(program);
  if (loaded_.contains(key)) return key;
  if (program.devices.size() > static_cast<std::size_t>(devices()))
    throw Error(concat("program ", program.name, " needs ", program.devices.size(), " devices, there are ", devices()), {},
                concat("start ", program.devices.size(), " processes, or take a schedule of ", devices(), " actors"));
  verify(program);
  Command command;
  command.kind = Command::Kind::load;
  command.program = key;
  command.body = std::make_shared<const Program>(program);
  exchange(command);
  loaded_[key] = program.devices.size();
  return key;
}

void Controller::set_state(const StateSource& source) {
  Command command;
  command.kind = Command::Kind::set_state;
  command.source = source;
  exchange(command);
}

StepResult Controller::step(std::uint64_t program, const StepInput& input, bool record_spans) {
  const auto loaded = loaded_.find(program);
  if (loaded == loaded_.end()) throw Error("a step of a program that was never loaded");
  Command command;
  command.kind = Command::Kind::step;
  command.program = program;
  command.input = input;
  command.record_spans = record_spans;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Reply> replies = exchange(command);
  StepResult result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (std::size_t device = 0; device < loaded->second; ++device) {
    result.outputs.merge(replies[device].outputs);
    result.devices.push_back(std::move(replies[device].report));
  }
  return result;
}

std::vector<std::string> Controller::save_state(const std::string& folder) {
  Command command;
  command.kind = Command::Kind::save_state;
  command.text = folder;
  std::vector<std::string> files;
  for (Reply& reply : exchange(command))
    if (!reply.file.empty()) files.push_back(std::move(reply.file));
  return files;
}

std::vector<std::byte> Controller::state(const std::string& name) {
  Command command;
  command.kind = Command::Kind::state;
  command.text = name;
  for (Reply& reply : exchange(command))
    if (reply.state) return std::move(*reply.state);
  throw Error(concat("no device has a state named ", quote(name)));
}

}  // namespace

std::unique_ptr<Cluster> make_cluster(std::unique_ptr<Carrier> carrier) {
  return std::make_unique<Controller>(std::move(carrier));
}

}  // namespace penstock
