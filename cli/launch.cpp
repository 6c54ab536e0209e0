// SPDX-License-Identifier: Apache-2.0
// penstock launch
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "driver/store_sockets.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that loses another says where it waited for it, so all get time for that before they are asked to end: rank 0 needs a second, and
// on a machine that is in use some more. A rank that is asked in the middle of a step still ends with its own words; it is killed when the
// second time is over.
constexpr std::chrono::seconds kOwnWords{8}, kAfterTermination{10};

struct LaunchFlags {
  int processes = 2;
  // Devices may go and come: rank 0 has none, beside `processes` of them so many more wait for others to go, and so many that are lost are
  // started again. `join`: rank 0 is there already, at this HOST:PORT.
  bool elastic = false;
  int spares = 0, restarts = 0;
  std::string join;
  std::string address = "127.0.0.1";  // of this machine, at which the processes meet
  int port = 0;
  std::string log_file;  // to FILE.RANK goes a process's standard error; empty: to the launcher's
  std::vector<std::string> arguments;
  bool own = true;  // whether they are a command of this program; else another program's
};

int ranks_of(const LaunchFlags& options) {
  return options.elastic ? 1 + options.processes + options.spares : options.processes;
}

// Draws the secret that the ranks' messages are signed with (driver/ranks.h), if the user did not choose one.
void make_secret() {
  std::uint64_t words[2];
  if (::getrandom(words, sizeof words, 0) != sizeof words) throw Error(concat("cannot draw a secret: ", std::strerror(errno)));
  ::setenv("PENSTOCK_SECRET", concat(hex(words[0]), "-", hex(words[1])).c_str(), 0);
}

// Runs this program once more, or another, as `rank`, in a process group of its own: so a terminal's interrupt reaches only the launcher,
// which forwards it.
pid_t start(const LaunchFlags& options, int rank, int port) {
  const std::size_t colon = options.join.rfind(':');
  ::setenv("MASTER_ADDR", options.join.empty() ? options.address.c_str() : options.join.substr(0, colon).c_str(), 1);
  ::setenv("MASTER_PORT", options.join.empty() ? std::to_string(port).c_str() : options.join.substr(colon + 1).c_str(), 1);
  const int devices = options.processes + options.spares;
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(ranks_of(options)).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(options.elastic ? std::max(rank - 1, 0) : rank).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(devices).c_str(), 1);
  ::setenv("PENSTOCK_ELASTIC", options.elastic ? "1" : "0", 1);
  std::vector<std::string> words;
  if (options.own) words.emplace_back("penstock");
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const pid_t launcher = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw Error(concat("cannot start a process: ", std::strerror(errno)));
  if (child > 0) return child;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != launcher) ::_exit(127);
  if (!options.log_file.empty()) {
    const int log = ::open(concat(options.log_file, ".", rank).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (log < 0) std::fprintf(stderr, "penstock launch: --log-file %s.%d: %s\n", options.log_file.c_str(), rank, std::strerror(errno));
    if (log < 0 || ::dup2(log, STDERR_FILENO) < 0) ::_exit(127);
  }
  options.own ? ::execv("/proc/self/exe", arguments.data()) : ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "penstock launch: cannot run %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

// The signals that a launcher waits for: its processes' ends, and those that ask it to end. One that is ignored, as under nohup, stays so.
sigset_t awaited() {
  sigset_t out;
  sigemptyset(&out);
  sigaddset(&out, SIGCHLD);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&out, signal);
  }
  return out;
}

void say_end(std::size_t rank, int status) {
  if (WIFSIGNALED(status))
    std::fprintf(stderr, "penstock launch: rank %zu was ended by signal %d\n", rank, WTERMSIG(status));
  else
    std::fprintf(stderr, "penstock launch: rank %zu ended with exit code %d\n", rank, WEXITSTATUS(status));
}

class Group {
 public:
  explicit Group(const LaunchFlags& options)
      : options_(options), port_(options.port > 0 ? options.port : free_port()), restarts_(options.restarts) {
    for (int rank = 0; rank < ranks_of(options); ++rank)
      processes_.push_back(rank == 0 && !options.join.empty() ? 0 : start(options, rank, port_));
  }

  // Waits until every process has ended. Returns the exit code of the first that failed, or 128 + the signal that asked the launcher to
  // end.
  int wait();

 private:
  void send(int signal) {
    for (pid_t process : processes_)
      if (process > 0) ::kill(process, signal);
  }
  bool reap();
  void note_end(std::size_t rank, int status);
  void end_late();

  const LaunchFlags& options_;
  const int port_;
  int restarts_;                  // that are left
  std::vector<pid_t> processes_;  // by rank; 0: it has ended
  int result_ = 0;
  int asked_ = 0;  // the signal that asked the launcher to end; 0: none
  Clock::time_point terminate_ = Clock::time_point::max(), kill_ = Clock::time_point::max();
};

