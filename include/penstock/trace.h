// SPDX-License-Identifier: Apache-2.0
// Writing models: named parameters, modules, stage marks, gradients and the one loop of a training step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/layout.h"
#include "penstock/ops.h"

namespace penstock {

// The values with which a parameter starts. Those drawn depend on the run's seed and the parameter's name only.
struct Initialiser {
  // Where the values are from, and which they are.
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;  // normal: of mean 0
  double deviation = 0;     // standard deviation, for normal
};

// A parameter that a model declares.
struct ParameterSpec {
  std::string name;                // fully qualified, as in checkpoints
  TensorType type;                 // floating
  Initialiser initial;             // its first values
  bool decay = true;               // whether weight decay applies (matrices, by the usual rule)
  std::vector<DimName> dims = {};  // one for each dim, or none at all
  bool trained = true;             // else it has no gradient and no optimiser's state, and only what a model carries (Carried) changes it
  int group = 0;                   // which of OptimiserOptions::groups updates it
  bool adapter = false;            // added to a model that may come without: where a file of values lacks it, it begins as `initial` says
};

// Named tensors in declaration order.
class Parameters {
 public:
  void set(std::string name, Tensor tensor);       // keeps its old place if there is one of that name
  Tensor operator[](std::string_view name) const;  // throws Error naming the nearest
  const std::vector<std::pair<std::string, Tensor>>& entries() const { return entries_; }  // in order
  std::size_t size() const { return entries_.size(); }                                     // how many there are

 private:
  std::vector<std::pair<std::string, Tensor>> entries_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// The stage that every op of a scope belongs to: `Stage s("vision");` marks the ops that this thread's innermost trace makes while s lives.
// Only valid inside a trace (Error otherwise).
class Stage {
 public:
  explicit Stage(std::string name);
  ~Stage();
  Stage(const Stage&) = delete;

 private:
  Builder* builder_;
  std::string previous_;
};

// The origin (module path) of the ops made while it lives: "h.0", then "h.0.attn".
class Origin {
 public:
  explicit Origin(std::string_view name);
  ~Origin();
  Origin(const Origin&) = delete;

