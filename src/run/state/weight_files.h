// SPDX-License-Identifier: Apache-2.0
// Where parameters lie that other programs saved: one safetensors file, or a folder of Hugging Face's save_pretrained, whole or in shards.
#pragma once

#include <map>
#include <string>

namespace penstock {

// Whether the path is such a folder, or the index of its shards (model.safetensors.index.json). Checkpoints and run folders are none.
bool is_pretrained(const std::string& path);

// The file of each tensor in such a folder, behind such an index, or in one file. A folder that has a whole file and shards stands for the
// whole file. Throws Error: weights in files that are not read, an index that is none, a shard that is missing or lies elsewhere, a tensor
// that its shard has not, or that two shards have.
std::map<std::string, std::string> weight_files(const std::string& path);

}  // namespace penstock
