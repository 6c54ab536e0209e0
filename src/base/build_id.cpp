// SPDX-License-Identifier: Apache-2.0
#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace penstock {
namespace {

// The object that has `code`, the program or a library of it.
struct OwnObject {
  const void* code;
  std::string build_id;
};

bool has(const dl_phdr_info& info, const void* code) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    const ElfW(Addr) begin = info.dlpi_addr + header.p_vaddr, at = reinterpret_cast<ElfW(Addr)>(code);
    if (header.p_type == PT_LOAD && at >= begin && at - begin < header.p_memsz) return true;
  }
  return false;
}

std::string hexadecimal(std::string_view bytes) {
  return join(bytes, "", [](char c) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    return std::string{kDigits[byte >> 4], kDigits[byte & 15]};
  });
}

// A note is a header, a name and a content, each filled up to four bytes.
std::optional<std::string> build_id_in(std::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    notes.remove_prefix(sizeof note);
    const std::size_t name = (std::size_t{note.n_namesz} + 3) / 4 * 4, content = (std::size_t{note.n_descsz} + 3) / 4 * 4;
    if (name > notes.size() || content > notes.size() - name) return std::nullopt;
    if (note.n_type == NT_GNU_BUILD_ID && notes.starts_with(std::string_view("GNU\0", 4)))
      return hexadecimal(notes.substr(name, note.n_descsz));
    notes.remove_prefix(name + content);
  }
  return std::nullopt;
}

int find_build_id(dl_phdr_info* info, std::size_t, void* own) {
  OwnObject& out = *static_cast<OwnObject*>(own);
  if (!has(*info, out.code)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    if (const auto found = build_id_in({reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr), header.p_memsz}))
      out.build_id = *found;
  }
  return 1;
}

}  // namespace

std::string build_id() {
  OwnObject own{reinterpret_cast<const void*>(&build_id), {}};
  dl_iterate_phdr(find_build_id, &own);
  return own.build_id.empty() ? "0.1" : own.build_id;
}

std::optional<ElfFile> read_elf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const auto read = [&](std::uint64_t at, void* out, std::size_t size) {
    return bool(in.seekg(static_cast<std::streamoff>(at)).read(static_cast<char*>(out), static_cast<std::streamsize>(size)));
  };
  ElfW(Ehdr) elf;
  if (!read(0, &elf, sizeof elf) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  ElfFile out;
  out.bytes = elf.e_shoff + std::uint64_t{elf.e_shnum} * elf.e_shentsize;
  for (std::size_t i = 0; i < elf.e_phnum; ++i) {
    ElfW(Phdr) header;
    if (!read(elf.e_phoff + i * sizeof header, &header, sizeof header)) return std::nullopt;
    out.bytes = std::max<std::uint64_t>(out.bytes, header.p_offset + header.p_filesz);
    constexpr std::size_t kMost = 1 << 20;  // bytes of notes, which are some hundred
    if (header.p_type != PT_NOTE || header.p_filesz > kMost || !out.build_id.empty()) continue;
    std::string notes(header.p_filesz, '\0');
    if (!read(header.p_offset, notes.data(), notes.size())) return std::nullopt;
    out.build_id = build_id_in(notes).value_or("");
  }
  return out;
}

}  // namespace penstock