 private:
  Builder* builder_;
  std::string previous_;
};

// The parameters as values of the loop body that is being traced, so that ops on them alone (a cast) become part of the body too. Throws
// Error outside a trace.
Parameters captured(const Parameters& parameters);

// The value of `loss`, a scalar (Error otherwise), and its gradient by each parameter, zeros where it does not depend on it. The backward
// ops are emitted at once.
struct ValueAndGradient {
  Tensor value;         // the loss, a scalar
  Parameters gradient;  // by the parameters' names
};
ValueAndGradient value_and_grad(const Parameters& parameters, const std::function<Tensor(const Parameters&)>& loss);

// The gradient-accumulation loop. `split` tensors are cut along dim 0 into `microbatches` equal parts (Error if not divisible);
// everything else that the body reads is invariant. Each result is the sum over the micro-batches. One loop does not hold another.
std::vector<Tensor> accumulate(const std::vector<Tensor>& split, int microbatches,
                               const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& body);

// The target that is not counted, as in PyTorch.
inline constexpr std::int64_t kIgnored = -100;

// One tensor of each sample that a model reads, and where its values come from: the user's text, or seeded draws where no real data is at
// hand. A drawn value depends on the run's seed, the sample's number, the port and the element's place only.
struct DataPort {
  // Where values come from.
  enum class Kind : std::uint8_t {
    tokens,   // text: a window of `context` tokens
    targets,  // text: the same window one token further
    uniform,  // floats, uniform in [0, 1)
    normal,   // floats, standard normal; where `of` names a port of indices, a fixed smooth pattern of that class is added
    indices,  // integers, uniform in [0, below)
    // Floats, about standard normal: a fixed linear function of the first 32 elements of each port in `of` (of an index: its row).
    response,
    labels,  // any dtype, whole numbers in [0, below), about equally many of each: a response, cut into classes
    // i64, one for each token: where something made of an entry of the port in `of` stands instead of text, 1 + its row; else 0. Each entry
    // of the micro-batch has `below` rows, one entry's behind the other's.
    slots,
    given,  // the caller hands the batch's tensor over with each step (Session::step)
  };
  std::string name;             // unique among the model's ports
  TensorType type;              // type of one sample; the batch's has the number of samples in front
  Kind kind = Kind::tokens;     // where its values come from
  std::int64_t below = 0;       // for indices and labels
  std::vector<std::string> of;  // ports declared before, of kinds uniform, normal or indices
  // 0: each sample has one. Else it has none, one or several, so many at most (the images in a text), and `type` is of one; a batch has
  // those of all its samples in front, one sample's behind the other's.
  std::int64_t entries = 0;
  bool whole = false;  // `type` is the batch's, and every micro-batch reads all of it
  bool is_text() const { return kind == Kind::tokens || kind == Kind::targets; }
};
// The ports of a model that reads text: "tokens" and "targets", i64 [context].
std::vector<DataPort> text_ports(std::int64_t context);
bool reads_text(const std::vector<DataPort>& ports);
// Whether its samples are texts with images in them: there is a port of slots.
bool reads_images(const std::vector<DataPort>& ports);

// Describes how the rows of a batch of text hold their samples.
struct TextRows {
  // Whether samples stand one after the other in a row. It is then the only one of its micro-batch, and behind its last sample is padding.
  bool several = false;
  // Tokens in a row of inputs, where samples are pairs of an input and a target; the targets have rows of their own. 0: samples are texts.
  std::int64_t inputs = 0;
  // Where samples have entries of their own number (DataPort::entries), how many each part of a micro-batch has: a model works on one part
  // after the other. None: every sample has as many as it may, and all are one part.
  std::optional<std::vector<std::int64_t>> parts = {};
  // Whether rows are as long as the longest sample of their micro-batch, and not as the context: how much padding stands behind a sample
  // depends on which others are beside it.
  bool shorter = false;
};

// State that passes from each micro-batch to the next, in their order (batch norm's running statistics): of the value v a micro-batch makes
// keep * v + added. So what a step adds is a sum over its micro-batches, wherever each of them runs.
struct Carried {
  std::string parameter;  // not trained
  double keep = 1;        // in [0, 1]
};

// The values that a micro-batch adds to the loop's sums.
struct StepSums {
  Tensor loss;              // as Model::loss
  Parameters gradients;     // of the parameters that are trained
  Parameters carried = {};  // what is added to each of Model::carried
};

// Describes how a model makes a picture of a class: of standard normal values, which it changes step by step. Its levels of noise count
// from 0; at the highest there is next to nothing but noise.
struct PictureSteps {
  TensorType latents;                    // of one picture, floats
  std::int64_t classes = 0, levels = 0;  // numbers of classes and of levels of noise
  std::int64_t size = 0;                 // height and width, in pixels of three colours
};

// A model is to Penstock its parameters, data ports and the *sum* of the loss over a micro-batch.
class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<ParameterSpec> parameters() const = 0;  // all that it has, in the order of state
  // A safetensors file that has the values with which the parameters begin, by their names; "": they begin as their Initialisers say.
  virtual std::string initial_values() const { return {}; }
  // `context` is the length of a sequence of text, 0 where the configuration has none.
  virtual std::vector<DataPort> data(std::int64_t context) const { return text_ports(context); }
  struct Batch {
    Parameters ports;        // the tensors that data() declares, by name
    Tensor tokens, targets;  // of text models, i64 [batch, context]; targets of kIgnored are not counted
    Tensor rows;             // i64 [batch]: the samples' numbers in the step, for dropout; of several in a row i64 [batch, context]
    // For rows of several samples, i64 [batch, context]: where each token stands in its sample.
    Tensor positions;
    // For rows of several samples or of pairs, i64 [batch, context, 2]: the tokens of its own sample up to each token, as
    // attention_in_ranges takes them. Padding has none.
    Tensor ranges;
    // For rows of pairs. Tokens and targets are then those of the target: each token is the one before what is to be predicted, the first
    // is 0. inputs i64 [batch, inputs]; input_ranges i64 [batch, inputs, 2]: the inputs of each one's own sample; memory_ranges i64 [batch,
    // context, 2]: the inputs of each token's sample.
    Tensor inputs, input_ranges, memory_ranges;
    Tensor seed, step;  // i64 scalars, for random_key
    // TextRows::parts; empty: all entries are one part.
    std::vector<std::int64_t> parts;
    bool training = true;  // false: no dropout; rows, seed and step may be none
    Tensor operator[](std::string_view port) const { return ports[port]; }
  };
  virtual Tensor loss(const Parameters& parameters, const Batch& batch) const = 0;
  // The loss and all that training takes of a micro-batch. By default the loss is differentiated, and nothing is carried; a model that
  // comes with its gradients (an exported one) gives these.
  virtual StepSums sums(const Parameters& parameters, const Batch& batch) const;
  // Other tensors that it gives of a micro-batch in evaluation, by name, with the samples in front. By default none.
  virtual Parameters outputs(const Parameters&, const Batch&) const { return {}; }
  virtual std::vector<Carried> carried() const { return {}; }
  // Tensors that are made of the whole batch ahead of the loop. Each micro-batch finds them among its ports.
  virtual Parameters shared(const Parameters& parameters, const Batch& whole, int microbatches) const;
  // Whether its loss is that of each sample alone where rows hold them so, and its count that of the targets. By default rows are of one
  // text each, as long as the context: a model that mixes all tokens of a row, or cuts it by its length, makes something else of a shorter
  // one.
  virtual bool reads(const TextRows& rows) const { return !rows.several && rows.inputs == 0 && !rows.shorter; }
  // Whether a sample's loss depends on the others of its micro-batch (batch norm). Then only steps that cut the batch alike are equal.
  virtual bool equal_batches() const { return false; }
  // Returns the number that the sum of the losses of a whole batch is divided by, an i64 scalar. By default the targets that count or,
  // without targets, the samples.
  virtual Tensor count(const Batch& batch) const;
  // Whether it can continue a text, byte by byte; by default every model that reads tokens. One that can must have logits.
  virtual bool generates() const;
  // [batch, context, vocabulary], for generation, where the targets are none. The default throws Error.
  virtual Tensor logits(const Parameters& parameters, const Batch& batch) const;
  // Says how it makes pictures; by default it makes none. One that does must have the two functions that follow: their defaults throw.
  virtual std::optional<PictureSteps> picture_steps() const { return {}; }
  // One step for one picture, of ports "latents", "label", "level" and "next", i64 [1] but for the first: the latents with the noise of
  // level "next", where -1 is none. "guidance" [1], of the latents' dtype, says how much they follow the label (0: not at all).
  virtual Tensor next_latents(const Parameters& parameters, const Batch& batch) const;
  // [1, 3, size, size], from 0, which is black, to 1.
  virtual Tensor picture(const Parameters& parameters, Tensor latents) const;
};

// Returns the number of targets that are not kIgnored, an i64 scalar.
Tensor count_targets(Tensor targets);

// The [model] table of a configuration, already typed by the registry's defaults, plus the number of stages to mark.
struct ModelOptions {
  std::map<std::string, double> numbers;     // layers, width, heads, context, dropout, ...
  std::map<std::string, std::string> words;  // values that are no numbers
  int stages = 1;                            // how many stage marks the model should set
  DType compute = DType::f32;                // dtype of activations; parameters are f32 (f64 in f64 runs)

