// SPDX-License-Identifier: Apache-2.0
#include "torch/rank_device.h"

#include <exception>
#include <filesystem>
#include <string>
#include <utility>

#include "base/device_name.h"
#include "base/invariant.h"
#include "base/machine.h"
#include "base/text.h"
#include "penstock/error.h"
#include "state/checkpoint.h"
#include "torch/device.h"
#include "torch/gloo_transport.h"
#include "torch/nccl_library.h"
#include "torch/nccl_transport.h"
#include "torch/staged_transport.h"
#include "torch/stream_lanes.h"

namespace penstock {
namespace {

std::unique_ptr<Transport> connect_nccl(const Mail& mail, const GlooOptions& options, const Executor& executor, const std::string& name) {
  auto* const lanes = dynamic_cast<StreamLanes*>(executor.lanes());
  invariant(lanes && executor.asynchronous(), "NCCL connects executors whose lanes are streams");
  return make_nccl_transport(mail.store(name), *lanes, of_seconds(options.deadline));
}

std::unique_ptr<Transport> connect(const Mail& mail, const Ranks& ranks, const GlooOptions& options, const std::string& name) {
  try {
    // A wait for a collective that starts with it reaches its own deadline first.
    std::unique_ptr<Transport> host =
        make_gloo_transport(mail.store(name), ranks.rank, ranks.size, ranks.address, of_seconds(options.rendezvous),
                            of_seconds(options.deadline) + std::chrono::milliseconds(1000));
    const c10::Device device = open_device(options.device);
    return device.is_cpu() ? std::move(host) : make_staged_transport(std::move(host), device);
  } catch (const std::exception& error) {
    throw Error(concat("rank ", ranks.rank, " cannot connect to the others"), {reason(error)});
  }
}

}  // namespace

const GlooOptions& checked_backend(const GlooOptions& options) {
  if (!options.nccl) return options;
  if (is_host(options.device))
    throw Error("backend nccl sends from device to device, and the device is cpu", {}, "--backend gloo, or another --device");
  nccl_library();
  return options;
}

void start_device(RankDevice& own, const Mail& mail, const Ranks& ranks, const ExecutorFactory& executor,
                  const std::shared_ptr<const DataSource>& data, const GlooOptions& options) {
  const auto make = [&] {
    if (ranks.local_size > 0) keep_to_share(ranks.local_rank, ranks.local_size);
    constexpr const char* kFirst = "first";
    // Over Gloo before anything that may fail here, as the others wait for it.
    std::unique_ptr<Transport> transport = options.nccl || ranks.elastic ? nullptr : connect(mail, ranks, options, kFirst);
    std::unique_ptr<Executor> mine = executor(ranks.rank);
    if (options.nccl && !ranks.elastic) transport = connect_nccl(mail, options, *mine, kFirst);
    const auto again = [&mail, ranks = Ranks(ranks), options, &computes = *mine](const Command& reconnect) mutable {
      if (reconnect.device >= 0) ranks.rank = reconnect.device, ranks.size = reconnect.devices;
      return options.nccl ? connect_nccl(mail, options, computes, reconnect.text) : connect(mail, ranks, options, reconnect.text);
    };
    return std::make_unique<Worker>(ranks.rank, std::move(mine), std::move(transport), data, own.commit, of_seconds(options.deadline),
                                    again);
  };
  own.thread = std::make_unique<DeviceThread>(make, [] {});
  if (const Reply made = own.thread->wait(); !made.error.empty()) throw Error(made.error);
}

std::string folder_error(const Command& command, const std::string& run) {
  if (command.kind != Command::Kind::save_state && command.kind != Command::Kind::persist) return {};
  const std::filesystem::path wanted(command.text);
  if (wanted == std::filesystem::path(run) / wanted.filename() && names_checkpoint(wanted.filename().string())) return {};
  return concat("state is not saved in ", command.text, "\n  the run's folder is ", run);
}

}  // namespace penstock
