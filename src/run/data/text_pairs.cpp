#include "data/text_pairs.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "data/text_files.h"
#include "penstock/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The newest of the folders PREFIX* in `parent`, as versions go: 3.9 before 3.11.
std::vector<std::string> newest_folder(const std::string& parent, const std::string& prefix) {
  std::error_code ignored;
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored))
    if (entry.is_directory(ignored) && entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path().string());
  if (found.empty()) return {};
  return {*std::ranges::max_element(found, {}, [](const std::string& path) { return std::pair(path.size(), path); })};
}

std::vector<std::string> manual_folders() {
  std::error_code ignored;
  std::vector<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/share/man", ignored))
    if (entry.path().filename().string().starts_with("man")) out.push_back(entry.path().string());
  std::ranges::sort(out);
  return out;
}

bool is_library_source(const std::string& path) {
  constexpr std::array<std::string_view, 5> others{"/test/", "/tests/", "/idle_test/", "/site-packages/", "/dist-packages/"};
  return path.ends_with(".py") && std::ranges::none_of(others, [&](std::string_view folder) { return path.find(folder) != path.npos; });
}

bool is_header(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  return extension.empty() || extension == ".h" || extension == ".hpp" || extension == ".tcc";
}

// Symbolic links are other names of a page.
bool is_page(const std::string& path) {
  std::error_code ignored;
  return !fs::is_symlink(path, ignored);
}

std::vector<TextPair> read_page(std::string_view roff) {
  const std::optional<TextPair> page = manual_page(roff);
  return page ? std::vector{*page} : std::vector<TextPair>{};
}

// The content of a file, unpacked where gzip packed it.
std::string unpacked(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw Error(concat("cannot read ", path));
  std::string out, piece(std::size_t{1} << 16, '\0');
  int got = 0;
  while ((got = gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()))) > 0)
    out.append(piece, 0, static_cast<std::size_t>(got));
  int reason = Z_OK;
  const char* said = gzerror(file.get(), &reason);
  if (got < 0 || reason == Z_BUF_ERROR) throw Error(concat("cannot read ", said));  // which begins with the path
  return out;
}

}  // namespace

std::vector<PairKind> pair_kinds() {
  return {{"docstrings", "functions of Python's library and the first paragraphs of their docstrings",
           [] { return newest_folder("/usr/lib", "python3."); }, is_library_source, python_functions},
          {"headers", "declarations of the C++ library's headers and what their comments say",
           [] { return newest_folder("/usr/include/c++", ""); }, is_header, cpp_declarations},
          {"man", "manual pages and the descriptions behind their names", manual_folders, is_page, read_page}};
}

std::vector<TextPair> collect_pairs(const PairKind& kind, const std::vector<std::string>& folders) {
  std::vector<TextPair> out;
  for (const std::string& folder : folders)
    for (const std::string& path : files_under(folder))
      if (kind.is_one(path))
        for (TextPair& pair : kind.read(unpacked(path)))
          if (!pair.input.empty() && !pair.target.empty()) out.push_back(std::move(pair));
  if (out.empty())
    throw Error(folders.empty() ? concat("this machine has no folder for ", quote(kind.name))
                                : concat("nothing is there for ", quote(kind.name), " in ", join(folders, ", ")),
                {concat("wanted: ", kind.summary)}, "name a folder that has some");
  return out;
}

}  // namespace penstock