  // Each throws Error if the key is absent.
  double number(const std::string& key) const;
  std::int64_t size(const std::string& key) const;  // throws also where it is not a whole number from 1 on
  const std::string& word(const std::string& key) const;
  DType master() const { return compute == DType::f64 ? DType::f64 : DType::f32; }  // dtype of parameters, norms and the loss
};
struct ModelEntry {
  std::string summary;                                              // one line, for help
  std::map<std::string, double> numbers;                            // keys and defaults
  std::map<std::string, std::string> words = {};                    // keys and defaults
  std::function<std::unique_ptr<Model>(const ModelOptions&)> make;  // throws Error (width not divisible by heads, ...)
  // The ends of the names of files in which such models come (".safetensors"). Such a file may stand in a configuration's place; it is then
  // the word "file" of this model, and all else has its defaults.
  std::vector<std::string> suffixes = {};
  // Gives numbers that the configuration does not give, as the words say them (the file's sizes). May be none; throws Error.
  std::function<std::map<std::string, double>(const std::map<std::string, std::string>& words)> numbers_of = {};
};
using ModelRegistry = std::map<std::string, ModelEntry>;

// The parameters that a model declares, in order, and the dtype in which nn's modules add theirs: ModelOptions::master().
struct ParameterList {
  explicit ParameterList(DType of) : dtype(of) {}

