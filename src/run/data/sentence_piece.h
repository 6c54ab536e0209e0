// SPDX-License-Identifier: Apache-2.0
// Tokenizers that SentencePiece trained (Kudo & Richardson 2018), read by its own library.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace penstock {

// Reads a *.model file. Throws Error where it is none.
std::shared_ptr<const Tokenizer> load_sentence_piece(const std::string& path);

}  // namespace penstock
