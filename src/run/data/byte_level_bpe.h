// SPDX-License-Identifier: Apache-2.0
// Byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019), as Hugging Face's tokenizer.json describes it: the tokenizers
// of GPT-2, Llama 3 and Qwen.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace penstock {

// Reads a tokenizer.json; `file` is its name for messages. Any bytes come back as they were, but for those that its normaliser changes
// (NFC), and for added tokens of letters that stand for other bytes. Added tokens are found in a text wherever they stand: first those that
// are not normalised, then, in what lies between in its normal form, the others. Throws Error: a file that is none, a component of another
// kind (named), a byte without a token, a merge of what is no token, ids that stand for two tokens, added tokens that are found as one text
// or whose ids are not those that the library gives them.
std::shared_ptr<const Tokenizer> parse_byte_level_bpe(std::string_view text, const std::string& file);

}  // namespace penstock