  DType dtype;                      // of the parameters that modules add
  std::vector<ParameterSpec> list;  // in order of declaration
};

namespace nn {

// Modules hold names and sizes; the tensors come with each call. A constructor appends its parameters, "<path>.weight" and "<path>.bias",
// to `specs`; weights start with normal values of this deviation, biases at zero. A product runs in x's dtype, a norm in its weight's; both
// return x's dtype. The names of dims say how the members of a mesh axis may share the parameters.
class Module {
 public:
  explicit Module(std::string path) : path_(std::move(path)) {}
  // The module's path, and that of a parameter or module inside of it: "h.0", "h.0.weight".
  const std::string& path() const { return path_; }
  std::string at(std::string_view leaf) const { return path_.empty() ? std::string(leaf) : path_ + "." + std::string(leaf); }

 private:
  std::string path_;
};

// A map of `in` numbers to `out`, with the names of both dims.
struct LayerDims {
  DimName in, out;  // none: a dim that is not split
};
struct LinearShape {
  std::int64_t in, out;  // numbers before and behind the map
  LayerDims dims = {};   // of the weight
  bool bias = true;      // whether it has one
};

// Its weight is [out, in], as in torch.nn.Linear.
class Linear : public Module {
 public:
  Linear(ParameterList& specs, std::string path, const LinearShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  bool bias_;
};

// Its weight is [in, out]: the layout of the published GPT-2 checkpoints ("Conv1D"). It always has a bias.
class Conv1D : public Module {
 public:
  Conv1D(ParameterList& specs, std::string path, const LinearShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor x) const;
};

// `count` maps side by side: its weight is [count, in, out], its bias [count, out], and x is [count, rows, in].
struct BatchedLinearShape {
  std::int64_t count, in, out;  // as in the weight
  DimName count_dim = {};       // of the dim `count`
  LayerDims dims = {};          // of `in` and `out`
};
class BatchedLinear : public Module {
 public:
  BatchedLinear(ParameterList& specs, std::string path, const BatchedLinearShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor x) const;
};

// Its weight and bias are [width], as in torch.nn.LayerNorm.
class LayerNorm : public Module {
 public:
  LayerNorm(ParameterList& specs, std::string path, std::int64_t width, double eps = 1e-5, const DimName& dim = {});
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  double eps_;
};

// Its weight is [width], as in torch.nn.RMSNorm.
class RMSNorm : public Module {
 public:
  RMSNorm(ParameterList& specs, std::string path, std::int64_t width, double eps = 1e-6, const DimName& dim = {});
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  double eps_;
};

// Weight and bias are [channels], as in torch.nn.GroupNorm; x is [n, channels, ...].
struct GroupNormShape {
  std::int64_t groups, channels;  // groups divide the channels
  double eps = 1e-5;              // added to the variance
  DimName dim = {};               // of the channels
};
class GroupNorm : public Module {
 public:
  GroupNorm(ParameterList& specs, std::string path, const GroupNormShape& shape);
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  GroupNormShape shape_;
};

// The sizes of a table of embeddings, and the names of its dims.
struct EmbeddingShape {
  std::int64_t rows, width;               // entries; numbers of each
  DimName rows_dim = {}, width_dim = {};  // none: a dim that is not split
};
// Its weight is [rows, width], as in torch.nn.Embedding.
class Embedding : public Module {
 public:
  Embedding(ParameterList& specs, std::string path, const EmbeddingShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor indices) const;
};

// Its weight is [rows, width], as in torch.nn.EmbeddingBag with mode "sum"; all bags have one size.
class EmbeddingBag : public Module {
 public:
  EmbeddingBag(ParameterList& specs, std::string path, const EmbeddingShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor indices) const;
};

// A convolution with a square window: its weight is [out, in / groups, kernel, kernel], as in torch.nn.Conv2d.
struct Conv2dShape {
  std::int64_t in, out, kernel, stride = 1, padding = 0, dilation = 1, groups = 1;  // channels; then in places; groups of channels
  LayerDims dims = {};                                                              // of the channels
  bool bias = true;                                                                 // whether it has one
};
class Conv2d : public Module {
 public:
  Conv2d(ParameterList& specs, std::string path, const Conv2dShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  Conv2dShape shape_;
};

// Normalises by the statistics of the micro-batch, in evaluation too: torch.nn.BatchNorm2d with track_running_stats=False.
class BatchNorm2d : public Module {
 public:
  BatchNorm2d(ParameterList& specs, std::string path, std::int64_t channels, double eps = 1e-5, const DimName& dim = {});
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  double eps_;
};

// Attention with the maps "q_proj", "k_proj", "v_proj" and "o_proj", whose weights are as Linear's: the parameters of published Llama
// checkpoints. The heads of q lie side by side in width; k and v have as many, or fewer that each serve several of q's. Throws Error where
// heads do not divide the width, or kv_heads the heads.
struct AttentionHeads {
  std::int64_t width, heads;               // of x; of q
  std::int64_t kv_heads = 0;               // 0: as many as heads
  bool bias = false;                       // whether the four maps have one
  std::string embed = {}, heads_dim = {};  // the names of the width's dim and of that in which the heads lie
};
class Attention : public Module {
 public:
  Attention(ParameterList& specs, std::string path, const AttentionHeads& shape, double deviation);
  // x [batch, length, width], as its result; keys and values are of `memory` [batch, its length, width], or of x where there is none.
  Tensor operator()(const Parameters& p, Tensor x, const AttentionOptions& options, Tensor memory = {}) const;

 private:
  AttentionHeads shape_;
  Linear q_, k_, v_, o_;
};

// "down_proj" of an activation of "up_proj": of width to hidden and back. Gated, as in Llama, the activation is of "gate_proj", and its
// product with up_proj goes on. activation: "relu", "gelu", "gelu_tanh" or "silu" (Error otherwise).
struct MLPShape {
  std::int64_t width, hidden;       // of x; between the maps
  std::string activation = "gelu";  // its name, as above
  bool gated = false, bias = true;  // whether there is gate_proj; whether the maps have a bias
  LayerDims dims = {};              // of width and hidden
};
class MLP : public Module {
 public:
  MLP(ParameterList& specs, std::string path, const MLPShape& shape, double deviation);
  Tensor operator()(const Parameters& p, Tensor x) const;

 private:
  MLPShape shape_;
  Linear up_;
  std::optional<Linear> gate_;
  Linear down_;
};

}  // namespace nn

}  // namespace penstock
