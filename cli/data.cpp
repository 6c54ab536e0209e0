// SPDX-License-Identifier: Apache-2.0
// penstock data: makes files of tokens, and says how long sequences are.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "data/length_statistics.h"
#include "data/sequences.h"
#include "data/text_files.h"
#include "data/token_file.h"
#include "report/table.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

struct DataFlags {
  std::vector<std::string> paths;
  std::string out, tokenizer = "bytes";
  std::int64_t context = 0;
  bool pairs = false, json = false;
};

Sequences read(const std::vector<std::string>& paths, const Tokenizer& tokenizer, bool pairs) {
  return pairs ? Sequences::of_pairs(paths, tokenizer) : Sequences::of_documents(paths, tokenizer);
}

// The lengths of a set: of its inputs, its targets, and of both one behind the other. Without any input only the last is said.
using Columns = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

Columns columns_of(const Sequences& sequences) {
  std::vector<std::int64_t> inputs, targets, both;
  for (std::int64_t i = 0; i < sequences.size(); ++i) {
    const SequenceLengths lengths = sequences.lengths(i);
    inputs.push_back(lengths.input);
    targets.push_back(lengths.target);
    both.push_back(lengths.tokens());
  }
  if (std::ranges::all_of(inputs, [](std::int64_t length) { return length == 0; })) return {{"sequence", both}};
  return {{"input", inputs}, {"target", targets}, {"both", both}};
}

std::string statistics_text(const Columns& columns) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, lengths] : columns) {
    const LengthStatistics s = statistics_of(lengths);
    rows.push_back({name, concat(s.count), concat(s.total), fixed(s.mean(), 1), concat(s.p10), concat(s.p50), concat(s.p90), concat(s.p99),
                    concat(s.most)});
  }
  return table({"tokens of", "count", "total", "mean", "p10", "p50", "p90", "p99", "most"}, rows);
}

std::string range_text(std::size_t entry) {
  if (entry < 2) return concat(entry);
  return concat(std::int64_t{1} << (entry - 1), " to ", (std::int64_t{1} << entry) - 1);
}

// A row for each range of lengths, from the first to the last that has any: for each column a count, and a bar whose full width is the
// column's largest count.
std::string histogram_text(const Columns& columns) {
  constexpr std::int64_t kBar = 24;
  std::vector<std::vector<std::int64_t>> counts;
  std::size_t begin = std::numeric_limits<std::size_t>::max(), end = 0;
  for (const auto& [name, lengths] : columns) {
    counts.push_back(histogram_of(lengths));
    const auto some = std::ranges::find_if(counts.back(), [](std::int64_t count) { return count > 0; });
    begin = std::min(begin, static_cast<std::size_t>(some - counts.back().begin()));
    end = std::max(end, counts.back().size());
  }
  std::vector<std::string> header{"tokens"};
  for (const auto& [name, lengths] : columns) header.insert(header.end(), {name, ""});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t k = begin; k < end; ++k) {
    std::vector<std::string>& row = rows.emplace_back(std::vector{range_text(k)});
    for (const std::vector<std::int64_t>& column : counts) {
      const std::int64_t count = k < column.size() ? column[k] : 0, most = std::max<std::int64_t>(1, std::ranges::max(column));
      std::string bar(static_cast<std::size_t>((count * kBar + most - 1) / most), '#');
      bar.resize(kBar, ' ');
      row.insert(row.end(), {concat(count), bar});
    }
  }
  std::string out;
  for (const std::string& line : split(table(header, rows), '\n')) out += concat(line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  return out.substr(0, out.size() - 1);
}

// Says what a context of so many tokens cuts off, and how much of a batch padded to it would be padding.
struct Cut {
  std::int64_t sequences = 0, tokens = 0;
  double padding = 0;
};

Cut cut_at(std::int64_t context, const std::vector<std::int64_t>& lengths) {
  Cut out;
  std::int64_t kept = 0;
  for (const std::int64_t length : lengths) {
    out.sequences += length > context;
    out.tokens += std::max<std::int64_t>(length - context, 0);
    kept += std::min(length, context);
  }
  if (!lengths.empty()) out.padding = 1 - static_cast<double>(kept) / static_cast<double>(context * std::ssize(lengths));
  return out;
}

