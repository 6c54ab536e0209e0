// SPDX-License-Identifier: Apache-2.0
#include "driver/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

int number_in(const char* name, const char* value, int low, int high) {
  const std::optional<int> out = parse_number<int>(value);
  if (!out || *out < low || *out > high)
    throw Error(concat("environment variable ", name, " is ", quote(value)), {concat("expected a number from ", low, " to ", high)});
  return *out;
}

struct Launcher {
  const char* rank;
  const char* size;
  // Variable that tells whether all processes run on this machine: a number of processes or of machines; nullptr: MASTER_ADDR is always
  // given.
  const char* local_size;
};

constexpr Launcher kLaunchers[] = {{"RANK", "WORLD_SIZE", nullptr},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                   {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES"}};

constexpr int kMost = 1 << 20;

// Whether all processes run on this machine. SLURM_NNODES counts machines, OMPI_COMM_WORLD_LOCAL_SIZE the processes here.
bool on_one_machine(const Launcher& launcher, const Ranks& ranks, const std::function<const char*(const char*)>& get) {
  const char* local = launcher.local_size ? get(launcher.local_size) : nullptr;
  if (!local) return true;
  const int count = number_in(launcher.local_size, local, 1, kMost);
  return std::string_view(launcher.local_size) == "SLURM_NNODES" ? count == 1 : count == ranks.size;
}

// The first lines that differ, each with its section in front.
std::pair<std::string, std::string> first_difference(const std::string& first, const std::string& other) {
  const std::vector<std::string> a = split(first, '\n'), b = split(other, '\n');
  std::string section;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return {section + a[i], section + b[i]};
    if (a[i].starts_with('[')) section = a[i] + " ";
  }
  return {concat(a.size(), " lines"), concat(b.size(), " lines")};
}

}  // namespace

std::optional<Ranks> ranks_from_environment() {
  return ranks_from([](const char* name) -> const char* { return std::getenv(name); });
}

std::optional<Ranks> ranks_from(const std::function<const char*(const char*)>& get) {
  for (const Launcher& launcher : kLaunchers) {
    const char* rank = get(launcher.rank);
    const char* size = get(launcher.size);
    if (!rank && !size) continue;
    if (!rank || !size) {
      // Slurm sets the number of tasks also where it starts no process (a shell in an allocation).
      if (std::string_view(launcher.size) == "SLURM_NTASKS") continue;
      throw Error(concat("environment variable ", rank ? launcher.rank : launcher.size, " is set, ", rank ? launcher.size : launcher.rank,
                         " is not"),
                  {}, "start the processes with penstock launch, torchrun, mpirun or srun");
    }
    Ranks out;
    out.size = number_in(launcher.size, size, 1, kMost);
    out.rank = number_in(launcher.rank, rank, 0, out.size - 1);
    if (const char* port = get("MASTER_PORT")) out.port = number_in("MASTER_PORT", port, 1, 65535);
    if (const char* address = get("MASTER_ADDR")) {
      out.address = address;
    } else if (!on_one_machine(launcher, out, get)) {
      throw Error("the processes run on several machines and MASTER_ADDR is not set", {}, "set MASTER_ADDR to the host of rank 0");
    }
    const char *local_rank = get("LOCAL_RANK"), *local_size = get("LOCAL_WORLD_SIZE");
    if (local_rank && local_size) {
      out.local_size = number_in("LOCAL_WORLD_SIZE", local_size, 1, out.size);
      out.local_rank = number_in("LOCAL_RANK", local_rank, 0, out.local_size - 1);
    }
    const char* agent = get("TORCHELASTIC_USE_AGENT_STORE");
    out.store_runs = agent && std::string_view(agent) == "True";
    if (const char* attempt = get("TORCHELASTIC_RESTART_COUNT")) out.attempt = attempt;
    if (const char* secret = get("PENSTOCK_SECRET")) out.secret = secret;
    if (const char* elastic = get("PENSTOCK_ELASTIC")) out.elastic = number_in("PENSTOCK_ELASTIC", elastic, 0, 1) == 1;
    return out;
  }
  return std::nullopt;
}

int local_rank_from(const std::function<const char*(const char*)>& get) {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
    if (const char* value = get(name)) return number_in(name, value, 0, kMost);
  return 0;
}

std::string print(const Hello& hello) {
  return concat(hello.build, "\n", hello.torch, "\n", hello.size, "\n", hello.process, "\n", hello.run);
}

Hello parse_hello(const std::string& text) {
  const std::vector<std::string> lines = split(text, '\n');
  Hello hello;
  if (lines.size() < 5) return hello;
  hello.build = lines[0];
  hello.torch = lines[1];
  hello.size = parse_number<int>(lines[2]).value_or(0);
  hello.process = lines[3];
  hello.run = join({lines.begin() + 4, lines.end()}, "\n");
  return hello;
}

void check_hello(const Hello& first, const Hello& other, int rank) {
  const auto fail = [&](const char* what, const auto& mine, const auto& theirs, const char* hint) {
    throw Error(concat("rank ", rank, " has another ", what, " than rank 0"),
                {concat("rank 0: ", mine), concat("rank ", rank, ": ", theirs)}, hint);
  };
  if (first.size != other.size) fail("world size", first.size, other.size, "start all processes with one launcher");
  if (first.build != other.build) fail("build of penstock", first.build, other.build, "install the same build on every machine");
  if (first.torch != other.torch) fail("libtorch", first.torch, other.torch, "install the same libtorch on every machine");
  if (first.run == other.run) return;
  const auto [mine, theirs] = first_difference(first.run, other.run);
  fail("command, data or configuration", mine, theirs, "start all processes with the same command, on the same data");
}

void check_call(const std::string& first, const std::string& other, int rank) {
  if (first == other) return;
  const std::vector<std::string> a = split(first, '\n'), b = split(other, '\n');
  const auto [at, other_at] = std::ranges::mismatch(a, b);
  const std::string mine = at != a.end() ? *at : "no more", theirs = other_at != b.end() ? *other_at : "no more";
  const std::vector<std::string> both = {concat("rank 0: ", mine), concat("rank ", rank, ": ", theirs)};
  if (at == a.begin())
    throw Error(concat("rank ", rank, " makes another call than rank 0"), both, "all ranks make the same calls in the same order");
  throw Error(concat("rank ", rank, " is given other data than rank 0: ", a.front()), both,
              "all ranks are given the same batches: samplers that shuffle need the same seed on every rank");
}

}  // namespace penstock
