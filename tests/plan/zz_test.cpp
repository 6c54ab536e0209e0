#include <gtest/gtest.h>
#include <cstdio>
#include "plan/graphpipe.h"
#include "plan/evaluate.h"
#include "plan/profiles.h"
#include "support/plan_graphs.h"
namespace penstock {
static std::string show(const Plan& p) {
  std::string s;
  for (auto& st : p.stages) s += concat("[", st.nodes.size(), "n b", st.samples, " x", st.devices.size(), " i", st.ahead, "] ");
  return s;
}
TEST(Zz, Models) {
  const double bw = std::getenv("BW") ? atof(std::getenv("BW")) : 12.5e9;
  const int per = std::getenv("PER") ? atoi(std::getenv("PER")) : 64;
  const double mem = std::getenv("MEM") ? atof(std::getenv("MEM")) : 16e9;
  const bool rep = !std::getenv("NOREP");
  for (const char* name : {"candle_uno", "mmt", "dlrm"}) { if (std::getenv("MODEL") && std::string(name) != std::getenv("MODEL")) continue;
    for (int d : {4, 8, 16, 32}) { if (std::getenv("D") && atoi(std::getenv("D")) != d) continue;
      PlanProblem p;
      p.graph = test::profile(concat("graphpipe/", name, ".json"));
      p.cluster = uniform_cluster(d, bw, 5e-6, mem);
      p.samples = per * d;
      p.replicas = rep;
      if (std::getenv("ALL")) {
        auto dump = [&](PlanProblem q) {
        GraphpipePlans plans = graphpipe_plans(q, 10);
        for (auto* kind : {&plans.branched, &plans.in_a_row, &plans.squeezed}) { std::printf("kind\n"); int n = 0; for (auto& c : *kind) { if (n++ > 12) break; bool fits = evaluate(q, c.plan); std::printf("  %g: bottleneck %g x %d = %g, way %g, simulated %g %d %s\n", c.time, c.plan.bottleneck, q.samples, c.plan.bottleneck * q.samples, c.time - c.plan.bottleneck * q.samples, c.plan.predicted_time, fits, show(c.plan).c_str()); } }
        };
        dump(p); p.graph = test::in_a_row(p.graph); dump(p); continue; }
      Plan a, b;
      try { a = make_plan("graphpipe", p);
      p.graph = test::in_a_row(p.graph);
      b = make_plan("graphpipe", p); } catch (std::exception& e) { std::printf("%s %d: %s\n", name, d, e.what()); continue; }
      std::printf("%s %d: %g (%.2fs) row %g (%.2fs) ratio %.3f\n  %s\n  %s\n", name, d, a.predicted_time, a.search_seconds, b.predicted_time, b.search_seconds, b.predicted_time / a.predicted_time, show(a).c_str(), show(b).c_str());
      std::fflush(stdout);
    } }
}
}
