// SPDX-License-Identifier: Apache-2.0
// A temporary folder for one test.
#pragma once

#include <filesystem>
#include <string>

namespace penstock::test {

// The folder is empty at first, and is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::test