// Notes all processes that have ended; false when none is left.
bool Group::reap() {
  int status = 0;
  for (pid_t ended; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (const auto place = std::ranges::find(processes_, ended); place != processes_.end())
      note_end(static_cast<std::size_t>(place - processes_.begin()), status);
  return std::ranges::any_of(processes_, [](pid_t process) { return process > 0; });
}

void Group::note_end(std::size_t rank, int status) {
  processes_[rank] = 0;
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (options_.elastic && options_.join.empty() && rank > 0) {  // the others go on, and rank 0 says how the run ends
    const bool is_lost = code != 0 && asked_ == 0 && processes_[0] > 0;
    if (is_lost) say_end(rank, status);
    if (is_lost && restarts_-- > 0) processes_[rank] = start(options_, static_cast<int>(rank), port_);
    return;
  }
  if (options_.elastic && rank == 0) terminate_ = Clock::now() + kOwnWords;
  if (code == 0 || result_ != 0) return;
  result_ = code;
  if (asked_ != 0) return;
  if (WIFSIGNALED(status)) say_end(rank, status);
  terminate_ = Clock::now() + kOwnWords;
}

void Group::end_late() {
  const Clock::time_point now = Clock::now();
  if (now >= terminate_) {
    send(SIGTERM);
    terminate_ = Clock::time_point::max();
    kill_ = now + kAfterTermination;
  }
  if (now >= kill_) send(SIGKILL);
}

int Group::wait() {
  const sigset_t expected = awaited();
  const timespec round = {0, 200'000'000};
  while (reap()) {
    end_late();
    const int signal = ::sigtimedwait(&expected, nullptr, &round);
    if (signal <= 0 || signal == SIGCHLD || (signal == SIGHUP && asked_ != 0)) continue;  // a closed terminal is said twice
    // Rank 0 of an elastic run ends it, and tells the others.
    if (options_.elastic && asked_ == 0 && processes_[0] > 0)
      ::kill(processes_[0], signal);
    else
      send(asked_ == 0 ? signal : SIGKILL);
    asked_ = signal;
  }
  return asked_ == 0 ? result_ : 128 + asked_;
}

void launch(const LaunchFlags& options) {
  // Signals are blocked before the first process starts, so that none is missed; each process starts with none blocked.
  const sigset_t blocked = awaited();
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  if (options.join.empty()) make_secret();
  const int result = Group(options).wait();
  if (result != 0) throw CLI::RuntimeError(result);
}

}  // namespace

void add_launch(CLI::App& program) {
  CLI::App* command = program.add_subcommand("launch", "Starts N processes on this machine, one per device");
  command->footer("Example:\n  penstock launch -n 2 -- train --backend gloo --actors 2 --out runs/gloo");
  const auto options = std::make_shared<LaunchFlags>();
  begin_group(*command, groups::kWhere);
  command->add_option("-n,--processes", options->processes, "Processes to start [2]")->check(CLI::Range(1, 4096));
  command->add_flag("--elastic", options->elastic,
                    "Go on when a process is lost, and take in those that come; one more process than N has no device and leads");
  command->add_option("--spares", options->spares, "With --elastic: processes beside the N that take the place of lost ones [0]")
      ->check(CLI::Range(0, 4096))
      ->needs("--elastic");
  command->add_option("--restarts", options->restarts, "With --elastic: start a lost process again, so often in all [0]")
      ->check(CLI::Range(0, 1 << 20))
      ->needs("--elastic");
  command
      ->add_option("--join", options->join,
                   "With --elastic: the N come into the run that is led at HOST:PORT, with its PENSTOCK_SECRET and the same command")
      ->type_name("HOST:PORT")
      ->check([](const std::string& place) {
        const std::size_t colon = place.rfind(':');
        const std::optional<int> port = parse_number<int>(place.substr(colon == place.npos ? place.size() : colon + 1));
        return colon > 0 && port && *port > 0 && *port < 65536 ? std::string() : concat(place, " is not HOST:PORT");
      })
      ->needs("--elastic")
      ->excludes("--spares");
  command
      ->add_option("--address", options->address,
                   "This machine's address at which they meet; another than the default lets other machines join [127.0.0.1]")
      ->type_name("HOST");
  command->add_option("--port", options->port, "Port at which they meet; 0: a free one [0]")->check(CLI::Range(0, 65535));
  command
      ->add_option("ARGS", options->arguments, "The command of each process, behind --: penstock's, or another program (python train.py)")
      ->required();
  command->positionals_at_end();
  begin_group(*command, groups::kOutput);
  command
      ->add_option("--log-file", options->log_file,
                   "Add each process's standard error to FILE.RANK; --quiet and --verbose are the command's own [the launcher's]")
      ->type_name("FILE");
  command->callback([options, &program] {
    const auto named = [&](const CLI::App* other) { return !options->arguments.empty() && other->get_name() == options->arguments[0]; };
    options->own = !program.get_subcommands(named).empty();
    launch(*options);
  });
}

}  // namespace penstock