Json json_of(const Columns& columns, std::int64_t context) {
  Json out;
  for (const auto& [name, lengths] : columns) {
    const LengthStatistics s = statistics_of(lengths);
    out[name] = {{"count", s.count}, {"total", s.total}, {"mean", s.mean()},
                 {"p10", s.p10},     {"p50", s.p50},     {"p90", s.p90},
                 {"p99", s.p99},     {"most", s.most},   {"histogram", histogram_of(lengths)}};
  }
  if (context > 0) {
    const Cut cut = cut_at(context, columns.back().second);
    out["cut"] = {{"context", context}, {"sequences", cut.sequences}, {"tokens", cut.tokens}, {"padding", cut.padding}};
  }
  return out;
}

void print_lengths(const Columns& columns, const DataFlags& flags) {
  if (flags.json) {
    Json out = json_of(columns, flags.context);
    if (!flags.out.empty()) out["out"] = flags.out;
    return print_json(out);
  }
  std::printf("%s\n%s", statistics_text(columns).c_str(), histogram_text(columns).c_str());
  if (flags.context == 0) return;
  const Cut cut = cut_at(flags.context, columns.back().second);
  std::printf("\na context of %s cuts %s by %s; padded to it, %s %% is padding\n", counted(flags.context, "token").c_str(),
              counted(cut.sequences, "sequence").c_str(), counted(cut.tokens, "token").c_str(), fixed(100 * cut.padding, 1).c_str());
}

// Files are turned into tokens one by one, so that a set need not fit into memory, only each of its files.
void make_tokens(const DataFlags& flags) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(flags.tokenizer);
  const std::filesystem::path folder = std::filesystem::path(flags.out).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  TokenFileWriter writer(flags.out, tokenizer->size());
  for (const SteadyFile& file : open_text(flags.paths).files) {
    const Sequences some = read({file.path()}, *tokenizer, flags.pairs);
    for (std::int64_t i = 0; i < some.size(); ++i) {
      const SequenceLengths lengths = some.lengths(i);
      std::vector<std::vector<std::int64_t>> document(1, std::vector<std::int64_t>(flags.pairs ? lengths.input : lengths.tokens()));
      some.copy(i, 0, document[0]);
      if (flags.pairs) some.copy(i, lengths.input, document.emplace_back(lengths.target));
      writer.add(document);
    }
  }
  writer.commit();
  print_lengths(columns_of(read({flags.out}, *tokenizer, flags.pairs)), flags);
}

void show_lengths(const DataFlags& flags) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(flags.tokenizer);
  print_lengths(columns_of(read(flags.paths, *tokenizer, flags.pairs)), flags);
}

// A subcommand whose flags live as long as it does.
CLI::App* add(CLI::App& data, const std::string& name, const std::string& summary, const std::shared_ptr<DataFlags>& flags,
              void (*run)(const DataFlags&)) {
  CLI::App* command = data.add_subcommand(name, summary);
  begin_group(*command, groups::kWhat);
  command->add_option("PATH", flags->paths, "Files and folders")->required();
  command->add_option("--tokenizer", flags->tokenizer, "bytes, or a file: a Hugging Face tokenizer.json or a SentencePiece .model [bytes]")
      ->type_name("bytes|FILE");
  command->add_flag("--pairs", flags->pairs, "Inputs and targets apart, as data.pairs takes them");
  command->add_option("--context", flags->context, "Say what a model with a context of so many tokens would cut")
      ->check(CLI::PositiveNumber);
  add_json_flag(*command, flags->json);
  command->callback([flags, run] { run(*flags); });
  return command;
}

}  // namespace

void add_data(CLI::App& program) {
  CLI::App* command = program.add_subcommand("data", "Makes files of tokens, and says how long sequences are");
  command->require_subcommand(1);
  const auto tokens = std::make_shared<DataFlags>(), show = std::make_shared<DataFlags>();
  CLI::App* make = add(*command, "tokens", "Makes a file of tokens and its index of any text", tokens, make_tokens);
  make->footer("Example:\n  penstock data tokens examples --out examples.bin");
  make->add_option("--out", tokens->out, "The file of tokens; its index, .idx, lies beside it")->type_name("FILE.bin")->required();
  add(*command, "show", "Says how long the sequences of files are", show, show_lengths)
      ->footer("Example:\n  penstock data show examples/pairs.jsonl --context 512");
  command->footer(
      "Example:\n  penstock data tokens examples --out examples.bin\n"
      "  penstock data show examples/pairs.jsonl --context 512");
}

}  // namespace penstock
