// penstock plan: what its parts share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "degrees/degrees.h"
#include "penstock/plan.h"
#include "penstock/plan_file.h"
#include "penstock/trace.h"

namespace penstock {

inline constexpr const char* kAssumedDevice = "v100";

struct PlanArguments {
  std::string what;     // a graph's file, CONFIG.toml, or a model's name
  std::string cluster;  // a file, "local", or "" for a uniform one
  std::optional<int> devices, cpus;
  std::optional<double> bandwidth, latency, memory;
  std::string planner = "best";
  std::optional<std::string> device;  // published figures; else kAssumedDevice's
  PlanOptions options;
  std::vector<int> micro_batches;
  int batch = 0;             // samples of a step; 0: as the graph or the configuration says
  bool no_replicas = false;  // one device for each stage
  // Of configurations.
  std::vector<std::string> settings;
  int nodes = 64;                   // at most
  int candidates = 3, rounds = 10;  // of --cluster local: plans to measure, and steps of each
  bool explain = false, json = false;
  std::string out;
  // Of planner degrees.
  std::string only, states;
  bool every = false;
  const ModelRegistry* models = nullptr;
};

// A plan, and what it is the answer to.
struct Candidate {
  PlanProblem problem;
  Plan plan;
  PlanFile file;
  std::optional<DegreesPlan> degrees = {};  // where it is of equal groups: `plan` has only its stages and its time
};

// With the best first. Throws Error where none fits.
std::vector<Candidate> plan_locally(const PlanArguments& arguments, const Config& config);

// Planner degrees. `dtype`: what the model computes in. Its file has the graph's nodes.
DegreesOptions degrees_options(const PlanArguments& arguments, const std::string& dtype);
inline constexpr const char* kNotByBlock = "no schedule gathers parameters block by block";
// Keeps the degrees to those that a run can have. Throws Error where others were asked for beside `flag`.
void keep_to_runnable(const std::string& flag, DegreesLimits& only);
Candidate plan_by_degrees(const PlanProblem& problem, const DegreesOptions& options);
void print_degrees(const PlanArguments& arguments, const Candidate& candidate, const std::vector<std::string>& assumed,
                   const std::string& cannot_run);

// What holds the plan up, the next best plan, and what a larger cluster would give.
struct PlanExplanation {
  std::string bottleneck, detail;  // "stage", "link", "memory" or, of degrees, "compute", "bubble" or "communication"; with its figures
  std::string next;                // by which planner; "": there is no other plan
  double next_time = 0;
  double planned_time = 0;  // of the plan itself by the same costs as the changes', before it was measured
  struct Change {
    std::string what;
    double predicted_time = 0;
    std::string refused = {};  // why there is no such plan
  };
  std::vector<Change> changes;
};
// `others`: further plans, none where the other planners are to be asked.
// dtype: what the model computes in.
PlanExplanation explain(const PlanArguments& arguments, const Candidate& best, const std::vector<Candidate>& others,
                        const std::string& dtype);
std::string text_of(const PlanExplanation& explanation, double predicted_time);

}  // namespace penstock
