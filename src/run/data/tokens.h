// SPDX-License-Identifier: Apache-2.0
// Where tokens come from: numbered from 0 on, in a file or in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/steady_file.h"

namespace penstock {

// Safe to read from several threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  // Fills `out` with the tokens from `begin` on, which must be there. Throws Error where they come from a file that was changed.
  virtual void copy(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  // Reads all of them now and keeps them, so that copies take no file's time. Not while another thread copies.
  virtual void hold() {}
};

// A file whose bytes are the tokens; it is read whenever it is asked for some, unless they are held, and may not be changed in both cases.
class FileBytes : public TokenSource {
 public:
  explicit FileBytes(SteadyFile file) : file_(std::move(file)) {}
  std::int64_t size() const override { return file_.size(); }
  void copy(std::int64_t begin, std::span<std::int64_t> out) const override;
  void hold() override { held_ = read_all(file_); }

 private:
  SteadyFile file_;
  std::string held_;  // all of it, or nothing
};

// Tokens that are held in memory.
class HeldTokens : public TokenSource {
 public:
  explicit HeldTokens(std::vector<std::int32_t> tokens) : tokens_(std::move(tokens)) {}
  std::int64_t size() const override { return std::ssize(tokens_); }
  void copy(std::int64_t begin, std::span<std::int64_t> out) const override;

 private:
  std::vector<std::int32_t> tokens_;
};

}  // namespace penstock
