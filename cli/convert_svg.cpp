// SPDX-License-Identifier: Apache-2.0
#include "cli/convert_svg.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The commands that make `out` of `svg`, in the order in which they are tried.
std::vector<std::vector<std::string>> converters(const std::string& svg, const std::string& out) {
  const std::string format = out.substr(out.rfind('.') + 1);
  return {{"rsvg-convert", "--format", format, "--output", out, svg},
          {"inkscape", svg, "--export-type=" + format, "--export-filename=" + out},
          {"cairosvg", svg, "-f", format, "-o", out}};
}

bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path ? path : "", ':'))
    if (!folder.empty() && ::access((std::filesystem::path(folder) / program).c_str(), X_OK) == 0) return true;
  return false;
}

// Runs the command without output of its own; whether it ended well.
bool run_quietly(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw Error("cannot start a process for " + command[0]);
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The picture with each "var(--ink, #1a1a1a)" of its style as the colour that stands there for a picture outside of a page: converters know
// no variables, and CairoSVG ends at one.
std::string without_variables(const std::string& svg) {
  static const std::regex variable(R"(var\(--[a-z-]+, *([^()]*)\))");
  return std::regex_replace(svg, variable, "$1");
}

}  // namespace

void convert_svg(const std::string& svg, const std::string& file) {
  const std::string source = file + ".svg.part", made = file.substr(0, file.rfind('.')) + ".part" + file.substr(file.rfind('.'));
  for (const std::vector<std::string>& command : converters(source, made)) {
    if (!is_installed(command[0])) continue;
    write_file(source, without_variables(svg));
    const bool well = run_quietly(command);
    std::error_code ignored;
    std::filesystem::remove(source, ignored);
    if (!well || !std::filesystem::exists(made, ignored))
      throw Error(concat(command[0], " could not make ", file), {}, "--out FILE.svg, which any browser shows");
    std::filesystem::rename(made, file);
    return;
  }
  throw Error(concat("--out ", file, ": no program is installed that makes it of an SVG"),
              {"looked for rsvg-convert, inkscape and cairosvg"},
              "install one (apt install librsvg2-bin, or pip install cairosvg), or --out FILE.svg");
}

}  // namespace penstock
