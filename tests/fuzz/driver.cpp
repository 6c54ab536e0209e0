// SPDX-License-Identifier: Apache-2.0
// Runs one reader's LLVMFuzzerTestOneInput on mutations of its corpus, for compilers without libFuzzer. The input at work is always in the
// file --current, so it is still there after a crash; give it as argument to run it again.
//
//   fuzz_graph --corpus=DIR [--dictionary=FILE] [--seconds=60] [--seed=N] [--current=FILE]
//   fuzz_graph FILE...
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/cursor.h"
#include "base/text.h"
#include "penstock/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace penstock::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaximalSize = 1 << 16;  // bytes of an input
constexpr std::chrono::seconds kSlow{10};      // for one input: far above what a linear reader needs under a sanitizer

struct Options {
  std::uint64_t seed = std::random_device()();
  double seconds = 60;
  std::string corpus, dictionary, current = "fuzz.input";
  std::vector<std::string> files;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string value{argument.substr(std::min(argument.find('=') + 1, argument.size()))};
    if (argument.starts_with("--seed=")) {
      options.seed = std::stoull(value);
    } else if (argument.starts_with("--seconds=")) {
      options.seconds = std::stod(value);
    } else if (argument.starts_with("--corpus=")) {
      options.corpus = value;
    } else if (argument.starts_with("--dictionary=")) {
      options.dictionary = value;
    } else if (argument.starts_with("--current=")) {
      options.current = value;
    } else if (argument.starts_with("--")) {
      throw Error(concat("unknown option ", argument));
    } else {
      options.files.emplace_back(argument);
    }
  }
  return options;
}

// Sorted by name, so that a seed means the same everywhere.
std::vector<std::string> read_corpus(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::string& path : paths) corpus.push_back(read_file(path));
  if (corpus.empty()) throw Error(concat("no corpus in ", folder));
  return corpus;
}

// A quoted token per line, as libFuzzer reads it.
std::vector<std::string> read_dictionary(const std::string& path) {
  if (path.empty()) return {};
  const std::string text = read_file(path);
  std::vector<std::string> tokens;
  for (Cursor cursor(path, text); !cursor.at_end();) tokens.push_back(cursor.string());
  return tokens;
}

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, std::vector<std::string> dictionary)
      : corpus_(std::move(corpus)), dictionary_(std::move(dictionary)) {
    for (const char* number :
         {"0", "-1", "1", "2147483648", "4294967296", "9223372036854775807", "-9223372036854775808", "1e308", "nan", "-inf"})
      dictionary_.emplace_back(number);
  }

  // The same input for the same seed.
  std::string input(std::uint64_t seed) {
    random_.seed(seed);
    std::string text = pick(corpus_);
    for (std::size_t steps = 1 + below(below(16) + 1); steps-- > 0;) mutate(text);
    if (text.size() > kMaximalSize) text.resize(kMaximalSize);
    return text;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  // A piece of `text`: mostly short, sometimes any.
  std::pair<std::size_t, std::size_t> span(const std::string& text) {
    const std::size_t begin = below(text.size() + 1), rest = text.size() - begin;
    return {begin, below(std::min<std::size_t>(rest, below(4) == 0 ? rest : 16) + 1)};
  }

  void mutate(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const auto [begin, size] = span(text);
    switch (below(9)) {
      case 0:
        if (!text.empty()) text[below(text.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 2:
        text.erase(begin, size);
        break;
      case 3:
        text.insert(at, text.substr(begin, size));
        break;
      case 4: {
        const std::string& other = pick(corpus_);
        const auto [from, count] = span(other);
        text.replace(begin, size, other, from, count);
        break;
      }
      case 5:
        text.insert(at, pick(dictionary_));
        break;
      case 6:
        text.replace(begin, size, pick(dictionary_));
        break;
      case 7:
        replace_number(text, at);
        break;
      case 8:
        repeat_line(text, at);
        break;
    }
  }

  void replace_number(std::string& text, std::size_t at) {
    const std::size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, pick(dictionary_));
  }

  void repeat_line(std::string& text, std::size_t at) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) return;
    const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    text.insert(end + 1, text.substr(begin, end + 1 - begin));
  }

  std::vector<std::string> corpus_, dictionary_;
  std::mt19937_64 random_;
};

// A file whose content is the input at work, kept by the system whatever becomes of this process.
class Current {
 public:
  explicit Current(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw Error(concat("cannot write ", path, ": ", std::strerror(errno)));
  }
  ~Current() { ::close(fd_); }
  Current(const Current&) = delete;

  void set(std::string_view input) {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size()))
      throw Error(concat("cannot keep the input at work: ", std::strerror(errno)));
  }

 private:
  int fd_;
};

void run_one(std::string_view input) {
  // A copy of just the size: a read past the end is seen.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void fuzz(const Options& options) {
  std::cout << "seed " << options.seed << ", input at work in " << options.current << std::endl;
  const std::vector<std::string> corpus = read_corpus(options.corpus);
  Mutator mutator(corpus, read_dictionary(options.dictionary));
  Current current(options.current);
  const auto begin = Clock::now(),
             end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  std::uint64_t runs = 0;
  for (auto now = begin; now < end; ++runs) {
    const std::string input = runs < corpus.size() ? corpus[runs] : mutator.input(options.seed + runs);
    current.set(input);
    run_one(input);
    const auto after = Clock::now();
    if (after - now > kSlow)
      throw Error(concat("an input of ", input.size(), " bytes took more than ", kSlow.count(), " s"), {options.current});
    now = after;
  }
  std::cout << runs << " inputs, no finding" << std::endl;
}

}  // namespace
}  // namespace penstock::fuzz

int main(int argc, char** argv) {
  using namespace penstock;
  const fuzz::Options options = fuzz::parse_options(argc, argv);
  for (const std::string& file : options.files) fuzz::run_one(read_file(file));
  if (options.files.empty()) fuzz::fuzz(options);
}
