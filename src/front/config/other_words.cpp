// SPDX-License-Identifier: Apache-2.0
#include "config/other_words.h"

#include <algorithm>
#include <span>

#include "base/text.h"

namespace penstock {
namespace {

struct OtherNames {
  std::string_view key, names;  // the word here; those elsewhere
};

// From the options and configurations of Megatron-LM, DeepSpeed, Hugging Face Transformers, nanoGPT, torchtitan and PyTorch.
constexpr OtherNames kOtherNames[] = {
    {"steps", "max_steps train_iters num_steps iterations max_iters total_steps"},
    {"batch", "batch_size global_batch_size train_batch_size bs"},
    {"learning_rate", "lr eta step_size"},
    {"optimiser", "optimizer optim"},
    {"decay", "lr_scheduler lr_scheduler_type lr_decay_style scheduler"},
    {"warmup", "warmup_steps num_warmup_steps lr_warmup_iters warmup_iters"},
    {"clip", "grad_clip clip_grad max_grad_norm max_norm gradient_clipping"},
    {"weight_decay", "wd"},
    {"beta1", "adam_beta1"},
    {"beta2", "adam_beta2"},
    {"eps", "adam_eps adam_epsilon epsilon"},
    {"dtype", "precision torch_dtype mixed_precision"},
    {"seed", "random_seed"},
    {"validation_every", "eval_interval eval_steps eval_every"},
    {"validation_batches", "eval_iters"},
    {"layers", "num_layers n_layer n_layers num_hidden_layers depth"},
    {"width", "hidden_size d_model n_embd embed_dim dim hidden_dim"},
    {"heads", "num_heads n_head n_heads num_attention_heads"},
    {"context", "seq_len seq_length sequence_length block_size n_positions n_ctx max_position_embeddings max_length"},
    {"vocabulary", "vocab_size vocab padded_vocab_size"},
    {"tied", "tie_word_embeddings tie_embeddings"},
    {"text", "dataset data_path data_dir train_files corpus"},
    {"microbatches", "gradient_accumulation_steps num_microbatches grad_accum accumulation"},
    {"actors", "pipeline_parallel_size pipeline_model_parallel_size num_stages pp stages"},
    {"tensor", "tensor_parallel_size tensor_model_parallel_size tp"},
    {"data", "data_parallel_size dp"},
    {"context", "context_parallel_size cp"},
    {"expert", "expert_parallel_size expert_model_parallel_size ep"},
    {"recompute", "activation_checkpointing gradient_checkpointing recompute_activations"},
    {"zero", "zero_stage"},
    {"out", "output_dir save_dir out_dir save"},
    {"checkpoint_every", "save_interval save_steps save_every"},
    {"keep", "save_total_limit"},
};

constexpr OtherNames kOtherValues[] = {
    {"f32", "fp32 float32 float single"},
    {"f64", "fp64 float64 double"},
    {"bf16", "bfloat16 fp16 float16 half f16"},
    {"cuda", "gpu nvidia"},
    {"gloo", "mpi tcp"},
    {"inputs", "full all"},
};

// Returns the key of the first row that has the word among its names.
std::string meant_by(std::string_view word, std::span<const OtherNames> rows) {
  for (const OtherNames& row : rows) {
    const std::vector<std::string> names = split(row.names, ' ');
    if (std::ranges::find(names, word) != names.end()) return std::string(row.key);
  }
  return "";
}

}  // namespace

std::string key_called_elsewhere(std::string word) {
  std::ranges::replace(word, '-', '_');
  return meant_by(word, kOtherNames);
}

std::string value_called_elsewhere(const std::string& word) {
  return meant_by(word, kOtherValues);
}

}  // namespace penstock
