// SPDX-License-Identifier: Apache-2.0
#include "config/workers.h"

#include <cmath>
#include <numeric>

#include "base/text.h"
#include "base/words.h"
#include "config/mesh.h"
#include "penstock/error.h"
#include "schedule/finer_stages.h"

namespace penstock {
namespace {

double stages_of(const std::vector<double>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 0.0);
}

Schedule table_of(const Schedule& schedule, const std::vector<double>& sizes, std::size_t worker, const std::vector<double>& first) {
  const std::string what =
      concat("pipeline.workers: worker ", worker, " is [", join(sizes, ", ", [](double size) { return concat(size); }), "]");
  for (const double size : sizes)
    if (size != std::floor(size))
      throw Error(what, {"it is how many stages of the model each has"}, "give whole numbers: [[6, 2], [4, 4]]");
  if (std::ssize(sizes) != schedule.stages())
    throw Error(concat(what, ", and schedule ", schedule.name, " has ", counted(schedule.stages(), "stage")), {},
                "give each stage of the schedule, in order, its number of the model's stages");
  if (stages_of(sizes) != stages_of(first))
    throw Error(concat(what, ", which is ", stages_of(sizes), " stages; worker 0 has ", stages_of(first)),
                {"each worker has the whole model"}, "let all workers have as many stages in all");
  return with_finer_stages(schedule, {sizes.begin(), sizes.end()});
}

}  // namespace

std::vector<Schedule> tables_of_workers(const Config& config, const Schedule& schedule) {
  const std::vector<std::vector<double>>& workers = config.pipeline.workers;
  if (workers.empty()) return {schedule};
  const int devices = devices_of_actor(config);
  if (std::ssize(workers) != devices)
    throw Error(concat("pipeline.workers says what ", counted(std::ssize(workers), "worker"), " have, and each actor has ",
                       counted(devices, "device")),
                {"each device of an actor is of another worker"},
                concat("--mesh pipe=", config.pipeline.table.actors, ",data=", workers.size()));
  std::vector<Schedule> out;
  for (const std::vector<double>& sizes : workers) out.push_back(table_of(schedule, sizes, out.size(), workers[0]));
  return out;
}

}  // namespace penstock
