// SPDX-License-Identifier: Apache-2.0
#include "cli/clusters.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/device_name.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/backend.h"
#include "cli/kernels.h"
#include "devices/altered_executors.h"
#include "driver/ranks.h"
#include "driver/thread_cluster.h"
#include "penstock/error.h"
#include "program/backends.h"

namespace penstock {
namespace {

ClusterOptions thread_options(const Config& config) {
  ClusterOptions options{.deadline = config.pipeline.deadline};
  if (!is_host(config.run.device)) options.hub = [device = config.run.device] { return backend().make_hub(device); };
  return options;
}

// `host_waits`: torch/backend.h.
ExecutorFactory backend_executors(const Config& config, bool host_waits) {
  if (config.run.fuse && is_host(config.run.device))
    throw Error("run.fuse is for devices that have a compiler of kernels, and run.device is cpu", {}, "--device cuda, or run.fuse = false");
  ExecutorFactory executors = backend().executors(config.run.device, host_waits, config.run.fuse);
  return config.run.replay ? executors : issued_each_time(std::move(executors));
}

}  // namespace

int devices_in(const std::vector<int>& groups) {
  return std::accumulate(groups.begin(), groups.end(), 0);
}

std::string groups_text(const std::vector<int>& groups) {
  const bool alike = std::all_of(groups.begin(), groups.end(), [&](int devices) { return devices == groups[0]; });
  return alike ? std::to_string(groups.at(0)) : join(groups, ", ", [](int devices) { return std::to_string(devices); });
}

ExecutorFactory executors_of(const Config& config, const std::vector<int>& groups) {
  if (!config.run.straggler.empty() && !is_host(config.run.device))
    throw Error(concat("run.straggler is ", config.run.straggler, ", and run.device ", config.run.device),
                {"what is held back is the host, and that device works by itself"}, "--device cpu");
  return held_back(backend_executors(config, find_backend(config.pipeline.backend).host_waits), stragglers_of(config, groups));
}

std::unique_ptr<Cluster> local_cluster(int devices, const Config& config, std::shared_ptr<const DataSource> data) {
  return make_thread_cluster(devices, backend_executors(config, false), std::move(data), thread_options(config));
}

Workbench workbench_of(const Config& config, const ModelRegistry& models) {
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepare_sequential(config, models).model);
  // Fewer devices than actors measure links, or the model as a whole.
  const auto threads = [&config, data](int devices) {
    const bool is_pipeline = devices == config.pipeline.table.actors;
    const ExecutorFactory executors =
        is_pipeline ? executors_of(config, std::vector<int>(static_cast<std::size_t>(devices), 1)) : backend_executors(config, false);
    return make_thread_cluster(devices, executors, data, thread_options(config));
  };
  return {config, models, data, threads, [&config](Program& program) { choose_kernels(config, program); }};
}

void check_processes(const Config& config) {
  const std::optional<Ranks> ranks = ranks_from_environment();
  if (!find_backend(config.pipeline.backend).processes && ranks && ranks->size > 1)
    throw Error(concat(ranks->size, " processes were started, but pipeline.backend is threads"), {}, "--backend gloo");
}

std::unique_ptr<Cluster> configured_cluster(const std::string& command, const Config& config, const std::vector<int>& groups,
                                            std::shared_ptr<const DataSource> data) {
  const std::optional<Ranks> ranks = ranks_from_environment();
  const bool elastic = ranks && ranks->elastic;  // rank 0 has no device
  const int devices = devices_in(groups), processes = ranks ? ranks->size - elastic : 1;
  check_processes(config);
  const BackendInfo& sending = find_backend(config.pipeline.backend);
  if (elastic && sending.between_devices)
    throw Error(concat("pipeline.backend is ", sending.name, ", and the run is elastic"),
                {"its devices are connected anew over gloo alone"}, "--backend gloo, or a run without --elastic");
  if (sending.between_devices && is_host(config.run.device))
    throw Error(concat("pipeline.backend is ", sending.name, ", and run.device cpu"), {"it sends what lies in a device's own memory"},
                "--backend gloo, or another --device");
  const ExecutorFactory executors = executors_of(config, groups);
  if (!sending.processes) return make_thread_cluster(devices, executors, std::move(data), thread_options(config));
  const std::string launch =
      concat("penstock launch", elastic ? " --elastic" : "", " -n ", devices, " -- train --backend ", config.pipeline.backend);
  const bool single = devices == static_cast<int>(groups.size());  // whether each actor is one device
  if (!ranks)
    throw Error(concat("backend ", config.pipeline.backend, " needs one process per ", single ? "actor" : "device",
                       "; no launcher started this one"),
                {}, launch);
  if (elastic ? ranks->rank == 0 && processes < devices : processes != devices) {
    const std::string wanted = single ? counted(devices, "actor")
                                      : concat(counted(devices, "device"), " (", counted(static_cast<std::int64_t>(groups.size()), "actor"),
                                               " of ", groups_text(groups), ")");
    throw Error(concat(counted(processes, "process"), processes == 1 ? " was" : " were", " started for ", wanted), {}, launch);
  }
  const GlooOptions options{.deadline = config.pipeline.deadline,
                            .run = concat("command: ", command, "\ndata: ", hex(data->fingerprint()), "\n", print(config)),
                            .folder = config.run.out,
                            .device = config.run.device,
                            .nccl = sending.between_devices};
  if (elastic && ranks->rank == 0) return backend().make_elastic_cluster(*ranks, devices, options);
  if (elastic) return backend().serve_elastic(*ranks, executors, std::move(data), options), nullptr;
  if (ranks->rank == 0) return backend().make_gloo_cluster(*ranks, executors, std::move(data), options);
  backend().serve_gloo(*ranks, executors, std::move(data), options);
  return nullptr;
}

}  // namespace penstock
