// SPDX-License-Identifier: Apache-2.0
#include "data/sentence_piece.h"

#include <dlfcn.h>
#include <sentencepiece_processor.h>

#include <memory>
#include <new>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using sentencepiece::SentencePieceProcessor;

// The value of a function that returns sentencepiece::util::Status: nothing, or what is wrong. Its text is asked of the library.
struct PieceStatus;

// SentencePiece's library, loaded when a model of it is first read. It and libtorch define a variable of one name, FLAGS_minloglevel, as
// objects of two types: where one sees the other's, it writes over memory that is not its own. So the library sees its own names first, and
// nobody else sees them. (A sanitiser, which has names of its own in all libraries, forbids the former; it runs nothing of libtorch.)
class PieceLibrary {
 public:
  static const PieceLibrary& get() {
    static const PieceLibrary library;
    return library;
  }

  void (*construct)(void*);
  PieceStatus (*load)(SentencePieceProcessor*, std::string_view);
  void (*destroy_status)(PieceStatus*);
  std::string (*text_of_status)(const PieceStatus*);
  int (*size)(const SentencePieceProcessor*);
  int (*end_of_text)(const SentencePieceProcessor*);
  std::vector<int> (*encode)(const SentencePieceProcessor*, std::string_view);
  std::string (*decode)(const SentencePieceProcessor*, const std::vector<int>&);

 private:
  static constexpr const char* kName = "libsentencepiece.so.0";
  static constexpr int kHow = RTLD_NOW | RTLD_LOCAL | (kSanitizer == Sanitizer::none ? RTLD_DEEPBIND : 0);

  PieceLibrary() : library_(dlopen(kName, kHow)) {
    if (library_ == nullptr)
      throw Error(concat(kName, " cannot be loaded, which reads SentencePiece's models"), {dlerror()}, "install libsentencepiece0");
    find(construct, "_ZN13sentencepiece22SentencePieceProcessorC1Ev");
    find(load, "_ZN13sentencepiece22SentencePieceProcessor23LoadFromSerializedProtoESt17basic_string_viewIcSt11char_traitsIcEE");
    find(destroy_status, "_ZN13sentencepiece4util6StatusD1Ev");
    find(text_of_status, "_ZNK13sentencepiece4util6Status8ToStringB5cxx11Ev");
    find(size, "_ZNK13sentencepiece22SentencePieceProcessor12GetPieceSizeEv");
    find(end_of_text, "_ZNK13sentencepiece22SentencePieceProcessor6eos_idEv");
    find(encode, "_ZNK13sentencepiece22SentencePieceProcessor11EncodeAsIdsESt17basic_string_viewIcSt11char_traitsIcEE");
    find(decode, "_ZNK13sentencepiece22SentencePieceProcessor9DecodeIdsB5cxx11ERKSt6vectorIiSaIiEE");
  }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr)
      throw Error(concat(kName, " is of another version than this program was made for"), {concat("it has no ", name)},
                  "install libsentencepiece0 of the same system as libsentencepiece-dev");
  }

  void* library_;
};

struct PieceStatus {
  void* wrong = nullptr;
  PieceStatus() = default;
  PieceStatus(const PieceStatus&) = delete;
  PieceStatus& operator=(const PieceStatus&) = delete;
  ~PieceStatus() { PieceLibrary::get().destroy_status(this); }
};
static_assert(sizeof(PieceStatus) == sizeof(sentencepiece::util::Status));

// The processor's destructor is virtual, so it is the library's. A sanitiser would ask whether it is the class's, of names that only the
// library has.
struct DeletePiece {
  __attribute__((no_sanitize("vptr"))) void operator()(SentencePieceProcessor* processor) const { delete processor; }
};

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) : library_(PieceLibrary::get()) {
    const std::string model = read_file(path);
    void* const memory = ::operator new(sizeof(SentencePieceProcessor));
    library_.construct(memory);
    processor_.reset(static_cast<SentencePieceProcessor*>(memory));
    if (const std::string wrong = model.empty() ? "it is empty" : wrong_with(model); !wrong.empty())
      throw Error(concat(path, " is no SentencePiece model"), {wrong},
                  "penstock reads the *.model file that SentencePiece's trainer wrote");
    Hash hash;
    hash.add(model);
    fingerprint_ = hash.value();
  }

  std::int64_t size() const override { return library_.size(processor_.get()); }
  std::vector<std::int32_t> encode(std::string_view text) const override { return library_.encode(processor_.get(), text); }
  std::string decode(std::span<const std::int32_t> tokens) const override {
    return library_.decode(processor_.get(), std::vector<int>(tokens.begin(), tokens.end()));
  }
  std::optional<std::int32_t> end_of_text() const override {
    const int id = library_.end_of_text(processor_.get());
    return id < 0 ? std::nullopt : std::optional(id);
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  // Reads a model and returns what the library finds wrong with it; nothing where it is right.
  std::string wrong_with(const std::string& model) {
    const PieceStatus status = library_.load(processor_.get(), model);
    return status.wrong == nullptr ? std::string() : library_.text_of_status(&status);
  }

  const PieceLibrary& library_;
  std::unique_ptr<SentencePieceProcessor, DeletePiece> processor_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Tokenizer> load_sentence_piece(const std::string& path) {
  return std::make_shared<SentencePiece>(path);
}

}  // namespace penstock
