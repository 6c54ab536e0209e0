#include <gtest/gtest.h>

#include "plan/planner_list.h"
#include "plan/profiles.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::profile;

struct Row {
  const char* graph;
  int devices;
  double ignored[2], counted[2];  // activations' transfers, at 1e9 and 1e10 bytes per second
};

// What the original finds, or the exact value where it finds more.
constexpr Row kRows[] = {
    {"vgg16", 2, {0.370931, 0.370931}, {0.411041792, 0.370931}},
    {"vgg16", 4, {0.175732624, 0.1701790624}, {0.205520896, 0.1701790624}},
    {"vgg16", 8, {0.09351323, 0.08992645989}, {0.1038331703, 0.08992645989}},
    {"vgg16", 16, {0.04738646, 0.04322707431}, {0.05652976738, 0.04322707431}},
    {"alexnet", 2, {0.043075, 0.043075}, {0.066453504, 0.043075}},
    {"alexnet", 4, {0.023165752, 0.022186}, {0.03421714133, 0.022186}},
    {"alexnet", 8, {0.01162, 0.0110207064}, {0.018874368, 0.01110502374}},
    {"alexnet", 16, {0.007324568, 0.005662875902}, {0.018874368, 0.005712661616}},
    {"resnet50", 2, {0.221933, 0.221933}, {0.276674, 0.221933}},
    {"resnet50", 4, {0.111497, 0.111497}, {0.162880924, 0.111497}},
    {"resnet50", 8, {0.056315324, 0.055915}, {0.092012272, 0.055915}},
    {"resnet50", 16, {0.029212, 0.0283207262}, {0.04780134531, 0.0283207262}},
    {"gnmt", 2, {0.045936, 0.045936}, {0.045936, 0.045936}},
    {"gnmt", 4, {0.025868, 0.025868}, {0.025868, 0.025868}},
    {"gnmt", 8, {0.019032, 0.017125}, {0.019285, 0.017125}},
    {"gnmt", 16, {0.01837957554, 0.0085985812}, {0.019285, 0.0085985812}},
};

Plan plan_of(const std::string& graph, const ClusterSpec& cluster, const PlanOptions& options) {
  PlanProblem problem;
  problem.graph = profile("pipedream-" + graph + "-graph.txt");
  problem.cluster = cluster;
  return plan_by_pipedream(problem, options);
}

TEST(PipedreamPlanner, AsPublished) {
  if (!test::has_profiles()) GTEST_SKIP();
  for (const Row& row : kRows)
    for (const bool ignore : {false, true})
      for (const int i : {0, 1}) {
        PlanOptions options;
        options.ignore_transfers = ignore;
        const double expected = ignore ? row.ignored[i] : row.counted[i];
        const Plan plan = plan_of(row.graph, uniform_cluster(row.devices, i == 0 ? 1e9 : 1e10), options);
        EXPECT_NEAR(plan.bottleneck, expected, 1e-9 * expected) << row.graph << " on " << row.devices << " " << ignore << " " << i;
      }
}

}  // namespace
}  // namespace penstock
