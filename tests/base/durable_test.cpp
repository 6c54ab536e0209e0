// SPDX-License-Identifier: Apache-2.0
#include "base/durable.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TemporaryFolder;

constexpr const char* kHint = "\n  hint: remove it: nothing is written through links";

// Every way in which one file leads to another.
const std::map<std::string, std::function<void(const std::string& to, const std::string& at)>> kLinks = {
    {"symbolic", [](const std::string& to, const std::string& at) { fs::create_symlink(to, at); }},
    {"hard", [](const std::string& to, const std::string& at) { fs::create_hard_link(to, at); }}};

TEST(Durable, WritesThroughNoLink) {
  for (const auto& [kind, link] : kLinks) {
    const TemporaryFolder folder;
    const std::string target = folder.file("target"), file = folder.file("file");
    write_file(target, "mine");
    link(target, file + ".part");
    link(target, file);
    write_file(file, "new");
    EXPECT_EQ(read_file(target), "mine") << kind;
    EXPECT_EQ(read_file(file), "new") << kind;
    EXPECT_FALSE(fs::exists(file + ".part"));
  }
  const TemporaryFolder folder;
  fs::create_symlink(folder.file("nowhere"), folder.file("file.part"));
  write_file(folder.file("file"), "new");
  EXPECT_FALSE(fs::exists(folder.file("nowhere")));
}

TEST(Durable, WritesIntoAPipe) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::FILE* const reader = std::fopen(pipe.c_str(), "r+");  // so that nobody waits for the other end
  write_file(pipe, "new\n");
  char line[8] = {};
  EXPECT_STREQ(std::fgets(line, sizeof line, reader), "new\n");
  std::fclose(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(Durable, AddsToNothingBehindALink) {
  const TemporaryFolder folder;
  const std::string target = folder.file("target"), file = folder.file("file");
  const auto failure = [&] { return message_of([&] { AppendedFile(file).append("more"); }); };
  EXPECT_EQ(failure(), "no error");
  EXPECT_EQ(failure(), "no error");
  EXPECT_EQ(read_file(file), "moremore");
  write_file(target, "mine");
  for (const auto& [kind, link] : kLinks) {
    fs::remove(file);
    link(target, file);
    EXPECT_EQ(failure(),
              concat("cannot write ", file, ": ",
                     kind == "hard" ? "the file has another name too: it is a hard link" : "it is a link to another place", kHint));
    EXPECT_EQ(read_file(target), "mine");
  }
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(failure(), concat("cannot write ", file, ": No such device or address"));
}

// Prints what is said of files that may have no more than 1000 bytes.
[[noreturn]] void outgrow(const TemporaryFolder& folder) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {1000, 1000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string text(2000, 'x');
  std::fputs(message_of([&] { write_file(folder.file("file"), text); }).c_str(), stderr);
  std::fputs(message_of([&] { AppendedFile(folder.file("lines")).append(text); }).c_str(), stderr);
  std::_Exit(0);
}

TEST(Durable, AFileBeyondTheLimitIsNamed) {
  const TemporaryFolder folder;
  EXPECT_EXIT(outgrow(folder), testing::ExitedWithCode(0), "cannot write .*/file: File too largecannot write .*/lines: File too large");
}

}  // namespace
}  // namespace penstock
